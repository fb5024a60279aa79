//! Handlers that meddle with their transaction, beyond the cases that the suite has for every store.

use std::sync::atomic::{AtomicBool, Ordering};

use idem_core::{HandlerError, Message};
use sqlx::{PgConnection, PgPool};

use super::{
    consumers::{Act, Acting, consumer, keys, messages, msg, process, write},
    fixture::Fixture,
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

/// A12: the seal is prepared under a name in SQL, which a handler can take away or give to something else.
#[tokio::test]
async fn a12_a_seal_that_a_handler_has_put_another_in_place_of() {
    for (text, seen) in [
        ("DEALLOCATE ALL", "t"),
        ("DEALLOCATE idem_seal; PREPARE idem_seal (text, text[]) AS SELECT 1", "t"),
        // The answer is not the seal's, so the outcome of the COMMIT behind it is unknown, and the key is claimed anew.
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

/// Writes through the unit's transaction and over another connection, and fails the first time.
struct WritesElsewhere(PgPool, AtomicBool);

impl Act for WritesElsewhere {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        write(connection, message).await?;
        sqlx::query("INSERT INTO effects VALUES ('elsewhere', '', '')").execute(&self.0).await?;
        if self.1.swap(true, Ordering::SeqCst) { Ok(()) } else { Err("it works the next time".into()) }
    }
}

/// A13, documented and not preventable: a handler's writes over another connection happen at every run, while those
/// through its transaction happen once.
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

/// A46: an operator's change of the setting while workers run is not taken for a handler's.
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
