//! Fills a table of records as it would have grown, with keys in no order, by many rows a statement.

use std::{error::Error, ops::Range, time::Duration};

use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::Instant;
use uuid::Uuid;

use crate::postgres::Round;

pub(super) const GROWN: &str = "idem_bench_grown";
pub(super) const PARTITIONED: &str = "idem_bench_partitioned";

/// Rows that are inserted with one statement, in the order of their keys: each page of the index is then touched once a
/// statement, and splits as it would have.
pub(crate) const AT_ONCE: usize = 500_000;

/// Rows whose keys stand in one page of the index.
const ROWS_A_PAGE: usize = 140;

/// The rows that a table is filled with: they bear numbers.
pub(crate) struct Filling<'a> {
    pub(crate) schema: &'a str,
    /// How many consumers have their records in it.
    pub(crate) consumers: usize,
    /// When row `n` expires, in SQL; a claim rounds to the minute too.
    pub(crate) expires: &'a str,
}

impl Filling<'_> {
    /// About 5 µs a row: 50 million take some minutes, and 15 GB with what is written ahead.
    pub(crate) async fn fill(&self, connection: &mut PgConnection, rows: Range<usize>) -> Result<(), Box<dyn Error>> {
        for from in rows.clone().step_by(AT_ONCE) {
            self.insert(connection, from..rows.end.min(from + AT_ONCE)).await?;
        }
        let vacuum = format!("VACUUM ANALYZE {}.processed_messages", self.schema);
        sqlx::raw_sql(AssertSqlSafe(vacuum)).execute(connection).await?;
        Ok(())
    }

    /// Inserts these rows with one statement.
    pub(crate) async fn insert(&self, connection: &mut PgConnection, rows: Range<usize>) -> Result<(), Box<dyn Error>> {
        let Self { schema, consumers, expires } = self;
        let insert = format!(
            "INSERT INTO {schema}.processed_messages
                 (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
             SELECT id, date_trunc('minute', {expires}), consumer, 1, 1, id::text, sha256(uuid_send(id))
             FROM (SELECT n, 1 + n % {consumers} AS consumer, gen_random_uuid() AS id
                   FROM generate_series($1::int8, $2::int8 - 1) AS n ORDER BY consumer, id) AS filled"
        );
        let query = sqlx::query(AssertSqlSafe(insert)).bind(i64::try_from(rows.start)?);
        query.bind(i64::try_from(rows.end)?).execute(connection).await?;
        Ok(())
    }
}

/// The same table in sixteen partitions by hash of the key id. No store takes it, because partitions by anything else let
/// a key in twice; the claim's statement alone shows whether they would pay.
pub(super) async fn partition(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut statements = format!(
        "DROP SCHEMA IF EXISTS {PARTITIONED} CASCADE;
         CREATE SCHEMA {PARTITIONED};
         CREATE TABLE {PARTITIONED}.processed_messages (LIKE {GROWN}.processed_messages INCLUDING DEFAULTS,
             PRIMARY KEY (consumer, key_id)) PARTITION BY HASH (key_id);
         CREATE INDEX ON {PARTITIONED}.processed_messages (expires_at);"
    );
    for n in 0..16 {
        statements += &format!(
            "CREATE TABLE {PARTITIONED}.p{n} PARTITION OF {PARTITIONED}.processed_messages
                 FOR VALUES WITH (MODULUS 16, REMAINDER {n})
                 WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.02);"
        );
    }
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await?;
    Ok(())
}

/// Claims batches of 500 new keys, each in a transaction of its own, and nothing else, until they are enough.
pub(super) async fn claims(
    connection: &mut PgConnection,
    schema: &str,
    is_enough: impl Fn(usize, Duration) -> bool,
) -> Result<Round, sqlx::Error> {
    let claim = format!(
        "INSERT INTO {schema}.processed_messages
             (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
         SELECT id, date_trunc('minute', now()) + interval '7 days 1 minute', 1, 1, 1, id::text, sha256(uuid_send(id))
         FROM (SELECT id FROM unnest($1::uuid[]) AS asked (id) ORDER BY id) AS asked
         ON CONFLICT (consumer, key_id) DO NOTHING RETURNING key_id"
    );
    let (started, mut done) = (Instant::now(), 0);
    while !is_enough(done, started.elapsed()) {
        let keys: Vec<Uuid> = (0..500).map(|_| Uuid::new_v4()).collect();
        done += sqlx::query(AssertSqlSafe(claim.clone())).bind(keys).fetch_all(&mut *connection).await?.len();
    }
    Ok(Round { messages: done, took: started.elapsed(), effects: done })
}

/// Changes nearly every page of the index of so many rows. The first change of a page after a checkpoint writes all of it
/// ahead: that is paid once a checkpoint, and must not be paid in each round.
pub(super) async fn warm_up(connection: &mut PgConnection, schema: &str, rows: usize) -> Result<(), sqlx::Error> {
    claims(connection, schema, |done, _| done >= rows / ROWS_A_PAGE * 3).await?;
    Ok(())
}
