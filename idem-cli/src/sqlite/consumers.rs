//! `idem consumers`, `stats`, `workers` and `stuck` on a file.

use idem_core::Store as _;
use idem_sqlx::SqliteStore;

use super::file::{Bind, File};
use crate::{
    command_line::{Consumers, Target, shared::Limit},
    commands::{consumers, dead_letters::accept_loss::HELD, standing::Standing, stuck},
    confirm::confirm,
    exit::Failure,
    report::Report,
};

const LIST: &str = r#"
SELECT c.name AS consumer, c.tenant, ifnull(o.state, 'running') AS state, nullif(o."by", '') AS by,
    nullif(o.reason, '') AS reason, CASE WHEN o.state <> 'running' THEN {at}o.at{} END AS since,
    ifnull(c.retention / 1000000 || ' s', 'for ever') AS retention, nullif(c.bound_to, '') AS bound_to,
    nullif(c.handler, '') AS handler, {at}c.first_started_at{} AS first_started_at
FROM "{schema}_consumers" AS c LEFT JOIN "{schema}_controls" AS o ON o.consumer = c.id ORDER BY c.name, c.tenant"#;

/// The condition for failing, as on PostgreSQL.
const FAILING: &str = r#"
a.attempts > 0
    AND NOT EXISTS (SELECT 1 FROM "{schema}_processed_messages" AS r WHERE r.consumer = a.consumer AND r.key_id = a.key_id)
    AND NOT EXISTS (SELECT 1 FROM "{schema}_dead_letters" AS l WHERE l.consumer = a.consumer AND l.key_id = a.key_id
        AND l.payload_hash = a.payload_hash AND (l.last_at >= a.last_at OR l.state <> 0))"#;

const STATS: &str = r#"
SELECT c.name AS consumer, c.tenant, ifnull(p.records, 0) AS records, p.last_hour, {at}p.oldest{} AS oldest,
    {at}p.newest{} AS newest, {at}p.next_expiry{} AS next_expiry, ifnull(p.expired, 0) AS expired,
    (SELECT count(*) FROM "{schema}_message_attempts" AS a WHERE a.consumer = c.id AND {failing}) AS failing,
    ifnull(d.dead_letters, 0) AS dead_letters, ifnull(d.bytes, 0) AS dead_letter_bytes,
    ifnull(d.copies, 0) AS dead_letter_copies,
    ifnull(d.awaiting_replay, 0) AS awaiting_replay, ifnull(d.waiting, 0) AS waiting
FROM "{schema}_consumers" AS c
LEFT JOIN (
    SELECT consumer, count(*) AS records, count(*) FILTER (WHERE processed_at > {now} - 3600000000) AS last_hour,
        min(processed_at) AS oldest, max(processed_at) AS newest,
        min(expires_at) FILTER (WHERE expires_at > {now} AND expires_at < 9223372036854775807) AS next_expiry,
        count(*) FILTER (WHERE expires_at <= {now}) AS expired
    FROM "{schema}_processed_messages" GROUP BY consumer
) AS p ON p.consumer = c.id
LEFT JOIN (
    SELECT consumer, count(*) FILTER (WHERE state = 0 OR due_by IS NOT NULL) AS dead_letters, sum(copies) AS copies,
        count(*) FILTER (WHERE state <> 0 AND due_by IS NULL) AS waiting,
        sum(CASE WHEN payload IS NULL THEN 0 ELSE payload_bytes END) AS bytes,
        count(*) FILTER (WHERE state <> 0 AND due_by IS NOT NULL) AS awaiting_replay
    FROM "{schema}_dead_letters" GROUP BY consumer
) AS d ON d.consumer = c.id
ORDER BY c.name, c.tenant"#;

const WORKERS: &str = r#"
SELECT r.id AS run, c.name AS consumer, r.host, r.process, r.version, {at}r.started_at{} AS started_at,
    CASE WHEN r.seen_at IS NULL THEN NULL WHEN r.ended_at IS NOT NULL THEN ifnull((SELECT fact.value ->> 'detail'
            FROM json_each(r.standing) AS fact WHERE fact.value ->> 'condition' = 'failed' LIMIT 1), 'stopped')
        WHEN r.seen_at < {now} - 30000000 THEN 'gone: killed, aborted, or cut off from the database'
        ELSE 'running' END AS state,
    {at}r.seen_at{} AS seen_at, {at}r.ended_at{} AS ended_at, {at}u.last_unit{} AS last_unit
