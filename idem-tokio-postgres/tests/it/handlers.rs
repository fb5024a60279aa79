//! What handlers do to their transaction, beyond what the suite asks of every store.

use idem_testkit::Decide as _;
use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::SinkExt as _;
use idem_core::{
    Decision, HandlerError, Message, Store as _,
    store::{ClaimError, Claimed, UnitOfWork as _},
};
use idem_tokio_postgres::{PostgresConnection, RunStatementError, tokio_postgres::NoTls};

use crate::{
    consumers::{
        Act, Acting, BOTH, Write, builder, claim_of, consumer, key_of, keys, letters, messages, msg,
        one_and_many_leave_equal_records, options, process, write,
    },
    fixture::{Fixture, PATIENCE},
};

/// Ends the transaction in the second message of a batch, hides it, and goes on writing.
struct EndsIt(&'static str);

impl Act for EndsIt {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        if key_of(message) == "order-001" {
            let _ = connection.client()?.batch_execute(self.0).await;
        }
        // Swallowed, so that the engine sees it at the commit only.
        let _ = write(&connection, message).await;
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
        let mended = consumer(fixture.store.clone(), Write);
        assert_eq!(process(&mended, messages(&keys)).await, "DPD", "{text}");
        assert_eq!(fixture.effects().await, keys, "{text}");
        fixture.drop().await;
    }
}

/// A14: nested transactions that were forgotten, with the transaction ended under them.
struct Tangles(Result<(), &'static str>);

impl Act for Tangles {
    async fn act(&self, message: &Message, mut connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        if key_of(message) == "order-001" {
            let mut nested = connection.transaction().await?;
            std::mem::forget(nested.transaction().await?);
            nested.client()?.batch_execute("ROLLBACK").await?;
            std::mem::forget(nested);
            return self.0.map_err(HandlerError::from);
        }
        Ok(())
    }
}

#[tokio::test]
async fn a14_forgotten_savepoints_of_an_ended_transaction() {
    for answer in [Ok(()), Err("it went wrong")] {
        let fixture = Fixture::new().await;
        let consumer = consumer(fixture.store.clone(), Acting(Tangles(answer)));
        assert_eq!(process(&consumer, messages(&keys(3))).await, "PtP", "{answer:?}");
        assert_eq!(process(&consumer, messages(&keys(3))).await, "DtD", "{answer:?}");
        assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
        fixture.drop().await;
    }
}

/// Nests three deep: what is dropped is taken back, what is committed stays, whatever is around it.
struct Nests;

impl Act for Nests {
    async fn act(&self, message: &Message, mut connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        let note = async |connection: &PostgresConnection<'_>, note: &str| {
            connection
                .execute("INSERT INTO effects VALUES ($1, '', '')", &[&format!("{}-{note}", key_of(message))])
                .await
        };
        let mut outer = connection.transaction().await?;
        note(&outer, "outer").await?;
        let mut inner = outer.transaction().await?;
        note(&inner, "inner").await?;
        let innermost = inner.transaction().await?;
        note(&innermost, "dropped").await?;
        drop(innermost);
        let failing = inner.transaction().await?;
        let failed = failing.execute("INSERT INTO taken VALUES ('taken')", &[]).await;
        assert!(matches!(failed, Err(RunStatementError::Postgres(_))));
        failing.rollback().await?;
        inner.commit().await?;
        outer.commit().await?;
        // A call that is dropped before its answer leaves no savepoint either.
        let _ = futures_util::FutureExt::now_or_never(connection.transaction());
        note(&connection, "after").await?;
        Ok(())
    }
}

#[tokio::test]
async fn nested_transactions_end_as_they_are_told() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Nests));
    assert_eq!(process(&consumer, vec![msg("a"), msg("b")]).await, "PP");
    assert_eq!(fixture.effects().await, ["a-after", "a-inner", "a-outer", "b-after", "b-inner", "b-outer"]);
    fixture.drop().await;
}

