//! Only evidence makes a failure the database's: whatever a message does to its connection or answers, the others go on, and
//! it ends as a dead letter. On PostgreSQL, where connections can be lost.

use std::{sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, ConsumerName, DedupConsumer, Effects, Handler, HandlerError, Message, Reason, RetryPolicy,
    Store, StoredDeadLetter, Tx, Worker, store::Bookkeeping as _,
};
use idem_sqlx::PostgresStore;
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::{PgPool, query, query_scalar};

use super::scene::{message, within};
use crate::support::postgres::FreshPostgres;

/// What the handler does with the message of key `poison`; it writes the others' keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poison {
    /// Its statement costs the connection, as one does that the server's memory killer meets.
    CostsItsConnection,
    /// It answers with an `io::Error`, of a file or of a provider.
    IoError,
    /// Its statement is on a table that never comes.
    NoSuchTable,
}

impl Handler<PostgresStore> for Poison {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        if key != "poison" {
            query("INSERT INTO effects VALUES ($1)").bind(key).execute(tx.connection()).await?;
            return Ok(());
        }
        match self {
            Self::CostsItsConnection => {
                sqlx::raw_sql("SELECT pg_terminate_backend(pg_backend_pid())").execute(tx.connection()).await?;
            }
            Self::IoError => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?,
            Self::NoSuchTable => {
                sqlx::raw_sql("INSERT INTO effectz VALUES (1)").execute(tx.connection()).await?;
            }
        }
        Ok(())
    }
}

/// Forty good messages around the poison, on two lanes: all are handled, and the poison is set aside.
async fn ends(poison: Poison, waits: Duration) -> StoredDeadLetter {
    let database = FreshPostgres::create("idem_evidence").await.without_waiting_for_the_disk().await;
    let pool = PgPool::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE effects (key text PRIMARY KEY)").execute(&pool).await.unwrap();
    let store = Arc::new(PostgresStore::connect(&database.url()).await.unwrap());
    store.migrate().await.unwrap();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    for number in 0..20 {
        queue.publish(message(&format!("a{number}"), "x")).unwrap();
    }
    queue.publish(message("poison", "x")).unwrap();
    for number in 0..20 {
        queue.publish(message(&format!("b{number}"), "x")).unwrap();
    }
    let consumer = DedupConsumer::builder_shared(Arc::clone(&store), "ledger")
        .handler(poison)
        .effects(Effects::InTransaction)
        .lanes(2)
        .build()
        .unwrap();
    let worker = Worker::builder(consumer, queue.source())
        .retry(RetryPolicy::new(3, Duration::from_millis(1), Duration::from_millis(5)))
        .database_wait_max(waits)
        .cleanup(None)
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    within("draining the queue", queue.drained()).await;
    stop.cancel();
    let summary = within("the worker's end", task).await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (40, 1));
    let effects: i64 = query_scalar("SELECT count(*) FROM effects").fetch_one(&pool).await.unwrap();
    assert_eq!(effects, 40);
    let mut letters = store.bookkeeping().dead_letters(&ConsumerName::new("ledger").unwrap(), 10).await.unwrap();
    pool.close().await;
    drop(store);
    database.remove().await;
    assert_eq!(letters.len(), 1);
    letters.remove(0)
}

/// D24: the database answers over another connection, so it is not the database.
#[tokio::test(flavor = "multi_thread")]
async fn d24_a_message_that_costs_its_connection_stops_nobody() {
    let letter = ends(Poison::CostsItsConnection, Duration::from_secs(3_600)).await;
    assert_eq!((letter.reason, letter.attempts), (Reason::AttemptsExhausted, 3));
}

/// D25: an `io::Error` may be of anything that a handler calls.
#[tokio::test(flavor = "multi_thread")]
async fn d25_an_io_error_of_a_handler_is_not_the_databases() {
    let letter = ends(Poison::IoError, Duration::from_secs(3_600)).await;
    assert_eq!((letter.reason, letter.attempts), (Reason::AttemptsExhausted, 3));
}

/// D26: what the database cannot serve is waited for, and not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn d26_a_table_that_never_comes_is_charged_after_a_while() {
    let letter = ends(Poison::NoSuchTable, Duration::from_millis(50)).await;
    assert_eq!((letter.reason, letter.attempts), (Reason::AttemptsExhausted, 3));
    assert!(letter.error.contains("42P01"), "{}", letter.error);
}
