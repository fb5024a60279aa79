//! What handlers do to their transaction, beyond what the suite asks of every store.

use idem_testkit::Decide as _;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use idem_core::{Decision, HandlerError, Message};
use sqlx::{PgConnection, PgPool};

use super::{
    consumers::{Act, Acting, builder, consumer, keys, letters, messages, msg, process, write},
    fixture::{Fixture, until},
};

/// Ends the transaction in the second message of a batch, hides it, and goes on writing.
struct EndsIt(&'static str);

impl Act for EndsIt {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        if message.key().is_some_and(|key| key.as_str() == "order-001") {
            let _ = sqlx::raw_sql(self.0).execute(&mut *connection).await;
        }
        // Swallowed, so that the engine sees it at the commit only.
        let _ = write(connection, message).await;
        Ok(())
    }
}

/// A12: whatever a handler sends, nothing that follows is committed behind the engine's back, and a later run of a
/// mended handler makes all effects once.
#[tokio::test]
async fn a12_raw_commit_in_mid_batch_with_every_error_swallowed() {
    for text in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "END",
        "ABORT",
        "ROLLBACK; BEGIN",
        "SET CONSTRAINTS ALL IMMEDIATE",
    ] {
        let fixture = Fixture::new().await;
        let keys = keys(3);
        let broken = consumer(fixture.store.clone(), Acting(EndsIt(text)));
        let seen = process(&broken, messages(&keys)).await;
        assert_eq!(seen, "PtP", "{text}: the innocent are handled alone");
        assert_eq!(fixture.effects().await, ["order-000", "order-002"], "{text}");
        drop(broken);
        let mended = consumer(fixture.store.clone(), super::consumers::Write);
        assert_eq!(process(&mended, messages(&keys)).await, "DPD", "{text}");
        assert_eq!(fixture.effects().await, keys, "{text}");
        fixture.drop().await;
    }
}

/// A12: the seal is prepared under a name in SQL, which a handler can take away or give to something else.
#[tokio::test]
async fn a12_a_seal_that_a_handler_has_put_another_in_place_of() {
    for (text, seen) in [
        ("DEALLOCATE ALL", "t"),
        ("DEALLOCATE idem_seal; PREPARE idem_seal (text, text[]) AS SELECT 1", "t"),
        // What was answered is not the seal, so nobody knows how the COMMIT behind it ended, and the key is claimed anew.
        ("DEALLOCATE idem_seal; PREPARE idem_seal (text, text[]) AS SELECT 1; COMMIT", "B"),
    ] {
        let fixture = Fixture::new().await;
        let broken = consumer(fixture.store.clone(), Acting(EndsIt(text)));
        assert_eq!(process(&broken, messages(&keys(3))).await, format!("P{seen}P"), "{text}");
        assert_eq!(process(&broken, messages(&keys(3))).await, format!("D{seen}D"), "{text}");
        assert_eq!(fixture.effects().await, ["order-000", "order-002"], "{text}");
        drop(broken);
        fixture.drop().await;
    }
}

/// A14: nested transactions that were forgotten, with the transaction ended under them.
struct Tangles {
    answers: Result<(), &'static str>,
}

impl Act for Tangles {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(&mut *connection, message).await?;
        if message.key().is_some_and(|key| key.as_str() == "order-001") {
            let mut nested = sqlx::Connection::begin(&mut *connection).await?;
            let deeper = sqlx::Connection::begin(&mut *nested).await?;
            std::mem::forget(deeper);
            std::mem::forget(nested);
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
            return self.answers.map_err(HandlerError::from);
        }
        Ok(())
    }
}

#[tokio::test]
async fn a14_forgotten_savepoints_of_an_ended_transaction() {
    for answers in [Ok(()), Err("it went wrong")] {
        let fixture = Fixture::new().await;
        let consumer = consumer(fixture.store.clone(), Acting(Tangles { answers }));
        assert_eq!(process(&consumer, messages(&keys(3))).await, "PtP", "{answers:?}");
        assert_eq!(process(&consumer, messages(&keys(3))).await, "DtD", "{answers:?}");
        assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
        fixture.drop().await;
    }
}

