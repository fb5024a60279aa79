//! Handlers that meddle with their transaction, beyond the cases that the suite has for every store.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::SinkExt as _;
use idem_core::{HandlerError, Message, Store as _, store::UnitOfWork as _};
use idem_tokio_postgres::{PostgresConnection, RunStatementError, tokio_postgres::NoTls};

use crate::{
    consumers::{Act, Acting, BOTH, builder, claim_of, consumer, key_of, keys, messages, msg, options, process, write},
    fixture::Fixture,
};

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

/// Nests three deep: a dropped level is rolled back, a committed one stays, at any depth.
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

/// A COPY goes through, and one that fails is never acknowledged nor harms the next unit on the connection.
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

/// A text that the driver cannot run as a statement is refused before it is sent.
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

/// Gives the driver's own `copy_in` a statement that is not a COPY, which leaves the driver an answer ahead, and hides
/// it.
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
    let lane = fixture.store.session_from(client, connection).await.unwrap();
    let (claim, run) = claim_of(&fixture.store, "a").await;
    let mut unit = fixture.store.begin(lane, options(run, Duration::from_secs(3))).await.unwrap();
    for _ in 0..2 {
        unit.claim(std::slice::from_ref(&claim)).await.unwrap();
        let shown = "SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')";
        let limits: String = unit.tx().connection().query_one(shown, &[]).await.unwrap().get(0);
        assert_eq!(limits, "7s 9s");
    }
    unit.commit().await.1.unwrap();
    fixture.drop().await;
}