FROM "{schema}_worker_runs" AS r
LEFT JOIN "{schema}_consumers" AS c ON c.id = r.consumer
LEFT JOIN (SELECT run, max(at) AS last_unit FROM "{schema}_units" GROUP BY run) AS u ON u.run = r.id
ORDER BY r.id DESC LIMIT ?1"#;

const KEYS: &str = r#"
SELECT c.name AS consumer, c.tenant, a.idempotency_key AS key, a.attempts, {at}a.first_at{} AS since,
    {at}a.last_at{} AS last_at
FROM "{schema}_message_attempts" AS a JOIN "{schema}_consumers" AS c ON c.id = a.consumer
WHERE {failing} ORDER BY a.first_at LIMIT ?1"#;

const UNKEPT: &str = r#"
SELECT d.id, c.name AS consumer, c.tenant, d.origin, d.idempotency_key AS key, d.reason, d.payload_bytes AS bytes,
    {at}d.first_at{} AS since, {at}d.last_at{} AS last_at
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
WHERE {held} ORDER BY d.first_at LIMIT ?1"#;

/// Every tenant's scope. Parameters: 1 consumer, 2 state, 3 who, 4 why, 5 the action's name in the trail.
const SET: [&str; 2] = [
    r#"INSERT INTO "{schema}_controls" AS c (consumer, state, "by", reason, at)
SELECT id, ?2, CASE WHEN ?2 = 'running' THEN '' ELSE ?3 END, ?4, {now} FROM "{schema}_consumers" WHERE name = ?1
ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, "by" = excluded."by", reason = excluded.reason, at = excluded.at"#,
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details)
SELECT {now}, ?3, ?5, id, ?4 FROM "{schema}_consumers" WHERE name = ?1"#,
];

/// Parameters: 1 name, 2 new name, 3 who. The ids of its events, and the keys of its calls, stay those of its first name.
const RENAME: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details)
SELECT {now}, ?3, 'rename', id, ?1 || ' to ' || ?2 FROM "{schema}_consumers"
WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM "{schema}_consumers" WHERE name = ?2)"#,
    r#"UPDATE "{schema}_consumers" SET name = ?2, derives_as = ifnull(derives_as, name)
WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM "{schema}_consumers" WHERE name = ?2)"#,
];

/// Parameters: 1 name, 2 who. An empty text binds nothing.
const REBIND: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details)
SELECT {now}, ?2, 'rebind', id, 'was bound to ' || bound_to || ', handler ' || handler || ', keys ' || key_rules || ', hashes '
    || hash_rules
FROM "{schema}_consumers" WHERE name = ?1"#,
    r#"UPDATE "{schema}_consumers" SET bound_to = '', handler = '', key_rules = '', hash_rules = '' WHERE name = ?1"#,
];

/// Parameters: 1 name, 2 who. As on PostgreSQL.
const PRUNE: [&str; 3] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details)
SELECT {now}, ?2, 'prune', (SELECT min(id) FROM "{schema}_consumers" WHERE name = ?1), count(*) || ' tenants'
FROM "{schema}_consumers" AS c WHERE {unused} HAVING count(*) > 0"#,
    r#"DELETE FROM "{schema}_controls" WHERE consumer IN (SELECT c.id FROM "{schema}_consumers" AS c WHERE {unused})"#,
    r#"DELETE FROM "{schema}_consumers" AS c WHERE {unused}"#,
];

const UNUSED: &str = r#"c.name = ?1 AND c.tenant <> '' AND c.id <> (SELECT min(id) FROM "{schema}_consumers" WHERE name = ?1)
    AND NOT EXISTS (SELECT 1 FROM "{schema}_controls" AS o WHERE o.consumer = c.id AND o.state <> 'running')"#;

