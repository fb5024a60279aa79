//! `idem consumers`.

use idem_core::Store as _;

use crate::{
    command_line::{Consumers, Target},
    commands::standing::{NAMES, Standing},
    confirm::confirm,
    database::{self, Bind, Database},
    exit::Failure,
    report::{Report, Table},
};

const LIST: &str = "\
SELECT c.name AS consumer, c.tenant, coalesce(o.state, 'running') AS state, nullif(o.by, '') AS by,
    nullif(o.reason, '') AS reason, CASE WHEN o.state <> 'running' THEN o.at END AS since,
    coalesce(pg_catalog.justify_hours(c.retention)::text, 'for ever') AS retention, nullif(c.bound_to, '') AS bound_to,
    nullif(c.handler, '') AS handler, c.first_started_at
FROM {schema}.consumers AS c LEFT JOIN {schema}.controls AS o ON o.consumer = c.id ORDER BY c.name, c.tenant";

/// How many records of the consumer `c` were made in the last hour. Records are found by their expiry, which has an index,
/// so one that keeps its records for ever has no such number.
pub(crate) const LAST_HOUR: &str = "\
CASE WHEN c.retention IS NOT NULL THEN (
    SELECT pg_catalog.count(*) FROM {schema}.processed_messages AS p
    WHERE p.consumer = c.id AND p.processed_at > pg_catalog.now() - interval '1 h'
        AND p.expires_at > pg_catalog.now() + c.retention - interval '1 h'
        AND p.expires_at <= pg_catalog.now() + c.retention + interval '1 minute'
) END";

/// Up to ten thousand records of a consumer are looked at. Where there are more, their number comes from the server's
/// statistics, and the oldest is sought among the hundred thousand of the table that expire first. The order by the primary
/// key keeps the server from reading the whole table for a consumer that has few.
const RECORDS: &str = "\
WITH soonest AS MATERIALIZED (
    SELECT consumer, pg_catalog.min(processed_at) AS oldest, pg_catalog.min(expires_at) AS next_expiry FROM (
        SELECT consumer, processed_at, expires_at FROM {schema}.processed_messages ORDER BY expires_at LIMIT 100000
    ) AS p GROUP BY consumer
), estimates AS MATERIALIZED (
    SELECT share.consumer, (share.frequency * k.reltuples)::int8 AS records
    FROM pg_catalog.pg_class AS k JOIN pg_catalog.pg_namespace AS n ON n.oid = k.relnamespace
    JOIN pg_catalog.pg_stats AS s ON s.schemaname = n.nspname AND s.tablename = k.relname AND s.attname = 'consumer'
    CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(s.most_common_vals::text::int4[]), pg_catalog.unnest(s.most_common_freqs))
        AS share (consumer, frequency)
    WHERE k.oid = '{schema}.processed_messages'::regclass::oid
)
SELECT c.name AS consumer, c.tenant,
    CASE WHEN few.records <= 10000 THEN few.records ELSE greatest(e.records, 10001) END AS records_about,
    {last_hour} AS last_hour, CASE WHEN few.records <= 10000 THEN few.oldest ELSE soonest.oldest END AS oldest,
    nullif(CASE WHEN few.records <= 10000 THEN few.next_expiry ELSE soonest.next_expiry END, 'infinity') AS next_expiry
FROM {schema}.consumers AS c
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS records, pg_catalog.min(processed_at) AS oldest, pg_catalog.min(expires_at) AS next_expiry FROM (
        SELECT p.processed_at, p.expires_at FROM {schema}.processed_messages AS p WHERE p.consumer = c.id
        ORDER BY p.key_id LIMIT 10001
    ) AS p
) AS few
LEFT JOIN soonest ON soonest.consumer = c.id LEFT JOIN estimates AS e ON e.consumer = c.id
ORDER BY c.name, c.tenant";

