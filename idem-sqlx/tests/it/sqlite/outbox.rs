//! Messages out and answers kept, beyond the suite of every store.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ConsumerName, DedupConsumer, Effects, Event, Handler, HandlerError, Message, ResultBody, Store as _, Tx,
    cleanup::{Expiring, Removal, Removed},
    outbox::AppendError,
};
use idem_sqlx::{PublishPlainError, SqliteStore};
use sqlx::Connection as _;

use super::{fresh, message, write};

struct Answers;

impl Handler<SqliteStore> for Answers {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        write(message, tx.connection()).await?;
        tx.set_result(message, ResultBody::new(&b"\0an answer"[..]).with_status(201))?;
        Ok(())
    }
}

/// Answers are rows beside their records, and go with them.
#[tokio::test]
async fn answers_are_removed_with_their_records() {
    let (file, store) = fresh().await;
    let builder = DedupConsumer::builder(Arc::clone(&store), "orders").handler(Answers);
    let consumer = builder.effects(Effects::InTransaction).keep_results(100).build().unwrap();
    for key in ["a", "b"] {
        consumer.process_one(message(key, "p")).await.unwrap();
    }
    let answers = "SELECT kind || ' ' || status || ' ' || hex(body) FROM idem_processed_results";
    assert_eq!(file.ask(answers).await, ["0 201 00616E20616E73776572", "0 201 00616E20616E73776572"]);
    file.run("UPDATE idem_processed_messages SET expires_at = 0 WHERE idempotency_key = 'a'").await;
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: Duration::from_secs(30) };
    assert!(matches!(store.cleaner().remove(&removal).await.unwrap(), Removed::Rows(1)));
    let left =
        "SELECT idempotency_key FROM idem_processed_messages JOIN idem_processed_results USING (consumer, key_id)";
    assert_eq!(file.ask(left).await, ["b"]);
    assert_eq!(file.ask("SELECT CAST(count(*) AS TEXT) FROM idem_processed_results").await, ["1"]);
}

/// O38: a relay's looks wait for no writer, and no writer waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn o38_looks_at_the_outbox_do_not_write() {
    let (file, store) = fresh().await;
    store.plain_outbox("billing", ["payments"]).await.unwrap();
    let outbox = Arc::clone(&store).outbox().unwrap();
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    let mut other = file.connect().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    assert!(outbox.next(id, 10, 1_000).await.unwrap().is_empty());
    assert!(outbox.events(None, None, 10).await.unwrap().is_empty());
    assert_eq!(outbox.backlog(None).await.unwrap().len(), 1);
}

/// A plain outbox: an event is committed with its caller's writes, and known by the caller's key.
#[tokio::test]
async fn a_plain_outbox_commits_with_its_callers_transaction() {
    let (file, store) = fresh().await;
    let plain = store.plain_outbox("billing", ["payments"]).await.unwrap();
    let mut connection = file.connect().await;
    let event = |body: &'static str| Event::to("payments").body(body);
    let mut transaction = connection.begin().await.unwrap();
    plain.publish(&mut transaction, "invoice-1", event("rolled back")).await.unwrap();
    transaction.rollback().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    plain.publish(&mut transaction, "invoice-1", event("1")).await.unwrap();
    plain.publish(&mut transaction, "invoice-1", event("1")).await.unwrap();
    let refused = plain.publish(&mut transaction, "k", Event::to("nowhere")).await.unwrap_err();
    assert!(matches!(refused, PublishPlainError::Refused(_)), "{refused:?}");
    let other = plain.publish(&mut transaction, "invoice-1", event("2")).await.unwrap_err();
    assert!(matches!(other, PublishPlainError::Append(AppendError::Conflict { event: 0 })), "{other:?}");
    transaction.commit().await.unwrap();
    assert_eq!(file.ask("SELECT event_key || ' ' || CAST(payload AS TEXT) FROM idem_outbox").await, ["invoice-1 1"]);
}

/// O38: the question of every few seconds takes the same time, however far behind a destination is.
#[tokio::test]
async fn o38_an_outbox_that_is_far_behind_is_not_counted_to_its_end() {
    let (file, store) = fresh().await;
    let plain = store.plain_outbox("billing", ["payments"]).await.unwrap();
    plain.publish(&mut file.connect().await, "invoice-1", Event::to("payments")).await.unwrap();
    file.run(
        "INSERT INTO idem_outbox (destination, consumer, key_id, event_key, payload, event_hash, state, created_at)
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100003)
        SELECT destination, consumer, CAST(n AS BLOB), n, x'', x'', iif(n <= 100001, 0, 1 + n % 2), created_at
        FROM numbers, (SELECT * FROM idem_outbox WHERE event_key = 'invoice-1');
        UPDATE idem_outbox SET created_at = created_at - 3600000000 WHERE event_key = 'invoice-1'",
    )
    .await;
    let outbox = store.outbox().unwrap();
    for asked in [None, Some(ConsumerName::new("billing").unwrap())] {
        let backlog = outbox.backlog(asked.as_ref()).await.unwrap().remove(0);
        assert_eq!((backlog.pending, backlog.waiting, backlog.failed, backlog.behind), (100_000, 1, 1, 0));
        assert!(backlog.oldest.is_some_and(|age| age >= Duration::from_secs(3_600)), "{backlog:?}");
    }
    let other = ConsumerName::new("other").unwrap();
    assert_eq!(outbox.backlog(Some(&other)).await.unwrap().remove(0).pending, 0);
}
