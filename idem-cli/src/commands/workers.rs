//! `idem workers`.

use crate::{
    command_line::shared::Limit,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Units are kept for a day, so the last one of a run that is older is not known.
const WORKERS: &str = "\
SELECT r.id AS run, r.host, r.process, r.version, r.started_at, u.last_unit
FROM {schema}.worker_runs AS r
LEFT JOIN (SELECT run, pg_catalog.max(at) AS last_unit FROM {schema}.units GROUP BY run) AS u ON u.run = r.id
ORDER BY r.id DESC LIMIT $1::int8";

pub(crate) async fn run(mut database: Database, limit: &Limit) -> Result<Report, Failure> {
    Ok(Report::new().table("workers", database.table(WORKERS, &[Bind::Number(limit.limit)]).await?))
}