/// A20: the server ends a transaction that sat idle for too long. The pool looks on.
struct Sits(PgPool);

impl Act for Sits {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *connection).await?;
        sqlx::raw_sql("SET LOCAL idle_in_transaction_session_timeout = 50").execute(&mut *connection).await?;
        // What a call to another system does to the connection: nothing, for too long.
        until(&self.0, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}")).await;
        Ok(write(connection, message).await?)
    }
}

#[tokio::test]
async fn a20_an_idle_timeout_is_infrastructure() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Sits(fixture.admin.clone())));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "i");
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    fixture.drop().await;
}

/// J5: a client that dies in the middle of a long statement holds its keys for seconds, not for the statement's time.
#[tokio::test]
async fn j5_a_dropped_lane_with_a_running_statement_frees_its_keys() {
    use idem_core::{Store as _, store::UnitOfWork as _};
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (claim, run) = super::consumers::claim_of(store, "a").await;
    let claims = [claim];
    let options = super::consumers::options(run, Duration::from_secs(20));
    {
        let mut lane = store.open().await.unwrap();
        let mut unit = store.begin(&mut lane, options).await.unwrap();
        unit.claim(&claims).await.unwrap();
        let mut tx = unit.tx();
        let sleep = sqlx::raw_sql("SELECT pg_sleep(300), 27").execute(tx.connection());
        tokio::select! {
            answer = sleep => panic!("{answer:?}"),
            () = fixture.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(300), 27'") => {}
        }
    }
    let mut lane = store.open().await.unwrap();
    let mut unit = store.begin(&mut lane, options).await.unwrap();
    assert_eq!(unit.claim(&claims).await.unwrap(), [idem_core::store::Claimed::Inserted]);
    unit.rollback().await.unwrap();
    fixture.drop().await;
}

/// A21: a lock or a statement that takes too long is the message's bad luck, and swallowing it changes nothing.
struct Waits {
    setting: &'static str,
    swallows: bool,
}

impl Act for Waits {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(&mut *connection, message).await?;
        sqlx::raw_sql(self.setting).execute(&mut *connection).await?;
        let locked = sqlx::raw_sql("UPDATE taken SET name = name").execute(connection).await;
        if self.swallows { Ok(()) } else { Ok(locked.map(|_| ())?) }
    }
}

#[tokio::test]
async fn a21_timeouts_in_a_handler_are_transient_even_when_swallowed() {
    let fixture = Fixture::new().await;
    let mut blocker = fixture.connect().await;
    sqlx::raw_sql("BEGIN; UPDATE taken SET name = name").execute(&mut blocker).await.unwrap();
    for setting in ["SET LOCAL lock_timeout = 50", "SET LOCAL statement_timeout = 50"] {
        for swallows in [false, true] {
            let consumer = consumer(fixture.store.clone(), Acting(Waits { setting, swallows }));
            assert_eq!(process(&consumer, vec![msg("a")]).await, "t", "{setting} {swallows}");
        }
    }
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    sqlx::raw_sql("ROLLBACK").execute(&mut blocker).await.unwrap();
    let consumer =
        consumer(fixture.store.clone(), Acting(Waits { setting: "SET LOCAL lock_timeout = 50", swallows: false }));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    fixture.drop().await;
}

/// Writes through the unit's transaction and over another connection, and fails the first time.
struct WritesElsewhere(PgPool, AtomicBool);

impl Act for WritesElsewhere {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(connection, message).await?;
        sqlx::query("INSERT INTO effects VALUES ('elsewhere', '', '')").execute(&self.0).await?;
        if self.1.swap(true, Ordering::SeqCst) { Ok(()) } else { Err("it works the next time".into()) }
    }
}