/// A20: the server ends a transaction that sat idle for too long.
struct Sits;

impl Act for Sits {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        connection.client()?.batch_execute("SET LOCAL idle_in_transaction_session_timeout = 50").await?;
        // What a call to another system does to the connection: nothing, until the server has had enough.
        while !connection.client()?.is_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(write(&connection, message).await?)
    }
}

#[tokio::test]
async fn a20_an_idle_timeout_is_infrastructure() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Sits));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "i");
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    fixture.drop().await;
}

/// J5: a client that dies in the middle of a long statement holds its keys for seconds, not for the statement's time.
#[tokio::test]
async fn j5_a_dropped_lane_with_a_running_statement_frees_its_keys() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (claim, run) = claim_of(store, "a").await;
    let claims = [claim];
    let options = options(run, Duration::from_secs(20));
    {
        let mut lane = store.open().await.unwrap();
        let mut unit = store.begin(&mut lane, options).await.unwrap();
        unit.claim(&claims).await.unwrap();
        let mut tx = unit.tx();
        let connection = tx.connection();
        let pid: i32 = connection.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let asleep = format!("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {pid}");
        tokio::select! {
            slept = connection.execute("SELECT pg_sleep(300)", &[]) => panic!("{slept:?}"),
            () = fixture.until(&asleep) => {}
        }
    }
    let mut lane = store.open().await.unwrap();
    let mut unit = store.begin(&mut lane, options).await.unwrap();
    assert_eq!(unit.claim(&claims).await.unwrap(), [Claimed::Inserted]);
    unit.rollback().await.unwrap();
    fixture.drop().await;
}

/// A21: a lock or a statement that takes too long is the message's bad luck, and swallowing it changes nothing.
struct Waits {
    setting: &'static str,
    swallows: bool,
}

impl Act for Waits {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        connection.query("SELECT set_config($1, '50', true)", &[&self.setting]).await?;
        let locked = connection.execute("UPDATE taken SET name = name", &[]).await;
        if self.swallows { Ok(()) } else { Ok(locked.map(|_| ())?) }
    }
}

#[tokio::test]
async fn a21_timeouts_in_a_handler_are_transient_even_when_swallowed() {
    let fixture = Fixture::new().await;
    let blocker = fixture.connect().await;
    blocker.batch_execute("BEGIN; UPDATE taken SET name = name").await.unwrap();
    for handlers in BOTH {
        for setting in ["lock_timeout", "statement_timeout"] {
            for swallows in [false, true] {
                let consumer = builder(fixture.store.clone(), Acting(Waits { setting, swallows })).handlers(handlers);
                let seen = process(&consumer.build().unwrap(), vec![msg("a")]).await;
                assert_eq!(seen, "t", "{setting} {swallows} {handlers:?}");
            }
        }
    }
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    let consumer = consumer(fixture.store.clone(), Acting(Waits { setting: "lock_timeout", swallows: false }));
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    fixture.drop().await;
}

/// B22: the handler's own unique key.
struct Naturally;

impl Act for Naturally {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        let name = if key_of(message) == "order-001" { "taken" } else { key_of(message) };
        connection.execute("INSERT INTO taken VALUES ($1)", &[&name]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn b22_a_unique_violation_of_the_handlers_own_is_permanent() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let consumer = builder(fixture.store.clone(), Acting(Naturally)).handlers(handlers).build().unwrap();
        let decisions = consumer.decisions(messages(&keys(3))).await.unwrap();
        assert_eq!(letters(&decisions), "PpP", "{handlers:?}");
        let Decision::Failed(failure) = &decisions[1] else { panic!("{decisions:?}") };
        assert!(failure.text.contains("SQLSTATE 23505") && failure.text.contains("taken_pkey"), "{}", failure.text);
        assert_eq!(fixture.effects().await, ["order-000", "order-002"]);
        fixture.drop().await;
    }
}

