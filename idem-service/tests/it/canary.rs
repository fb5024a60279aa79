//! S4: a value of a payload, a header or a row is in no output of a worker: not in its log at TRACE, its summary, its
//! metrics, its page or its readiness. Nor are the texts of errors that quote it.

use idem_core::Message;
use sqlx::{Connection as _, SqliteConnection};

use crate::{
    admin::Admin,
    place::{Place, purchase},
    postgres::Database,
    process::Worker,
};

const CANARY: &str = "canary4111";

/// A row that the handler's statements meet, with a rule whose violation quotes it.
const POSTGRES_ROW: &str = "
    INSERT INTO customers VALUES ('canary4111-row', 1, 1);
    ALTER TABLE customers ADD CONSTRAINT no_canary CHECK (customer NOT LIKE 'canary4111-row' OR purchases < 2)";

const SQLITE_ROW: &str = "
    INSERT INTO customers VALUES ('canary4111-row', 1, 1);
    CREATE TRIGGER no_canary BEFORE UPDATE ON customers
    BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END";

fn publish(place: &Place) {
    let with_headers = |payload: String| {
        let message = Message::new(payload).with_header("card", CANARY).with_header("traceparent", CANARY);
        place.orders.publish(message).unwrap();
    };
    with_headers(purchase("a", CANARY, 1));
    with_headers(purchase("a", CANARY, 1));
    with_headers(purchase("a", CANARY, 2));
    with_headers(purchase("row", &format!("{CANARY}-row"), 3));
    with_headers(format!(r#"{{"idempotencykey":"b","customer":"{CANARY}","cds":"{CANARY}"}}"#));
    with_headers(format!(r#"{{"idempotencykey":"c","customer":"1","day":"{CANARY}","cds":1,"cents":1}}"#));
    with_headers(format!(r#"{{"idempotencykey":{{"{CANARY}":1}}}}"#));
    with_headers(CANARY.to_owned());
}

async fn nothing_is_told(place: Place, worker: Worker) {
    publish(&place);
    let mut running = worker.variable("RUST_LOG", "trace").start();
    let admin = Admin::of(&mut running).await;
    place.orders.drained().await;
    let mut told = Vec::new();
    for (path, shown) in [
        ("/", "Recent dead letters"),
        ("/metrics", "idem_dead_letter_reasons_total{consumer=\"ledger\",reason=\"malformed\"}"),
        ("/readyz", "\"ready\":true"),
        ("/healthz", "ok"),
    ] {
        let (code, body) = admin.get(path).await;
        assert!(code == 200 && body.contains(shown), "{path}: {body}");
        told.push((path, body));
    }
    running.signal("TERM").await;
    let ended = running.ended().await.with(0);
    let summary = ended.summary();
    assert_eq!((&summary["conflicts"], &summary["dead_lettered"]), (&1.into(), &6.into()), "{}", ended.log);
    let is_span = |line: &str| line.contains(":process{") || line.contains(r#""name":"process""#);
    assert!(ended.log.lines().any(is_span), "no span is told:\n{}", ended.log);
    told.push(("the summary", ended.output));
    told.push(("the log", ended.log));
    for (place, text) in told {
        let leak = text.lines().find(|line| line.contains(CANARY));
        assert!(leak.is_none(), "{place} has it: {}", leak.unwrap_or_default());
    }
    place.remove();
}

#[tokio::test]
async fn s4_nothing_of_a_message_or_a_row_is_told_on_postgres() {
    for arguments in ["--log-format text", "--log-format json --store tokio-postgres", "--batch-handler"] {
        let (database, place) = (Database::fresh().await, Place::new().await);
        let (url, socket) = (database.url(), place.socket());
        let start = format!("--database-url {url} --socket {socket} --consumer ledger --migrate --create-tables");
        Worker::bare(&format!("{start} --until-idle 10ms")).run().await.with(0);
        sqlx::raw_sql(POSTGRES_ROW).execute(&mut database.connect().await).await.unwrap();
        nothing_is_told(place, Worker::bare(&format!("{start} --admin 0 {arguments}"))).await;
        database.remove().await;
    }
}

#[tokio::test]
async fn s4_nothing_of_a_message_or_a_row_is_told_on_sqlite() {
    let place = Place::new().await;
    Worker::at(&place, "--until-idle 10ms").run().await.with(0);
    let mut connection = SqliteConnection::connect(&place.url()).await.unwrap();
    sqlx::raw_sql(SQLITE_ROW).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let worker = Worker::at(&place, "--admin 0");
    nothing_is_told(place, worker).await;
}
