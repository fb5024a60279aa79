//! `idem doctor`.

use idem_core::{Bookkeeping as _, StoreError};

use crate::{
    command_line::{Doctor, Target},
    database::{self, Bind, Database},
    exit::{Exit, Failure},
    report::{Report, Row, Table},
};

const FINDINGS: &str = include_str!("doctor.sql");

/// What the tables come to if everything goes on as in the last hour. Records are found by their expiry, which has an index.
const FORECAST: &str = "\
SELECT c.name AS consumer, c.tenant, recent.records AS last_hour, justify_hours(c.retention)::text AS retention,
    (recent.records * extract(epoch FROM c.retention) / 3600)::int8 AS records_to_come,
    pg_size_pretty((recent.records * extract(epoch FROM c.retention) / 3600 * size.bytes)::int8) AS size_to_come
FROM {schema}.consumers AS c
CROSS JOIN LATERAL (SELECT count(*) AS records FROM {schema}.processed_messages AS p
    WHERE p.consumer = c.id AND p.expires_at > now() + c.retention - interval '1 hour') AS recent
CROSS JOIN (SELECT CASE WHEN reltuples > 10000 THEN pg_total_relation_size(oid) / reltuples ELSE 250 END AS bytes
    FROM pg_catalog.pg_class WHERE oid = '{schema}.processed_messages'::regclass) AS size
WHERE c.retention IS NOT NULL ORDER BY c.name, c.tenant";

pub(crate) async fn run(target: &Target, doctor: &Doctor) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    // What would keep a worker from starting: server, schema, rights of this login.
    let verified = database::store(target)?.verify().await;
    let findings: Table = match verified {
        Ok(()) => {
            let horizon = doctor.broker_horizon.and_then(|time| i64::try_from(time.as_secs()).ok());
            database.table(FINDINGS, &[Bind::NumberOr(horizon)]).await?
        }
        Err(StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure }) => {
            let finding = [("level", "error".into()), ("finding", problem.into()), ("cure", cure.into())];
            return Ok(Report::new().table("findings", std::iter::once(Row::new(finding)).collect()).exit(Exit::Found));
        }
        Err(error) => return Err(error.into()),
    };
    let forecast = database.table(FORECAST, &[]).await?;
    if findings.is_empty() {
        return Ok(Report::new().table("findings", findings).table("forecast", forecast).line("All is well."));
    }
    // A notice is nothing that a script should stop for.
    let is_grave = findings.rows().iter().any(|row| row.text("level") != "notice");
    let exit = if is_grave { Exit::Found } else { Exit::Done };
    Ok(Report::new().table("findings", findings).table("forecast", forecast).exit(exit))
}