/// Every tenant's scope, because a worker obeys that of its own tenant.
const SET: &str = "\
WITH scopes AS (
    SELECT id FROM {schema}.consumers WHERE name = $1::text
), written AS (
    INSERT INTO {schema}.controls AS c (consumer, state, by, reason)
    SELECT id, $2::text, CASE WHEN $2::text = 'running' THEN '' ELSE $3::text END, $4::text FROM scopes
    ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, by = excluded.by, reason = excluded.reason, at = pg_catalog.now()
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $3::text, CASE WHEN $2::text = 'running' THEN 'resume' ELSE 'pause' END, id, $4::text FROM scopes
)
SELECT pg_catalog.count(*) FROM scopes";

/// The ids of its events, and the keys of its calls, stay those of its first name.
const RENAME: &str = "\
WITH renamed AS (
    UPDATE {schema}.consumers SET name = $2::text, derives_as = coalesce(derives_as, name)
    WHERE name = $1::text AND NOT EXISTS (SELECT FROM {schema}.consumers WHERE name = $2::text) RETURNING id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $3::text, 'rename', id, pg_catalog.format('%s to %s', $1::text, $2::text) FROM renamed
)
SELECT pg_catalog.count(*) FROM renamed";

/// An empty text binds nothing. Records keep the hash rules that they were written by.
const REBIND: &str = "\
WITH bound AS (
    SELECT id, bound_to, handler, key_rules, hash_rules FROM {schema}.consumers WHERE name = $1::text
), freed AS (
    UPDATE {schema}.consumers AS c SET bound_to = '', handler = '', key_rules = '', hash_rules = ''
    FROM bound WHERE c.id = bound.id RETURNING c.id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $2::text, 'rebind', id,
        pg_catalog.format('was bound to %s, handler %s, keys %s, hashes %s', bound_to, handler, key_rules, hash_rules) FROM bound
)
SELECT pg_catalog.count(*) FROM freed";

/// The tables whose rows refer to a tenant by its number.
pub(crate) const REFERRING: [&str; 7] =
    ["processed_messages", "processed_results", "message_attempts", "dead_letters", "forgotten", "outbox", "audit"];

/// The row with the lowest number stays, because it holds the binding; so does a pause.
const PRUNE: &str = "\
WITH first AS (
    SELECT pg_catalog.min(id) AS id FROM {schema}.consumers WHERE name = $1::text
), unused AS (
    DELETE FROM {schema}.consumers AS c USING first WHERE c.name = $1::text AND c.tenant <> ''::text AND c.id <> first.id{unreferred}
        AND NOT EXISTS (SELECT FROM {schema}.controls AS o WHERE o.consumer = c.id AND o.state <> 'running'::text)
    RETURNING c.id
), freed AS (
    DELETE FROM {schema}.controls AS o USING unused WHERE o.consumer = unused.id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $2::text, 'prune', first.id, pg_catalog.format('%s tenants', removed.count)
    FROM first, (SELECT pg_catalog.count(*) AS count FROM unused) AS removed WHERE removed.count > 0
)
SELECT pg_catalog.count(*) FROM unused";

async fn list(mut database: Database, target: &Target) -> Result<Report, Failure> {
    let consumers = database.table(LIST, &[]).await?;
    let records = database.table(&RECORDS.replace("{last_hour}", LAST_HOUR), &[]).await?;
    let standing = standing(&mut database, target).await?;
    Ok(listed(&standing, consumers).table("records", records))
}

/// The consumers with their states, and the conditions that are behind these.
pub(crate) fn listed(standing: &Standing, consumers: Table) -> Report {
    let (consumers, conditions) = (standing.with_states(consumers), standing.table());
    let report = Report::new().table("consumers", consumers);
    if conditions.is_empty() { report } else { report.table("conditions", conditions) }
}

/// The state of every consumer of this database.
pub(crate) async fn standing(database: &mut Database, target: &Target) -> Result<Standing, Failure> {
    let names = database.table(NAMES, &[]).await?;
    Standing::read(database::store(target)?.bookkeeping(), &names, target.schema.as_str()).await
}