/// How people hand a driver's error on.
#[derive(Debug, thiserror::Error)]
enum Wrapped {
    #[error(transparent)]
    Transparent(RunStatementError),
    #[error("the ledger failed")]
    WithContext(#[source] RunStatementError),
    #[error("the ledger failed, and nobody says why")]
    OwnText,
    #[error("the ledger failed: {0}")]
    Stringified(String),
}

struct Killed(usize);

const WAYS: usize = 7;

impl Act for Killed {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        let _ = connection.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await;
        let Err(error) = connection.execute("SELECT 1", &[]).await else { return Ok(()) };
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
    for handlers in BOTH {
        for way in 0..WAYS {
            let consumer = builder(fixture.store.clone(), Acting(Killed(way))).handlers(handlers).build().unwrap();
            assert_eq!(process(&consumer, messages(&keys(2))).await, "ii", "way {way} {handlers:?}");
        }
    }
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    fixture.drop().await;
}

/// Fails or ends the transaction, and says that all is well.
struct Swallows(&'static str);

impl Act for Swallows {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        let _ = connection.client()?.batch_execute(self.0).await;
        Ok(())
    }
}

/// Handlers of unprotected types claim nothing, and their commit is guarded all the same.
#[tokio::test]
async fn a9_a_swallowed_error_of_an_unprotected_message_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    for (name, text) in [("failed", "INSERT INTO taken VALUES ('taken')"), ("ended", "ROLLBACK")] {
        let consumer = builder(fixture.store.clone(), Acting(Swallows(text))).unprotected_type("note").build().unwrap();
        let message = Message::new(name).with_type("note");
        assert_eq!(process(&consumer, vec![message]).await, "t", "{name}");
    }
    assert!(fixture.effects().await.is_empty());
    let consumer = builder(fixture.store.clone(), Write).unprotected_type("note").build().unwrap();
    assert_eq!(process(&consumer, vec![Message::new("x").with_type("note")]).await, "P");
    assert_eq!(fixture.effects().await, ["(none)"]);
    fixture.drop().await;
}

/// Copies rows in; a payload of `bad` makes rows that the server refuses.
struct Copies;

impl Act for Copies {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        let columns = if message.payload().is_some_and(|payload| payload == "bad") { 2 } else { 3 };
        let row = [key_of(message), "\\\\x", "note"][..columns].join("\t");
        let rows = Bytes::from(format!("{row}\n{row}\n"));
        let copied = connection.copy_in("COPY effects FROM STDIN", rows).await;
        // Swallowed, so that nothing but the seal stands against it.
        assert!(copied.is_err() || copied.unwrap() == 2);
        Ok(())
    }
}

/// A COPY goes through, and one that fails is never acknowledged nor harms whoever comes after it on the connection.
#[tokio::test]
async fn a9_rows_that_are_copied_in_and_refused() {
    for handlers in BOTH {
        let fixture = Fixture::new().await;
        let consumer = builder(fixture.store.clone(), Acting(Copies)).lanes(1).handlers(handlers).build().unwrap();
        let bad = || Message::new("bad").with_header("idempotencykey", "bad");
        for round in 0..3 {
            let (before, after) = (format!("{round}-a"), format!("{round}-b"));
            let seen = process(&consumer, vec![msg(&before), bad(), msg(&after)]).await;
            assert_eq!(seen, "PtP", "{handlers:?}");
        }
        let expected = ["0-a", "0-a", "0-b", "0-b", "1-a", "1-a", "1-b", "1-b", "2-a", "2-a", "2-b", "2-b"];
        assert_eq!(fixture.effects().await, expected, "{handlers:?}");
        fixture.drop().await;
    }
}

/// What the driver cannot run as a statement is refused before it is sent.
struct Misuses;

impl Act for Misuses {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        let copy = connection.execute("COPY effects FROM STDIN", &[]).await;
        assert!(matches!(copy, Err(RunStatementError::Copy)), "{copy:?}");
        let insert = connection.copy_in("INSERT INTO taken VALUES ('a')", Bytes::new()).await;
        assert!(matches!(insert, Err(RunStatementError::NoCopy)), "{insert:?}");
        Ok(write(&connection, message).await?)
    }
}