/// A13, documented and not preventable: what a handler writes over another connection happens at every run, while what it
/// writes through its transaction happens once.
#[tokio::test]
async fn a13_a_write_over_another_connection_is_not_rolled_back() {
    let fixture = Fixture::new().await;
    let handler = WritesElsewhere(fixture.admin.clone(), AtomicBool::new(false));
    let consumer = consumer(fixture.store.clone(), Acting(handler));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "t");
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    assert_eq!(fixture.effects().await, ["a", "elsewhere", "elsewhere"]);
    fixture.drop().await;
}

/// B22: the handler's own unique key.
struct Naturally;

impl Act for Naturally {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(&mut *connection, message).await?;
        let name = if message.key().is_some_and(|key| key.as_str() == "order-001") { "taken" } else { "free" };
        sqlx::query("INSERT INTO taken VALUES ($1 || $2)")
            .bind(name)
            .bind(if name == "free" { message.key().map(|key| key.as_str()) } else { Some("") })
            .execute(connection)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn b22_a_unique_violation_of_the_handlers_own_is_permanent() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Naturally));
    let decisions = consumer.decisions(messages(&keys(3))).await.unwrap();
    assert_eq!(letters(&decisions), "PpP");
    let Decision::Failed(failure) = &decisions[1] else { panic!("{decisions:?}") };
    assert!(failure.text.contains("SQLSTATE 23505") && failure.text.contains("taken_pkey"), "{}", failure.text);
    assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
    fixture.drop().await;
}

/// How people hand a driver's error on.
#[derive(Debug, thiserror::Error)]
enum Wrapped {
    #[error(transparent)]
    Transparent(sqlx::Error),
    #[error("the ledger failed")]
    WithContext(#[source] sqlx::Error),
    #[error("the ledger failed, and nobody says why")]
    OwnText,
    #[error("the ledger failed: {0}")]
    Stringified(String),
}

struct Killed(usize);

const WAYS: usize = 7;

impl Act for Killed {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(&mut *connection, message).await?;
        let _ = sqlx::raw_sql("SELECT pg_terminate_backend(pg_backend_pid())").execute(&mut *connection).await;
        let Err(error) = sqlx::query("SELECT 1").execute(connection).await else { return Ok(()) };
        Err(match self.0 {
            0 => error.into(),
            1 => Wrapped::Transparent(error).into(),
            2 => Wrapped::WithContext(error).into(),
            3 => Wrapped::OwnText.into(),
            4 => Wrapped::Stringified(error.to_string()).into(),
            5 => HandlerError::permanent(error),
            _ => HandlerError::permanent("nothing to do with the database"),
        })
    }
}

#[tokio::test]
async fn a25_a_killed_backend_is_infrastructure_however_the_handler_wraps_it() {
    let fixture = Fixture::new().await;
    for way in 0..WAYS {
        let consumer = builder(fixture.store.clone(), Acting(Killed(way))).build().unwrap();
        assert_eq!(process(&consumer, messages(&keys(2))).await, "ii", "way {way}");
    }
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    fixture.drop().await;
}

/// Handlers of unprotected types claim nothing, and their commit is guarded all the same.
#[tokio::test]
async fn a9_a_swallowed_error_of_an_unprotected_message_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    for (name, text) in [("failed", "INSERT INTO taken VALUES ('taken')"), ("ended", "ROLLBACK")] {
        let handler = Acting(Swallows(text));
        let consumer = builder(fixture.store.clone(), handler).unprotected_type("note").build().unwrap();
        let message = Message::new(name).with_type("note");
        assert_eq!(process(&consumer, vec![message]).await, "t", "{name}");
    }
    assert!(fixture.effects().await.is_empty());
    let consumer = builder(fixture.store.clone(), super::consumers::Write).unprotected_type("note").build().unwrap();
    assert_eq!(process(&consumer, vec![Message::new("x").with_type("note")]).await, "P");
    assert_eq!(fixture.effects().await, ["(none)"]);
    fixture.drop().await;
}

struct Swallows(&'static str);

impl Act for Swallows {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(&mut *connection, message).await?;
        let _ = sqlx::raw_sql(self.0).execute(connection).await;
        Ok(())
    }
}