pub(crate) async fn run(target: &Target, command: Consumers) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    match command {
        Consumers::List => list(database, target).await,
        Consumers::Pause(because) => {
            set(&mut database, &because.consumer, "paused", &because.reason).await?;
            Ok(Report::said(format!("{} is paused; running workers stop intake within 5 s", because.consumer)))
        }
        Consumers::Resume { consumer } => {
            set(&mut database, &consumer, "running", "").await?;
            Ok(Report::said(format!("{consumer} is running; workers take messages in within 5 s")))
        }
        Consumers::Rename { consumer, to, yes } => rename(&mut database, &consumer, &to, yes.yes).await,
        Consumers::Prune { consumer, yes } => prune(&mut database, &consumer, yes.yes).await,
        Consumers::Rebind { consumer, yes } => rebind(&mut database, &consumer, yes.yes).await,
    }
}

async fn set(database: &mut Database, consumer: &str, state: &str, reason: &str) -> Result<(), Failure> {
    database.known(consumer).await?;
    let by = database.by.clone();
    let binds = [Bind::Text(consumer), Bind::Text(state), Bind::Text(&by), Bind::Text(reason)];
    database.act(SET, &binds).await.map(|_| ())
}

async fn rename(database: &mut Database, consumer: &str, to: &str, is_yes: bool) -> Result<Report, Failure> {
    database.known(consumer).await?;
    check_rename(consumer, to, is_yes)?;
    let by = database.by.clone();
    renamed(consumer, to, database.act(RENAME, &[Bind::Text(consumer), Bind::Text(to), Bind::Text(&by)]).await?)
}

pub(crate) fn check_rename(consumer: &str, to: &str, is_yes: bool) -> Result<(), Failure> {
    idem_core::ConsumerName::new(to).map_err(|error| Failure::refused(error.to_string()))?;
    confirm(
        &format!(
            "This renames the consumer {consumer} to {to}. A worker that starts with the old name begins without a record"
        ),
        is_yes,
    )
}

pub(crate) fn renamed(consumer: &str, to: &str, scopes: i64) -> Result<Report, Failure> {
    match scopes {
        0 => Err(Failure::refused(format!("there is a consumer {to:?} already, and two cannot become one"))),
        _ => Ok(Report::said(format!("{consumer} is {to} now: start its workers with --consumer {to} from here on"))),
    }
}

async fn prune(database: &mut Database, consumer: &str, is_yes: bool) -> Result<Report, Failure> {
    database.known(consumer).await?;
    confirm(&prune_warning(consumer), is_yes)?;
    let none_in =
        |table| format!("\n        AND NOT EXISTS (SELECT FROM {{schema}}.{table} AS t WHERE t.consumer = c.id)");
    let statement = PRUNE.replace("{unreferred}", &REFERRING.map(none_in).concat());
    let by = database.by.clone();
    Ok(pruned(consumer, database.act(&statement, &[Bind::Text(consumer), Bind::Text(&by)]).await?))
}

pub(crate) fn prune_warning(consumer: &str) -> String {
    format!(
        "This removes the tenants of {consumer} that nothing refers to. Stop every worker and service of {consumer} first: a running \
         process remembers the numbers of tenants and would write under one that has no row"
    )
}

pub(crate) fn pruned(consumer: &str, tenants: i64) -> Report {
    Report::said(format!(
        "{tenants} tenants of {consumer} were removed; a tenant that sends a message again is registered again"
    ))
}

async fn rebind(database: &mut Database, consumer: &str, is_yes: bool) -> Result<Report, Failure> {
    database.known(consumer).await?;
    confirm(&rebind_warning(consumer), is_yes)?;
    let by = database.by.clone();
    database.act(REBIND, &[Bind::Text(consumer), Bind::Text(&by)]).await?;
    Ok(rebound(consumer))
}

pub(crate) fn rebind_warning(consumer: &str) -> String {
    format!(
        "This forgets what {consumer} is bound to; its next start binds it anew. Under another key rule, messages that \
         were handled have other keys, and are handled again"
    )
}

pub(crate) fn rebound(consumer: &str) -> Report {
    Report::said(format!("{consumer} is bound to nothing: the next worker that starts under this name binds it"))
}
