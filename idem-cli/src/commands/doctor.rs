//! `idem doctor`.

use std::sync::Arc;

use idem_core::{Store as _, store::Bookkeeping as _};
use idem_sql::RECORD_BYTES;

use crate::{
    command_line::{Doctor, Target},
    commands::{
        consumers::{self, LAST_HOUR},
        outbox, services,
    },
    database::{self, Bind, Database},
    exit::{Exit, Failure},
    operators::unusable,
    report::{Report, Table},
};

const FINDINGS: &str = include_str!("doctor.sql");

/// The warnings of its broker at the last start of the consumer `c`; this command knows no broker.
const LAST_START: &str = "\
LEFT JOIN LATERAL (SELECT at, details FROM {schema}.audit WHERE consumer = c.id AND action = 'start' ORDER BY id DESC LIMIT 1)
    AS start ON true";

/// The size of the tables if everything goes on as in the last hour.
const FORECAST: &str = "\
SELECT c.name AS consumer, c.tenant, recent.records AS last_hour, pg_catalog.justify_hours(c.retention)::text AS retention,
    (recent.records::float8 * extract(epoch FROM c.retention)::float8 / 3600::float8)::int8 AS records_to_come,
    pg_catalog.pg_size_pretty(
        (recent.records::float8 * extract(epoch FROM c.retention)::float8 / 3600::float8 * size.bytes)::int8) AS size_to_come
FROM {schema}.consumers AS c
CROSS JOIN LATERAL (SELECT {last_hour} AS records) AS recent
CROSS JOIN (SELECT CASE WHEN reltuples > 10000::float4
        THEN pg_catalog.pg_total_relation_size(oid)::float8 / reltuples::float8 ELSE {record_bytes}::float8 END AS bytes
    FROM pg_catalog.pg_class WHERE oid = '{schema}.processed_messages'::regclass::oid) AS size
WHERE c.retention IS NOT NULL ORDER BY c.name, c.tenant";

/// From where each consumer reads, and how long its records are kept beside how long the broker may deliver again. Its
/// own tools show that and its settings. Parameter: 1 for how many seconds the broker may, or NULL for the value that a
/// start read.
const SOURCES: &str = "\
SELECT DISTINCT ON (c.name) c.name AS consumer, nullif(c.bound_to, '') AS reads_from,
    coalesce(pg_catalog.justify_hours(c.retention)::text, 'for ever') AS retention,
    pg_catalog.justify_hours(coalesce($1::int8::float8 * interval '1 s', c.redelivery_horizon))::text AS broker_horizon,
    CASE pg_catalog.split_part(c.bound_to, ':', 1)
        WHEN 'kafka' THEN pg_catalog.format('kafka-configs.sh --describe --all --entity-type topics --entity-name %s',
            pg_catalog.split_part(c.bound_to, '/', 2))
        WHEN 'rabbitmq' THEN 'rabbitmqctl list_queues -p VHOST name arguments policy'
        WHEN 'sqs' THEN pg_catalog.format('aws sqs get-queue-attributes --attribute-names All --queue-url URL of %s',
            pg_catalog.split_part(c.bound_to, ':', 7))
    END AS shown_by
FROM {schema}.consumers AS c ORDER BY c.name, c.id";

/// The checks that this command lacks, because it knows no broker.
const UNSEEN: &str = "Of a broker's settings this knows what the last start of a worker found: start one again after a \
change, or give --broker-horizon.";

pub(crate) async fn run(target: &Target, doctor: &Doctor) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    // Problems that would keep a worker from starting: server, schema, rights of this login.
    let store = Arc::new(database::store(target)?);
    let verified = store.bookkeeping().verify().await;
    let horizon = Bind::NumberOr(doctor.broker_horizon.and_then(|time| i64::try_from(time.as_secs()).ok()));
    let findings: Table = match verified {
        Ok(()) => {
            let findings = FINDINGS.replace("{last_start}", LAST_START).replace("{plain}", target.schema.as_str());
            let findings = database.table(&findings, &[horizon]).await?;
            match store.outbox() {
                Some(outbox) => {
                    let (readers, keys) = (outbox::READERS, outbox::SHARED_KEYS);
                    let (readers, keys) = (database.table(readers, &[]).await?, database.table(keys, &[]).await?);
                    findings.and(outbox::findings(&outbox.backlog(None).await?, &readers, &keys))
                }
                None => findings,
            }
        }
        Err(error) => return unusable(error),
    };
    let facts = database.table(services::FACTS, &[]).await?;
    let standing = consumers::standing(&mut database, target).await?;
    let findings = standing.findings().into_iter().collect::<Table>().and(findings.into_rows());
    let findings = findings.and(services::findings(&facts, doctor));
    let sources = database.table(SOURCES, &[horizon]).await?;
    let forecast = FORECAST.replace("{last_hour}", LAST_HOUR).replace("{record_bytes}", &RECORD_BYTES.to_string());
    let forecast = database.table(&forecast, &[]).await?;
    let is_well = findings.is_empty();
    // A notice is nothing that a script should stop for.
    let is_grave = findings.rows().iter().any(|row| row.text("level") != "notice");
    let exit = if is_grave { Exit::Found } else { Exit::Done };
    let report = Report::new().table("findings", findings).table("sources", sources);
    let services = services::services(&facts);
    let report = if services.is_empty() { report } else { report.table("services", services) };
    let report = report.table("forecast", forecast);
    let report = report.line(UNSEEN).exit(exit);
    Ok(if is_well { report.line("All is well.") } else { report })
}
