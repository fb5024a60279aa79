//! `idem stuck`.

use crate::{
    command_line::{Target, shared::Limit},
    commands::{consumers, dead_letters::accept_loss::HELD, standing::Standing},
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Table},
};

/// A count of attempts that `idem stats` counts and `idem stuck` lists as failing: one of a message that was tried and is
/// neither processed nor set aside since. Releases that did not end the counts of messages that they set aside have left
/// such counts.
pub(crate) const FAILING: &str = "\
a.attempts > 0
    AND NOT EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = a.consumer AND p.key_id = a.key_id)
    AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.consumer = a.consumer AND d.key_id = a.key_id
        AND d.payload_hash = a.payload_hash AND (d.last_at >= a.last_at OR d.state <> 0::int2))";

/// Keys that have failed, and are neither processed nor set aside: their lanes wait for them. No table knows which session
/// works on which key, but a session with its consumer's name can be recognised.
const KEYS: &str = "\
WITH working AS MATERIALIZED (
    SELECT s.application_name AS program, pg_catalog.array_agg(DISTINCT s.pid) AS pids,
        pg_catalog.array_agg(DISTINCT b.pid) FILTER (WHERE b.pid IS NOT NULL) AS blocked_by
    FROM pg_catalog.pg_stat_activity AS s LEFT JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(s.pid)) AS b (pid) ON true
    WHERE s.datname = pg_catalog.current_database() AND s.xact_start IS NOT NULL GROUP BY s.application_name
)
SELECT c.name AS consumer, c.tenant, a.idempotency_key AS key, a.attempts, a.first_at AS since, a.last_at,
    w.pids AS consumer_in_transaction, w.blocked_by AS consumer_blocked_by
FROM {schema}.message_attempts AS a JOIN {schema}.consumers AS c ON c.id = a.consumer
LEFT JOIN working AS w ON w.program = c.name
WHERE {failing} ORDER BY a.first_at LIMIT $1::int8";

/// Sessions in this database that wait for another, and those they wait for. No statement's text: it may hold values.
const SESSIONS: &str = "\
SELECT s.pid, s.application_name AS program, s.usename AS login, s.state, pg_catalog.now() - s.xact_start AS in_transaction_for,
    s.wait_event_type || ' ' || s.wait_event AS waits_for, 
    CASE WHEN pg_catalog.cardinality(pg_catalog.pg_blocking_pids(s.pid)) > 0 THEN pg_catalog.pg_blocking_pids(s.pid) END AS blocked_by
FROM pg_catalog.pg_stat_activity AS s
WHERE s.datname = pg_catalog.current_database() AND s.pid <> pg_catalog.pg_backend_pid() AND (
    pg_catalog.cardinality(pg_catalog.pg_blocking_pids(s.pid)) > 0
    OR s.pid IN (SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) FROM pg_catalog.pg_stat_activity AS w
        WHERE w.datname = pg_catalog.current_database()))
ORDER BY s.xact_start LIMIT $1::int8";

/// Messages that are not acknowledged, because their payload could not be kept and no broker has confirmed a copy.
const UNKEPT: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.origin, d.idempotency_key AS key, d.reason, d.payload_bytes AS bytes,
    d.first_at AS since, d.last_at
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE {held} ORDER BY d.first_at LIMIT $1::int8";

pub(crate) async fn run(target: &Target, limit: &Limit) -> Result<Report, Failure> {
    let mut database = Database::open(target).await?;
    let binds = [Bind::Number(limit.limit)];
    let standing = consumers::standing(&mut database, target).await?;
    let keys = database.table(&KEYS.replace("{failing}", FAILING), &binds).await?;
    let unkept = database.table(&UNKEPT.replace("{held}", HELD), &binds).await?;
    let sessions = database.table(SESSIONS, &binds).await?;
    let waits = !sessions.is_empty();
    Ok(report(&standing, keys, unkept, waits).table("waiting sessions", sessions))
}

/// The conditions of consumers, the stuck messages that tables show, with the fix, or where else to look. Sessions may wait for others
/// too.
pub(crate) fn report(standing: &Standing, failing: Table, unkept: Table, sessions_wait: bool) -> Report {
    let is_held = !unkept.is_empty();
    let is_stuck = is_held || sessions_wait || !failing.is_empty() || standing.is_stuck();
    let report = Report::new()
        .table("conditions", standing.table())
        .table("failing keys", failing)
        .table("held dead letters", unkept);
    if is_held {
        report.line(
            "Held messages are in no row whole: raise --dead-letter-payload-max of the workers, give them a dead-letter topic \
             or queue that takes them, or give them up with idem dead-letters accept-loss. Where it is the room for all that \
             is used up (idem stats has the bytes), replay or drop others, or raise --dead-letters-bytes-max",
        )
    } else if is_stuck {
        report
    } else {
        report.line(
            "No key fails, no consumer is stopped, no session waits for another and no message is held. A worker reports its state \
             every 10 s; its page (--admin) and the metric idem_waiting are up to the second",
        )
    }
}
