//! Only evidence makes a failure the database's, or uses up an attempt: when a message breaks its connection or answers any
//! error, the others go on, and it ends as a dead letter. On PostgreSQL, where connections can be lost and claims wait for each
//! other.

use std::{sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, ConsumerName, DedupConsumer, Effects, Handler, HandlerError, Message, Store, Tx, Worker,
    config::RetryPolicy,
    dead_letter::{Reason, StoredDeadLetter},
    handler_fn,
    store::Bookkeeping as _,
};
use idem_sqlx::PostgresStore;
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::{PgPool, query, query_scalar};
use tokio::sync::Semaphore;

use super::fixture::{message, within};
use crate::support::postgres::FreshPostgres;

/// The handler's behaviour for the message of key `poison`; it writes the others' keys.
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
    let database = FreshPostgres::create("idem_evidence").await;
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
    let consumer = DedupConsumer::builder(Arc::clone(&store), "ledger")
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

/// D26: a message that the database cannot serve waits, and not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn d26_a_table_that_never_comes_is_charged_after_a_while() {
    let letter = ends(Poison::NoSuchTable, Duration::from_millis(50)).await;
    assert_eq!((letter.reason, letter.attempts), (Reason::AttemptsExhausted, 3));
    assert!(letter.error.contains("42P01"), "{}", letter.error);
}

/// D29: two workers have a copy each of messages with one attempt, and both stand before the claim, because another session has
/// the keys. The first to get a key then runs its message; none is set aside for an attempt that has not run.
#[tokio::test(flavor = "multi_thread")]
async fn d29_no_copy_is_set_aside_for_an_attempt_that_has_not_run() {
    const LANES: usize = 8;
    let database = FreshPostgres::create("idem_copies").await;
    let pool = PgPool::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE effects (key text PRIMARY KEY)").execute(&pool).await.unwrap();
    let store = Arc::new(PostgresStore::connect(&database.url()).await.unwrap());
    store.migrate().await.unwrap();
    // So many that each lane has one.
    let keys: Vec<String> = (0..80).map(|number| format!("key-{number}")).collect();
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let holder = {
        let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
        let holds = handler_fn(async move |_: &Message, _: &mut Tx<'_, PostgresStore>| {
            begun.add_permits(1);
            // It is closed in the end, which is an error: nothing of this is committed.
            go.acquire().await?.forget();
            Ok(())
        });
        let consumer = DedupConsumer::builder(Arc::clone(&store), "ledger").handler(holds);
        let consumer = consumer.effects(Effects::InTransaction).build().unwrap();
        let copies: Vec<Message> = keys.iter().map(|key| message(key, "x")).collect();
        tokio::spawn(async move { consumer.process(copies).await })
    };
    within("the keys' holder", begun.acquire()).await.unwrap().forget();
    let stop = CancellationToken::new();
    let mut workers = Vec::new();
    for number in 0..2 {
        let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
        let consumer = DedupConsumer::builder(Arc::clone(&store), "ledger").handler(Poison::IoError);
        // Each message runs alone, with its attempt counted.
        let patience = Duration::from_secs(60);
        let consumer =
            consumer.effects(Effects::Outside).handler_deadline(patience).lanes(LANES).busy_timeout(patience);
        let worker = Worker::builder(consumer.build().unwrap(), queue.source())
            .retry(RetryPolicy::new(1, Duration::from_millis(1), Duration::from_millis(5)))
            .cleanup(None)
            .build()
            .unwrap();
        // A lane's first one runs beside no other that may end the process.
        (0..10 * LANES).for_each(|first| drop(queue.publish(message(&format!("first-{number}-{first}"), "x"))));
        let task = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
        within("the first ones", queue.drained()).await;
        keys.iter().for_each(|key| drop(queue.publish(message(key, "x"))));
        workers.push((queue, task));
    }
    within("two workers before their claims", async {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while query_scalar::<_, i64>(waiting).fetch_one(&pool).await.unwrap() < 2 * LANES as i64 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    go.close();
    for (queue, _) in &workers {
        within("draining the queue", queue.drained()).await;
    }
    within("the keys' holder", holder).await.unwrap().unwrap();
    stop.cancel();
    for (_, task) in workers {
        let summary = within("the worker's end", task).await.unwrap().unwrap();
        assert_eq!(summary.dead_lettered, 0);
    }
    let effects: i64 =
        query_scalar("SELECT count(*) FROM effects WHERE key LIKE 'key-%'").fetch_one(&pool).await.unwrap();
    assert_eq!(effects, 80);
    pool.close().await;
    drop(store);
    database.remove().await;
}
