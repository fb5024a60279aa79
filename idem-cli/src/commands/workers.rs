//! `idem workers`.

use crate::{
    command_line::shared::Limit,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Units are kept for a day, so the last one of a run that is older is not known. A run that neither reports nor has ended is gone. A service over
/// HTTP does not report.
const WORKERS: &str = "\
SELECT r.id AS run, c.name AS consumer, r.host, r.process, r.version, r.started_at,
    CASE WHEN r.seen_at IS NULL THEN NULL WHEN r.ended_at IS NOT NULL THEN coalesce(failed.detail, 'stopped')
        WHEN r.seen_at < pg_catalog.now() - interval '30 s' THEN 'gone: killed, aborted, or cut off from the database'
        ELSE 'running' END AS state,
    r.seen_at, r.ended_at, u.last_unit
FROM {schema}.worker_runs AS r
LEFT JOIN {schema}.consumers AS c ON c.id = r.consumer
LEFT JOIN LATERAL (SELECT fact.value OPERATOR(pg_catalog.->>) 'detail' AS detail
    FROM pg_catalog.json_array_elements(r.standing::json) AS fact (value)
    WHERE fact.value OPERATOR(pg_catalog.->>) 'condition' = 'failed' LIMIT 1) AS failed ON true
LEFT JOIN (SELECT run, pg_catalog.max(at) AS last_unit FROM {schema}.units GROUP BY run) AS u ON u.run = r.id
ORDER BY r.id DESC LIMIT $1::int8";

pub(crate) async fn run(mut database: Database, limit: &Limit) -> Result<Report, Failure> {
    Ok(Report::new().table("workers", database.table(WORKERS, &[Bind::Number(limit.limit)]).await?))
}
