//! `idem forgotten` on a file.

use super::file::{Bind, File};
use crate::{command_line::Forgotten, commands::forgotten, confirm::confirm, exit::Failure, report::Report};

const LIST: &str = r#"
SELECT f.batch, c.name AS consumer, c.tenant, count(*) AS records, {at}min(f.forgotten_at){} AS forgotten_at,
    count(p.key_id) AS run_again
FROM "{schema}_forgotten" AS f JOIN "{schema}_consumers" AS c ON c.id = f.consumer
LEFT JOIN "{schema}_processed_messages" AS p ON p.consumer = f.consumer AND p.key_id = f.key_id
GROUP BY f.batch, c.name, c.tenant ORDER BY f.batch DESC LIMIT ?1"#;

/// A key that has run again meanwhile keeps its new record. Parameters: 1 batch, 2 who.
const RESTORE: [&str; 3] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, 'restore', f.consumer, nullif(f.idempotency_key, ''), 'forgotten as ' || ?1 FROM "{schema}_forgotten" AS f
WHERE f.batch = ?1 AND NOT EXISTS (
    SELECT 1 FROM "{schema}_processed_messages" AS p WHERE p.consumer = f.consumer AND p.key_id = f.key_id)"#,
    r#"INSERT INTO "{schema}_processed_messages"
    (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at)
SELECT consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at
FROM "{schema}_forgotten" WHERE batch = ?1
ON CONFLICT (consumer, key_id) DO NOTHING"#,
    r#"DELETE FROM "{schema}_forgotten" WHERE batch = ?1"#,
];

pub(super) async fn run(mut file: File, command: Forgotten) -> Result<Report, Failure> {
    match command {
        Forgotten::List(limit) => Ok(Report::new().table("forgotten", file.table(LIST, &[limit.limit.into()]).await?)),
        Forgotten::Restore { batch, yes } => restore(file, batch, yes.yes).await,
    }
}

async fn restore(mut file: File, batch: i64, is_yes: bool) -> Result<Report, Failure> {
    let count = r#"SELECT count(*) FROM "{schema}_forgotten" WHERE batch = ?1"#;
    let count = file.number(count, &[batch.into()]).await?;
    confirm(&forgotten::warning(count, batch)?, is_yes)?;
    let by = file.by.clone();
    let binds: [Bind<'_>; 2] = [batch.into(), by.as_str().into()];
    let [_, back, taken] = file.act(RESTORE, &binds).await?;
    Ok(forgotten::restored(taken, back))
}