pub(super) async fn run(store: &SqliteStore, target: &Target, command: Consumers) -> Result<Report, Failure> {
    let mut file = File::open(target).await?;
    match command {
        Consumers::List => list(&standing(store, &mut file, target).await?, file).await,
        Consumers::Pause(because) => set(file, &because.consumer, Some(&because.reason)).await,
        Consumers::Resume { consumer } => set(file, &consumer, None).await,
        Consumers::Rename { consumer, to, yes } => rename(file, &consumer, &to, yes.yes).await,
        Consumers::Prune { consumer, yes } => prune(file, &consumer, yes.yes).await,
        Consumers::Rebind { consumer, yes } => rebind(file, &consumer, yes.yes).await,
    }
}

/// The consumers' names.
const NAMES: &str = r#"SELECT DISTINCT name FROM "{schema}_consumers" ORDER BY name"#;

/// The state of every consumer of this file.
pub(super) async fn standing(store: &SqliteStore, file: &mut File, target: &Target) -> Result<Standing, Failure> {
    let names = file.table(NAMES, &[]).await?;
    Standing::read(store.bookkeeping(), &names, target.schema.as_str()).await
}

async fn list(standing: &Standing, mut file: File) -> Result<Report, Failure> {
    Ok(consumers::listed(standing, file.table(LIST, &[]).await?))
}

pub(super) async fn stats(mut file: File) -> Result<Report, Failure> {
    Ok(Report::new().table("consumers", file.table(&STATS.replace("{failing}", FAILING), &[]).await?))
}

pub(super) async fn workers(mut file: File, limit: &Limit) -> Result<Report, Failure> {
    Ok(Report::new().table("workers", file.table(WORKERS, &[limit.limit.into()]).await?))
}

pub(super) async fn stuck(standing: &Standing, mut file: File, limit: &Limit) -> Result<Report, Failure> {
    let binds = [limit.limit.into()];
    let failing = file.table(&KEYS.replace("{failing}", FAILING), &binds).await?;
    let unkept = file.table(&UNKEPT.replace("{held}", HELD), &binds).await?;
    Ok(stuck::report(standing, failing, unkept, false))
}

/// `reason` is given where the consumer is paused.
async fn set(mut file: File, consumer: &str, reason: Option<&str>) -> Result<Report, Failure> {
    file.known(consumer).await?;
    let (state, action, is) =
        if reason.is_some() { ("paused", "pause", "paused") } else { ("running", "resume", "running") };
    let by = file.by.clone();
    let binds = [consumer, state, &by, reason.unwrap_or_default(), action].map(Bind::from);
    file.act(SET, &binds).await?;
    Ok(Report::said(format!("{consumer} is {is}; a running worker obeys within 5 s")))
}

async fn rename(mut file: File, consumer: &str, to: &str, is_yes: bool) -> Result<Report, Failure> {
    file.known(consumer).await?;
    consumers::check_rename(consumer, to, is_yes)?;
    let by = file.by.clone();
    let [_, renamed] = file.act(RENAME, &[consumer, to, &by].map(Bind::from)).await?;
    consumers::renamed(consumer, to, renamed)
}

async fn prune(mut file: File, consumer: &str, is_yes: bool) -> Result<Report, Failure> {
    file.known(consumer).await?;
    confirm(&consumers::prune_warning(consumer), is_yes)?;
    let none_in =
        |table| format!("\n    AND NOT EXISTS (SELECT 1 FROM \"{{schema}}_{table}\" AS t WHERE t.consumer = c.id)");
    let unused = format!("{UNUSED}{}", consumers::REFERRING.map(none_in).concat());
    let statements = PRUNE.map(|statement| statement.replace("{unused}", &unused));
    let by = file.by.clone();
    let [_, _, tenants] = file.act(statements.each_ref().map(String::as_str), &[consumer, &by].map(Bind::from)).await?;
    Ok(consumers::pruned(consumer, tenants))
}

async fn rebind(mut file: File, consumer: &str, is_yes: bool) -> Result<Report, Failure> {
    file.known(consumer).await?;
    confirm(&consumers::rebind_warning(consumer), is_yes)?;
    let by = file.by.clone();
    file.act(REBIND, &[consumer, &by].map(Bind::from)).await?;
    Ok(consumers::rebound(consumer))
}