/// Runs a statement in the second message of a batch.
struct Sets(&'static str);

impl Act for Sets {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        if message.key().is_none_or(|key| key.as_str() == "order-001") {
            sqlx::raw_sql(self.0).execute(&mut *connection).await?;
        }
        Ok(write(connection, message).await?)
    }
}

/// A46: what one handler sets holds for its whole unit, so a COMMIT that it has weakened is refused, and its neighbours are
/// committed as they should be; what is no weaker is nobody's business.
#[tokio::test]
async fn a46_a_commit_that_a_handler_has_weakened_is_refused() {
    for (text, seen) in [
        ("SET LOCAL synchronous_commit = off", "PtP"),
        ("SET synchronous_commit = local", "PtP"),
        ("SELECT set_config('synchronous_commit', 'remote_write', true)", "PtP"),
        ("SET LOCAL synchronous_commit = remote_apply", "PPP"),
    ] {
        let fixture = Fixture::new().await;
        let sets = consumer(fixture.store.clone(), Acting(Sets(text)));
        assert_eq!(process(&sets, messages(&keys(3))).await, seen, "{text}");
        assert_eq!(fixture.effects().await.len(), seen.matches('P').count(), "{text}");
        let refused = sets.decisions(messages(&keys(2)[1..])).await.unwrap();
        if let Decision::Failed(failure) = &refused[0] {
            assert!(failure.text.contains("synchronous_commit"), "{failure}");
        }
        // A unit that claims nothing is guarded alike.
        let unprotected = builder(fixture.store.clone(), Acting(Sets(text))).unprotected_type("note").build().unwrap();
        let note = vec![Message::new("x").with_type("note")];
        assert_eq!(process(&unprotected, note).await, if seen == "PPP" { "P" } else { "t" }, "{text}");
        drop((sets, unprotected));
        fixture.drop().await;
    }
}

/// A47: a role that a handler sets for its transaction, as for row-level security, needs no right of idem's for the seal.
#[tokio::test]
async fn a47_a_handler_may_set_a_role_for_its_transaction() {
    for (text, seen) in [
        ("SET LOCAL ROLE pg_write_all_data", "PPP"),
        ("SET LOCAL ROLE pg_write_all_data; SET LOCAL synchronous_commit = off", "PtP"),
    ] {
        let fixture = Fixture::new().await;
        let sets = consumer(fixture.store.clone(), Acting(Sets(text)));
        assert_eq!(process(&sets, messages(&keys(3))).await, seen, "{text}");
        assert_eq!(fixture.effects().await.len(), seen.matches('P').count(), "{text}");
        drop(sets);
        fixture.drop().await;
    }
}

/// A46: what an operator makes of the setting while workers run is the operator's word, not a handler's.
#[tokio::test]
async fn a46_a_weaker_default_of_the_session_is_no_handlers_doing() {
    let fixture = Fixture::new().await;
    let options = fixture.connection.clone().options([("synchronous_commit", "local")]);
    let store = fixture.options_of(options).build().unwrap();
    let weaker = consumer(store.clone(), Acting(Sets("SET LOCAL synchronous_commit = off")));
    assert_eq!(process(&weaker, messages(&keys(3))).await, "PtP");
    let resets = consumer(store.clone(), Acting(Sets("RESET synchronous_commit")));
    assert_eq!(process(&resets, messages(&keys(3))).await, "DPD");
    drop((weaker, resets));
    store.disconnect().await;
    fixture.drop().await;
}

/// A48: a database that was restarted while a connection idled costs the next call nothing: it begins again on a new one.
#[tokio::test]
async fn a48_an_idle_connection_that_was_lost_costs_no_call() {
    let fixture = Fixture::new().await;
    let options = fixture.connection.clone().application_name(&format!("a48-{}", fixture.schema));
    let store = fixture.options_of(options).build().unwrap();
    let consumer = consumer(store.clone(), super::consumers::Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    let killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'a48-%'";
    fixture.run(killed).await;
    fixture.until("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'a48-%')").await;
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
    drop(consumer);
    store.disconnect().await;
    fixture.drop().await;
}
