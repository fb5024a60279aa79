//! `idem forgotten`: takes forgetting back.

use crate::{
    command_line::Forgotten,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Records a transaction.
const CHUNK: i64 = 1_000;

const LIST: &str = "\
SELECT f.batch, c.name AS consumer, c.tenant, pg_catalog.count(*) AS records, pg_catalog.min(f.forgotten_at) AS forgotten_at,
    pg_catalog.count(p.key_id) AS run_again
FROM {schema}.forgotten AS f JOIN {schema}.consumers AS c ON c.id = f.consumer
LEFT JOIN {schema}.processed_messages AS p ON p.consumer = f.consumer AND p.key_id = f.key_id
GROUP BY f.batch, c.name, c.tenant ORDER BY f.batch DESC LIMIT $1::int8";

/// A key that has run again meanwhile keeps its new record. Parameters: 1 batch, 2 how many, 3 who. Result: how many were
/// taken up, and how many are records again.
const RESTORE: &str = "\
WITH taken AS (
    DELETE FROM {schema}.forgotten
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.forgotten WHERE batch = $1::int8 LIMIT $2::int8)) RETURNING *
), back AS (
    INSERT INTO {schema}.processed_messages
        (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at)
    SELECT consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at
    FROM taken ORDER BY consumer, key_id
    ON CONFLICT (consumer, key_id) DO NOTHING RETURNING consumer, idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, 'restore', consumer, nullif(idempotency_key, ''), pg_catalog.format('forgotten as %s', $1::int8) FROM back
)
SELECT (SELECT pg_catalog.count(*) FROM taken), (SELECT pg_catalog.count(*) FROM back)";

pub(crate) async fn run(mut database: Database, command: Forgotten) -> Result<Report, Failure> {
    match command {
        Forgotten::List(limit) => {
            Ok(Report::new().table("forgotten", database.table(LIST, &[Bind::Number(limit.limit)]).await?))
        }
        Forgotten::Restore { batch, yes } => restore(&mut database, batch, yes.yes).await,
    }
}

async fn restore(database: &mut Database, batch: i64, is_yes: bool) -> Result<Report, Failure> {
    let count = "SELECT pg_catalog.count(*) FROM {schema}.forgotten WHERE batch = $1::int8";
    let count = database.number(count, &[Bind::Number(batch)]).await?;
    confirm(&warning(count, batch)?, is_yes)?;
    let by = database.by.clone();
    let (mut taken, mut back) = (0, 0);
    while taken < count {
        let binds = [Bind::Number(batch), Bind::Number(CHUNK), Bind::Text(&by)];
        let [chunk, restored] = database.act_numbers(RESTORE, &binds).await?;
        if chunk == 0 {
            break;
        }
        taken += chunk;
        back += restored;
    }
    Ok(restored(taken, back))
}

/// Restores a batch. Refuses one of which nothing waits.
pub(crate) fn warning(count: i64, batch: i64) -> Result<String, Failure> {
    if count == 0 {
        return Err(Failure::refused(format!("nothing waits that was forgotten as {batch}: idem forgotten list")));
    }
    Ok(format!("This makes {count} forgotten keys records again, so that their messages are duplicates"))
}

/// The numbers of records that waited, and of those that are records again.
pub(crate) fn restored(taken: i64, back: i64) -> Report {
    let again = taken - back;
    Report::said(format!("{back} are records again; {again} have run again meanwhile and keep their new record"))
}
