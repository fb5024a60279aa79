//! `idem retention set`.

use std::time::Duration;

use crate::{
    command_line::Retention,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Records a transaction.
const CHUNK: i64 = 5_000;

/// The bounds that workers have for `--retention`, in seconds: a minute and ten years.
const BOUNDS: std::ops::RangeInclusive<i64> = 60..=10 * 365 * 24 * 3600;

/// As the claim rounds it, so that a record is kept as long as one that is made anew. Goes through the primary key, and
/// returns where it stopped. Parameters: 1 consumer, 2 seconds, 3 behind this key id, 4 how many.
const REWRITE: &str = "\
WITH slice AS MATERIALIZED (
    SELECT key_id FROM {schema}.processed_messages
    WHERE consumer = $1::int8::int4 AND ($3::text IS NULL OR key_id > $3::text::uuid)
    ORDER BY key_id LIMIT $4::int8
), written AS (
    UPDATE {schema}.processed_messages AS p
    SET expires_at = pg_catalog.date_trunc('minute', processed_at + ($2::int8::float8 * interval '1 s') + interval '59.999999 s', 'UTC')
    FROM slice WHERE p.consumer = $1::int8::int4 AND p.key_id = slice.key_id RETURNING p.key_id
)
SELECT (SELECT pg_catalog.count(*) FROM written) AS rewritten, (SELECT pg_catalog.max(key_id::text) FROM slice) AS last";

const NOTE: &str = "\
WITH changed AS (
    UPDATE {schema}.consumers SET retention = $2::int8::float8 * interval '1 s' WHERE name = $1::text RETURNING id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $3::text, 'retention', id, pg_catalog.format('%s s for records that are there', $2::int8) FROM changed
)
SELECT pg_catalog.count(*) FROM changed";

pub(crate) async fn run(mut database: Database, command: Retention) -> Result<Report, Failure> {
    let Retention::Set { consumer, time, existing: _, yes } = command;
    database.known(&consumer).await?;
    let seconds = seconds(time)?;
    let counted = "SELECT pg_catalog.count(*) FROM {schema}.processed_messages AS p
        JOIN {schema}.consumers AS c ON c.id = p.consumer WHERE c.name = $1::text";
    let count = database.number(counted, &[Bind::Text(&consumer)]).await?;
    confirm(&warning(count, &consumer), yes.yes)?;
    let by = database.by.clone();
    database.act(NOTE, &[Bind::Text(&consumer), Bind::Number(seconds), Bind::Text(&by)]).await?;
    let scopes = "SELECT id FROM {schema}.consumers WHERE name = $1::text ORDER BY id";
    let scopes = database.table(scopes, &[Bind::Text(&consumer)]).await?;
    let mut rewritten = 0;
    for scope in scopes.rows() {
        rewritten += rewrite(&mut database, scope.number("id"), seconds).await?;
    }
    Ok(self::rewritten(rewritten))
}

/// A retention within the bounds that workers have.
pub(crate) fn seconds(time: Duration) -> Result<i64, Failure> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    if BOUNDS.contains(&seconds) {
        return Ok(seconds);
    }
    Err(Failure::refused("the retention must be from 1 minute to 10 years"))
}

pub(crate) fn warning(count: i64, consumer: &str) -> String {
    format!(
        "This rewrites until when {count} records of {consumer} are kept. Those that expire by it are removed by the next \
         cleanup, and if their messages come again, they take effect once more"
    )
}

pub(crate) fn rewritten(rewritten: i64) -> Report {
    Report::said(format!("{rewritten} rewritten. New records are kept for what --retention of the workers says."))
}

async fn rewrite(database: &mut Database, scope: i64, seconds: i64) -> Result<i64, Failure> {
    let (mut rewritten, mut last) = (0, None::<String>);
    loop {
        let binds = [Bind::Number(scope), Bind::Number(seconds), Bind::TextOr(last.as_deref()), Bind::Number(CHUNK)];
        let (rows, behind) = database.slice(REWRITE, &binds).await?;
        if behind.is_none() {
            return Ok(rewritten);
        }
        rewritten += rows;
        last = behind;
    }
}