#[tokio::test]
async fn a_copy_in_the_wrong_place_is_refused_before_it_is_sent() {
    let fixture = Fixture::new().await;
    for handlers in BOTH {
        let consumer = builder(fixture.store.clone(), Acting(Misuses)).handlers(handlers).build().unwrap();
        assert_eq!(process(&consumer, vec![msg(&format!("{handlers:?}"))]).await, "P");
    }
    assert_eq!(fixture.effects().await.len(), 2);
    fixture.drop().await;
}

/// Gives the driver's own `copy_in` a statement that is none, which leaves the driver an answer ahead, and hides it.
struct Shifts;

impl Act for Shifts {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        if message.payload().is_some_and(|payload| payload == "bad") {
            let text = "INSERT INTO effects VALUES ('shifted', '', '')";
            let sink = connection.client()?.copy_in::<_, Bytes>(text).await;
            assert!(sink.is_err());
        }
        Ok(())
    }
}

/// A connection on which answers and statements are out of step is not used again, and nothing is acknowledged on it.
#[tokio::test]
async fn answers_that_are_out_of_step_are_never_taken_for_a_commit() {
    let fixture = Fixture::new().await;
    let consumer = builder(fixture.store.clone(), Acting(Shifts)).lanes(1).build().unwrap();
    let bad = || Message::new("bad").with_header("idempotencykey", "bad");
    let mut expected = Vec::new();
    for round in 0..3 {
        let neighbours = || vec![msg(&format!("{round}-a")), msg(&format!("{round}-b"))];
        let mut batch = neighbours();
        batch.insert(1, bad());
        // Where the driver notices by itself, it closes the connection.
        let seen = process(&consumer, batch).await;
        assert!(seen.chars().all(|letter| matches!(letter, 'P' | 'D' | 't' | 'i')), "{seen}");
        let seen = process(&consumer, neighbours()).await;
        assert!(seen.chars().all(|letter| matches!(letter, 'P' | 'D')), "{seen}: the next unit is unharmed");
        expected.extend([format!("{round}-a"), format!("{round}-b")]);
    }
    let mut effects = fixture.effects().await;
    effects.retain(|key| !matches!(key.as_str(), "bad" | "shifted"));
    assert_eq!(effects, expected, "each effect once");
    let of_bad = fixture.text("SELECT count(*) FROM effects WHERE key = 'bad'").await;
    let recorded = fixture.recorded().await.iter().filter(|key| *key == "bad").count();
    assert_eq!(of_bad, recorded.to_string(), "with its record or not at all");
    fixture.drop().await;
}

/// Streams a COPY through the driver's own sink and leaves it in the middle.
struct Abandons;

impl Act for Abandons {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        write(&connection, message).await?;
        let mut sink = pin!(connection.client()?.copy_in("COPY effects FROM STDIN").await?);
        sink.send(Bytes::from_static(b"half\t")).await?;
        Ok(())
    }
}

/// A11, A16: a COPY that was left open is no success.
#[tokio::test]
async fn a11_a_copy_that_was_left_open_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    let consumer = consumer(fixture.store.clone(), Acting(Abandons));
    assert_eq!(process(&consumer, messages(&keys(2))).await, "tt");
    assert!(fixture.effects().await.is_empty() && fixture.recorded().await.is_empty());
    fixture.drop().await;
}

