//! `DedupConsumer` in a loop that is not its own: a function that a serverless runtime calls with batches of messages
//! from SQS, and that answers which of them are to come back.
//!
//! Copy [`function`]; this file plays the runtime, with the failures of a day.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a person looks at it")]

mod event;
mod function;

use std::process::ExitCode;

use idem_core::{BoxError, DedupConsumer, Effects};
use idem_sqlx::SqliteStore;
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::{event::Event, function::Ledger};

/// With a limit that the handler meets, so that there is a failure that passes.
const TABLE: &str = "
    CREATE TABLE purchases (customer TEXT, cents INTEGER);
    CREATE TRIGGER refuses BEFORE INSERT ON purchases WHEN new.cents > 1000000
    BEGIN SELECT RAISE (ABORT, 'too much for today'); END";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("own-loop: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), BoxError> {
    let file = std::env::temp_dir().join(format!("own-loop-{}.db", std::process::id()));
    let outcome = play(&file).await;
    for suffix in ["", "-wal", "-shm"] {
        // Whether they are there depends on how it ended.
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    outcome
}

async fn play(file: &std::path::Path) -> Result<(), BoxError> {
    let url = format!("sqlite://{}?mode=rwc", file.display());
    let mut database = SqliteConnection::connect(&url).await?;
    sqlx::raw_sql(TABLE).execute(&mut database).await?;
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;
    let consumer = DedupConsumer::builder(store, "ledger").handler(Ledger).effects(Effects::InTransaction).build()?;

    let one = purchase("m-1", "order-1", "anna", 1177);
    let two = purchase("m-2", "order-2", "ben", 4200);
    let batch = vec![one.clone(), two, purchase("m-3", "order-1", "anna", 1177)];
    call(&consumer, "a batch with a second send of order-1", "orders", &batch).await?;
    call(&consumer, "the same batch, because the runtime died before it deleted anything", "orders", &batch).await?;
    let altered = vec![
        purchase("m-4", "order-1", "anna", 9999),
        record("m-5", "no JSON"),
        purchase("m-6", "order-3", "cleo", 300),
    ];
    call(&consumer, "order-1 with another amount, something that nobody can read, and order-3", "orders", &altered)
        .await?;
    let group = |record: Value, group: &str| {
        let mut record = record;
        record["attributes"]["MessageGroupId"] = group.into();
        record
    };
    let ordered = |limit: i64| {
        vec![
            group(purchase("m-7", "order-4", "anna", 100), "anna"),
            group(purchase("m-8", "order-5", "anna", limit), "anna"),
            group(purchase("m-9", "order-6", "anna", 300), "anna"),
            group(purchase("m-10", "order-7", "ben", 400), "ben"),
        ]
    };
    call(&consumer, "groups of a FIFO queue; the database refuses order-5", "orders.fifo", &ordered(5_000_000)).await?;
    sqlx::raw_sql("DROP TRIGGER refuses").execute(&mut database).await?;
    call(&consumer, "what came back of them, after the database was mended", "orders.fifo", &ordered(5_000_000)[1..3])
        .await?;

    let ledger: Vec<(String, i64)> =
        sqlx::query_as("SELECT customer, cents FROM purchases ORDER BY rowid").fetch_all(&mut database).await?;
    println!("the ledger, in the order of its writing");
    for (customer, cents) in ledger {
        println!("  {customer} {cents}");
    }
    Ok(())
}

/// Calls the function as the runtime does: with JSON, and for JSON.
async fn call(
    consumer: &DedupConsumer<SqliteStore>,
    what: &str,
    queue: &str,
    records: &[Value],
) -> Result<(), BoxError> {
    let mut records = records.to_vec();
    for record in &mut records {
        record["eventSourceARN"] = format!("arn:aws:sqs:eu-central-1:123456789012:{queue}").into();
    }
    let event: Event = serde_json::from_value(json!({ "Records": records }))?;
    let response = function::handle(consumer, event).await?;
    println!("{what}\n  {}", serde_json::to_string(&response)?);
    Ok(())
}

fn record(id: &str, body: &str) -> Value {
    json!({ "messageId": id, "receiptHandle": "r", "body": body, "attributes": {}, "messageAttributes": {}, "eventSource": "aws:sqs" })
}

fn purchase(id: &str, key: &str, customer: &str, cents: i64) -> Value {
    record(id, &json!({ "idempotencykey": key, "customer": customer, "cents": cents }).to_string())
}
