//! `idem stats`.

use crate::{
    commands::{dead_letters::WAITS, stuck::FAILING},
    database::Database,
    exit::Failure,
    report::Report,
};

/// One pass over the records, whose number no index knows.
const STATS: &str = "\
SELECT c.name AS consumer, c.tenant, coalesce(p.records, 0) AS records, p.last_hour, p.oldest, p.newest, p.next_expiry,
    coalesce(p.expired, 0) AS expired, coalesce(a.failing, 0) AS failing, coalesce(d.dead_letters, 0) AS dead_letters,
    coalesce(d.bytes, 0) AS dead_letter_bytes, coalesce(d.copies, 0) AS dead_letter_copies,
    coalesce(d.awaiting_replay, 0) AS awaiting_replay, coalesce(d.waiting, 0) AS waiting
FROM {schema}.consumers AS c
LEFT JOIN (
    SELECT consumer, pg_catalog.count(*) AS records, pg_catalog.count(*) FILTER (WHERE processed_at > pg_catalog.now() - interval '1 hour') AS last_hour,
        pg_catalog.min(processed_at) AS oldest, pg_catalog.max(processed_at) AS newest,
        pg_catalog.min(expires_at) FILTER (WHERE expires_at > pg_catalog.now() AND expires_at < 'infinity') AS next_expiry,
        pg_catalog.count(*) FILTER (WHERE expires_at <= pg_catalog.now()) AS expired
    FROM {schema}.processed_messages GROUP BY consumer
) AS p ON p.consumer = c.id
LEFT JOIN (
    SELECT a.consumer, pg_catalog.count(*) AS failing FROM {schema}.message_attempts AS a WHERE {failing} GROUP BY a.consumer
) AS a ON a.consumer = c.id
LEFT JOIN (
    SELECT d.consumer, pg_catalog.count(*) FILTER (WHERE NOT {waits}) AS dead_letters, pg_catalog.sum(copies) AS copies,
        pg_catalog.count(*) FILTER (WHERE {waits}) AS waiting,
        pg_catalog.sum(CASE WHEN payload IS NULL THEN 0::int8 ELSE payload_bytes END)::int8 AS bytes,
        pg_catalog.count(*) FILTER (WHERE d.state <> 0::int2 AND d.due_by IS NOT NULL) AS awaiting_replay
    FROM {schema}.dead_letters AS d GROUP BY d.consumer
) AS d ON d.consumer = c.id
ORDER BY c.name, c.tenant";

/// The size of each table on the disk, indexes included, by the server's own books.
const TABLES: &str = "\
SELECT t.relname AS \"table\", CASE WHEN t.reltuples >= 0::float4 THEN t.reltuples::int8 END AS rows_about, size.bytes,
    pg_catalog.pg_size_pretty(size.bytes) AS size
FROM pg_catalog.pg_class AS t CROSS JOIN LATERAL (SELECT pg_catalog.pg_total_relation_size(t.oid::regclass) AS bytes) AS size
WHERE t.relnamespace = '{schema}'::regnamespace::oid AND t.relkind = 'r' ORDER BY size.bytes DESC, t.relname";

pub(crate) async fn run(mut database: Database) -> Result<Report, Failure> {
    let consumers = database.table(&STATS.replace("{failing}", FAILING).replace("{waits}", WAITS), &[]).await?;
    Ok(Report::new().table("consumers", consumers).table("tables", database.table(TABLES, &[]).await?))
}
