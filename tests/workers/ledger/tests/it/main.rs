//! The effects of the handlers, read back from PostgreSQL and SQLite.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

use idem_testkit::Decide as _;
use std::path::PathBuf;

use idem_core::{Concurrency, Decision, DedupConsumer, Effects, Message, Store, dead_letter::Reason};
use idem_sqlx::{PostgresOptions, PostgresStore, SqliteStore};
use ledger::{Ledger, POSTGRES_TABLES, SQLITE_TABLES};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection, query_as, query_scalar, raw_sql};

/// Which of the two handlers, and how it runs.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Each,
    EachAtOnce,
    Batch,
}

fn purchase(key: &str, customer: &str, cents: i64) -> Message {
    let payload = format!(r#"{{"customer":"{customer}","day":"1997-01-31","cds":2,"cents":{cents},"shop":"x"}}"#);
    Message::new(payload).with_header("idempotencykey", key.to_owned())
}

macro_rules! consumer {
    ($store:expr, $kind:expr) => {{
        let consumer = DedupConsumer::builder($store, "ledger").effects(Effects::InTransaction).publish_to(["told"]);
        let ledger = Ledger::announcing(Some("told"));
        match $kind {
            Kind::Each => consumer.handler(ledger),
            Kind::EachAtOnce => consumer.handler(ledger).handlers(Concurrency::pipelined()),
            Kind::Batch => consumer.batch_handler(ledger),
        }
        .build()
        .unwrap()
    }};
}

/// Handles the same messages on every store, and checks the outcomes of those that are not simply processed.
async fn handle<S: Store>(consumer: &DedupConsumer<S>) {
    let messages = vec![
        purchase("a", "2", 100),
        purchase("b", "1", 10),
        purchase("c", "2", 1),
        purchase("b", "1", 10),
        purchase("bad", "1", -5),
        purchase("quote", "O'Neill \\\" €", i64::MAX),
    ];
    let decisions = consumer.decisions(messages.clone()).await.unwrap();
    for (number, decision) in decisions.iter().enumerate() {
        match number {
            3 => assert!(decision.is_skipped(), "{decision:?}"),
            4 => assert!(matches!(decision, Decision::Failed(failure) if failure.reason == Reason::Malformed)),
            _ => assert!(decision.is_processed(), "{number}: {decision:?}"),
        }
    }
    for (number, decision) in consumer.decisions(messages).await.unwrap().iter().enumerate() {
        assert!(number == 4 || decision.is_skipped(), "{number}: {decision:?}");
    }
    // A total that no longer fits is an error, and leaves nothing behind.
    let decisions = consumer.decisions(vec![purchase("more", "O'Neill \\\" €", 1)]).await.unwrap();
    assert!(matches!(&decisions[0], Decision::Failed(_)), "{decisions:?}");
    let decisions = consumer.decisions(vec![purchase("d", "2", 0)]).await.unwrap();
    assert!(decisions[0].is_processed());
}

type Row = (String, String, String, i64, i64);

fn rows() -> [Row; 5] {
    let row = |key: &str, customer: &str, cents| (key.into(), customer.into(), "1997-01-31".into(), 2, cents);
    let quote = row("quote", "O'Neill \" €", i64::MAX);
    [row("a", "2", 100), row("b", "1", 10), row("c", "2", 1), row("d", "2", 0), quote]
}

fn totals() -> [(String, i64, i64); 3] {
    [("1".into(), 1, 10), ("2".into(), 3, 101), ("O'Neill \" €".into(), 1, i64::MAX)]
}

/// The events of the purchases, in the order of their messages: customer, content and id, which is the same on every store,
/// with every kind of handler and for ever.
fn told() -> [(String, String, String, String); 5] {
    let told = |key: &str, customer: &str, cents: i64, id: &str| {
        let members = format!(r#""customer":"{customer}","day":"1997-01-31","cds":2,"cents":{cents}"#);
        let customer = customer.replace("\\\"", "\"");
        (customer, format!(r#"{{"purchase":"{key}",{members}}}"#), "PurchaseRecorded".to_owned(), id.to_owned())
    };
    [
        told("a", "2", 100, "142f141e-a87a-8229-98a6-ce9406287165"),
        told("b", "1", 10, "108ec708-30bc-862b-81d4-7b6855a328ed"),
        told("c", "2", 1, "6d5e71e3-1230-8008-8b6b-1759ee173fd3"),
        told("quote", "O'Neill \\\" €", i64::MAX, "2dc018aa-0092-8dfd-b560-1a927ba83873"),
        told("d", "2", 0, "439c4292-ee41-804c-aece-5c8b15619942"),
    ]
}

#[tokio::test]
async fn each_purchase_counts_once_on_postgres() {
    for (is_sqlx, kind) in
        [(true, Kind::Each), (true, Kind::Batch), (false, Kind::Each), (false, Kind::EachAtOnce), (false, Kind::Batch)]
    {
        let (url, schema) = fresh_schema().await;
        let mut connection = PgConnection::connect(&url).await.unwrap();
        // Its tables serve the other client's too.
        let store = postgres(&url, &schema).await;
        if is_sqlx {
            handle(&consumer!(store, kind)).await;
        } else {
            let options = idem_tokio_postgres::PostgresOptions::parse(&url).unwrap().schema(store.schema().clone());
            handle(&consumer!(options.build().unwrap(), kind)).await;
        }

        let text = "SELECT idempotency_key, customer, day::text, cds::bigint, cents FROM purchases ORDER BY 1";
        let purchases: Vec<Row> = query_as(text).fetch_all(&mut connection).await.unwrap();
        assert_eq!(purchases, rows(), "{kind:?}");
        let text = "SELECT customer, purchases, cents FROM customers ORDER BY customer COLLATE \"C\"";
        let customers: Vec<(String, i64, i64)> = query_as(text).fetch_all(&mut connection).await.unwrap();
        assert_eq!(customers, totals(), "{kind:?}");
        let text = format!(
            "SELECT convert_from(ordering_key, 'UTF8'), convert_from(payload, 'UTF8'), event_type, event_key
             FROM {schema}_idem.outbox ORDER BY number"
        );
        let events: Vec<(String, String, String, String)> =
            query_as(AssertSqlSafe(text)).fetch_all(&mut connection).await.unwrap();
        assert_eq!(events, told(), "{kind:?}");
        let text = "SELECT DISTINCT handled_by FROM purchases WHERE at > now() - interval '1 hour'";
        let handled_by: Vec<String> = query_scalar(text).fetch_all(&mut connection).await.unwrap();
        assert!(handled_by.len() == 1 && is_this_process(&handled_by[0]), "{handled_by:?}");
        remove_schema(&mut connection, &schema).await;
    }
}

/// Two batches that changed the same customers in different orders would wait for each other in a ring.
#[tokio::test]
async fn a_batch_changes_customers_in_sorted_order_on_postgres() {
    let (url, schema) = fresh_schema().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let consumer = consumer!(postgres(&url, &schema).await, Kind::Batch);
    let messages =
        (0..100).map(|n| purchase(&format!("key-{n}"), &format!("{:03}", n * 37 % 100), 1)).collect::<Vec<_>>();
    consumer.decisions(messages).await.unwrap();
    let customers: Vec<String> =
        query_scalar("SELECT customer FROM customers ORDER BY ctid").fetch_all(&mut connection).await.unwrap();
    assert_eq!(customers, (0..100).map(|n| format!("{n:03}")).collect::<Vec<_>>(), "as they lie on the disk");
    remove_schema(&mut connection, &schema).await;
}

#[tokio::test]
async fn each_purchase_counts_once_on_sqlite() {
    for kind in [Kind::Each, Kind::Batch] {
        let path = std::env::temp_dir().join(format!("ledger-{:08x}.db", fastrand::u32(..)));
        let store = SqliteStore::open(&path).await.unwrap();
        store.migrate().await.unwrap();
        let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        let create = format!("{SQLITE_TABLES}; {SQLITE_TABLES}");
        raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        handle(&consumer!(store, kind)).await;

        let text = "SELECT idempotency_key, customer, day, cds, cents FROM purchases ORDER BY 1";
        let purchases: Vec<Row> = query_as(text).fetch_all(&mut connection).await.unwrap();
        assert_eq!(purchases, rows(), "{kind:?}");
        let text = "SELECT customer, purchases, cents FROM customers ORDER BY customer";
        let customers: Vec<(String, i64, i64)> = query_as(text).fetch_all(&mut connection).await.unwrap();
        assert_eq!(customers, totals(), "{kind:?}");
        let text = "SELECT CAST(ordering_key AS TEXT), CAST(payload AS TEXT), event_type, event_key FROM idem_outbox ORDER BY number";
        let events: Vec<(String, String, String, String)> = query_as(text).fetch_all(&mut connection).await.unwrap();
        assert_eq!(events, told(), "{kind:?}");
        let text = "SELECT DISTINCT handled_by FROM purchases WHERE at > '2020-01-01T'";
        let handled_by: Vec<String> = query_scalar(text).fetch_all(&mut connection).await.unwrap();
        assert!(handled_by.len() == 1 && is_this_process(&handled_by[0]), "{handled_by:?}");
        connection.close().await.unwrap();
        remove(path);
    }
}

/// A schema with the tables, and a URL whose path leads there, because the handlers name none.
async fn fresh_schema() -> (String, String) {
    let server = std::env::var("IDEM_POSTGRES_URL");
    let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
    let schema = format!("ledger_{:08x}", fastrand::u32(..));
    let separator = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{separator}options=-csearch_path%3D{schema}");
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL answers: ./servers up postgres");
    let create = format!("CREATE SCHEMA {schema}; {POSTGRES_TABLES}; {POSTGRES_TABLES}");
    raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
    (url, schema)
}

/// A store with its tables beside that schema.
async fn postgres(url: &str, schema: &str) -> PostgresStore {
    let options = PostgresOptions::parse(url).unwrap().schema(format!("{schema}_idem").parse().unwrap());
    let store = options.build().unwrap();
    store.migrate().await.unwrap();
    store
}

async fn remove_schema(connection: &mut PgConnection, schema: &str) {
    let drop = format!("DROP SCHEMA {schema} CASCADE; DROP SCHEMA {schema}_idem CASCADE");
    raw_sql(AssertSqlSafe(drop)).execute(connection).await.unwrap();
}

/// `host:process id`.
fn is_this_process(handled_by: &str) -> bool {
    handled_by.split_once(':').is_some_and(|(host, id)| !host.is_empty() && id == std::process::id().to_string())
}

fn remove(path: PathBuf) {
    for suffix in ["", "-wal", "-shm"] {
        // The last connection to close removes the other two itself.
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
}
