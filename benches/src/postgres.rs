//! The work *insert*, one row into `orders` a message, by hand and through idem, on one connection each.

use std::{error::Error, time::Duration};

use idem_core::{
    BatchAnswer, BatchHandler, DedupConsumer, DedupConsumerBuilder, Effects, Handler, HandlerError, Message, Tx,
};
use idem_sqlx::{Postgres, PostgresOptions};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    backlog,
    report::{self, Case},
};

pub(crate) const INSERT: &str = "INSERT INTO idem_bench.orders (id, body) VALUES ($1, $2::jsonb)";

pub(crate) fn body(n: usize) -> String {
    // 200 bytes of JSON.
    format!(
        r#"{{"customer":"{:05}","day":"1997-01-01","cds":1,"cents":1177,"note":"{}"}}"#,
        n % 10_000,
        "x".repeat(127)
    )
}

fn message(n: usize) -> Message {
    Message::new(body(n)).with_header("idempotencykey", Uuid::new_v4().to_string())
}

pub(crate) struct Insert;

impl Handler<Postgres> for Insert {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        let body = message.payload().ok_or("no payload")?;
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(std::str::from_utf8(body)?).execute(tx.connection()).await?;
        Ok(())
    }
}

impl BatchHandler<Postgres> for Insert {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, Postgres>,
    ) -> Result<BatchAnswer, HandlerError> {
        let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::new_v4()).collect();
        let bodies: Vec<&str> = messages
            .iter()
            .map(|message| std::str::from_utf8(message.payload().map_or(&[], |payload| &payload[..])))
            .collect::<Result<_, _>>()?;
        let rows =
            "INSERT INTO idem_bench.orders SELECT id, body::jsonb FROM unnest($1::uuid[], $2::text[]) AS o (id, body)";
        sqlx::query(rows).bind(ids).bind(bodies).execute(tx.connection()).await?;
        Ok(BatchAnswer::all_handled())
    }
}

/// At least once: begin, handler, commit, and no look at duplicates.
async fn at_least_once(connection: &mut PgConnection, messages: usize) -> Result<(), sqlx::Error> {
    for n in 0..messages {
        let mut tx = connection.begin().await?;
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body(n)).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The bare statement, which is all that a handler of one statement needs where duplicates do not matter.
async fn autocommit(connection: &mut PgConnection, messages: usize) -> Result<(), sqlx::Error> {
    for n in 0..messages {
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body(n)).execute(&mut *connection).await?;
    }
    Ok(())
}

/// The textbook: begin, insert the key on conflict do nothing, handler, commit.
async fn textbook(connection: &mut PgConnection, messages: usize) -> Result<(), sqlx::Error> {
    let claim = "INSERT INTO idem_bench.seen (consumer, message_id) VALUES ('bench', $1) ON CONFLICT DO NOTHING";
    for n in 0..messages {
        let mut tx = connection.begin().await?;
        let claimed = sqlx::query(claim).bind(Uuid::new_v4().to_string()).execute(&mut *tx).await?;
        if claimed.rows_affected() == 1 {
            sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body(n)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Through a worker with one lane.
async fn idem(
    consumer: DedupConsumerBuilder<Postgres>,
    batch: usize,
    messages: usize,
) -> Result<Duration, Box<dyn Error>> {
    let consumer = consumer.effects(Effects::InTransaction).lanes(1).build()?;
    backlog::consume(consumer, batch, messages, message).await
}

pub(crate) async fn fresh(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let tables = "DROP SCHEMA IF EXISTS idem_bench CASCADE; CREATE SCHEMA idem_bench; \
                  CREATE TABLE idem_bench.orders (id uuid PRIMARY KEY, body jsonb NOT NULL); \
                  CREATE TABLE idem_bench.seen (consumer text, message_id text, at timestamptz DEFAULT now(), \
                                                PRIMARY KEY (consumer, message_id))";
    sqlx::raw_sql(tables).execute(&mut *connection).await?;
    sqlx::raw_sql("CHECKPOINT").execute(connection).await?;
    Ok(())
}

/// The store on a schema without a row.
pub(crate) async fn store(url: &str) -> Result<Postgres, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql("DROP SCHEMA IF EXISTS idem_bench_records CASCADE").execute(&mut connection).await?;
    let store = PostgresOptions::parse(url)?.schema("idem_bench_records".parse()?).build()?;
    store.migrate().await?;
    Ok(store)
}

pub(crate) async fn insert(url: &str, rounds: usize, messages: usize) -> Result<Value, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut cases = [
        Case::new("at least once by hand: begin, insert, commit"),
        Case::new("the bare statement, autocommit"),
        Case::new("the textbook: begin, claim, insert, commit"),
        Case::new("idem, per-message handler, batches of 100, one lane"),
        Case::new("idem, set-based handler, batches of 500, one lane"),
    ];
    for _ in 0..rounds {
        for (number, case) in cases.iter_mut().enumerate() {
            fresh(&mut connection).await?;
            let started = Instant::now();
            let took = match number {
                0 => at_least_once(&mut connection, messages).await.map(|()| started.elapsed())?,
                1 => autocommit(&mut connection, messages).await.map(|()| started.elapsed())?,
                2 => textbook(&mut connection, messages).await.map(|()| started.elapsed())?,
                3 => idem(DedupConsumer::builder(store(url).await?, "bench").handler(Insert), 100, messages).await?,
                _ => {
                    idem(DedupConsumer::builder(store(url).await?, "bench").batch_handler(Insert), 500, messages)
                        .await?
                }
            };
            let rows: i64 =
                sqlx::query_scalar("SELECT count(*) FROM idem_bench.orders").fetch_one(&mut connection).await?;
            if rows != i64::try_from(messages)? {
                return Err(format!("{}: {rows} rows for {messages} messages", case.name).into());
            }
            case.note(messages, took);
        }
    }
    sqlx::raw_sql("DROP SCHEMA idem_bench CASCADE; DROP SCHEMA idem_bench_records CASCADE")
        .execute(&mut connection)
        .await?;
    let title =
        format!("PostgreSQL, insert of 200-byte JSON, {messages} messages a round, {rounds} rounds interleaved");
    Ok(report::print(&title, &cases))
}