/// The limits of the claim are gone when handlers run, and a second claim has them again (B2).
#[tokio::test]
async fn b2_the_sessions_own_limits_are_put_back() {
    let fixture = Fixture::new().await;
    let mut config = fixture.config.clone();
    config.options(format!("-c search_path={} -c lock_timeout=7s -c statement_timeout=9s", fixture.schema));
    let (client, connection) = config.connect(NoTls).await.unwrap();
    let mut lane = fixture.store.session_from(client, connection).await.unwrap();
    let (claim, run) = claim_of(&fixture.store, "a").await;
    let mut unit = fixture.store.begin(&mut lane, options(run, Duration::from_secs(3))).await.unwrap();
    for _ in 0..2 {
        unit.claim(std::slice::from_ref(&claim)).await.unwrap();
        let shown = "SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')";
        let limits: String = unit.tx().connection().query_one(shown, &[]).await.unwrap().get(0);
        assert_eq!(limits, "7s 9s");
    }
    unit.commit().await.unwrap();
    fixture.drop().await;
}

/// A second claim in one unit waits no longer than the first, although the first has put the session's limits back.
#[tokio::test]
async fn b2_a_second_claim_is_bounded_too() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (held, run) = claim_of(store, "held").await;
    let (free, _) = claim_of(store, "free").await;
    let mut lane = store.open().await.unwrap();
    let mut holder = store.begin(&mut lane, options(run, Duration::from_secs(5))).await.unwrap();
    holder.claim(std::slice::from_ref(&held)).await.unwrap();
    let mut lane = store.open().await.unwrap();
    let mut unit = store.begin(&mut lane, options(run, Duration::from_millis(300))).await.unwrap();
    assert_eq!(unit.claim(&[free]).await.unwrap(), [Claimed::Inserted]);
    let second = tokio::time::timeout(PATIENCE, unit.claim(std::slice::from_ref(&held))).await;
    let error = second.expect("bounded by the server").unwrap_err();
    assert!(matches!(error, ClaimError::Held), "{error:?}");
    drop((holder, unit));
    fixture.drop().await;
}

#[tokio::test]
async fn a_key_that_is_claimed_alone_leaves_the_same_record() {
    let fixture = Fixture::new().await;
    one_and_many_leave_equal_records(&fixture.store).await;
    fixture.drop().await;
}

/// Runs a statement in the second message of a batch.
struct Sets(&'static str);

impl Act for Sets {
    async fn act(&self, message: &Message, connection: PostgresConnection<'_>) -> Result<(), HandlerError> {
        if key_of(message) == "order-001" {
            connection.execute(self.0, &[]).await?;
        }
        Ok(write(&connection, message).await?)
    }
}

/// A46: what one handler sets holds for its whole unit, so a COMMIT that it has weakened is refused.
#[tokio::test]
async fn a46_a_commit_that_a_handler_has_weakened_is_refused() {
    let weaker = "SELECT set_config('synchronous_commit', 'off', true)";
    let stronger = "SELECT set_config('synchronous_commit', 'remote_apply', true)";
    for handlers in BOTH {
        for (text, seen) in [(weaker, "PtP"), (stronger, "PPP")] {
            let fixture = Fixture::new().await;
            let sets = builder(fixture.store.clone(), Acting(Sets(text))).handlers(handlers).build().unwrap();
            assert_eq!(process(&sets, messages(&keys(3))).await, seen, "{text} {handlers:?}");
            assert_eq!(fixture.effects().await.len(), seen.matches('P').count(), "{text} {handlers:?}");
            drop(sets);
            fixture.drop().await;
        }
    }
}

/// A48: a database that was restarted while a connection idled costs the next call nothing: it begins again on a new one.
#[tokio::test]
async fn a48_an_idle_connection_that_was_lost_costs_no_call() {
    let fixture = Fixture::new().await;
    let mut config = fixture.config.clone();
    config.application_name("a48-tokio-postgres");
    let store = fixture.options_of(config).build().unwrap();
    let consumer = consumer(store, Write);
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    let of_the_store = "FROM pg_stat_activity WHERE application_name = 'a48-tokio-postgres'";
    fixture.run(format!("SELECT count(pg_terminate_backend(pid)) {of_the_store}")).await;
    fixture.until(&format!("SELECT NOT EXISTS (SELECT {of_the_store})")).await;
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
    drop(consumer);
    fixture.drop().await;
}
