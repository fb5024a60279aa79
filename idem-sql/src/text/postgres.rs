//! The statements of PostgreSQL, as texts: each is documented with its parameters and its result.

use std::{sync::Arc, time::Duration};

use idem_core::store::UnitOptions;
use uuid::Uuid;

use crate::text::{bookkeeping::BookkeepingStatements, dialect::Dialect, name::SchemaName, statements::statements};

/// The limits that hold from `BEGIN` to the end of the claim, and for the idle time of the whole unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitLimits {
    /// How long the claim waits for one lock. The session's own limit stays in force where this is no shorter than
    /// `statement`, which then bounds the wait: each setting costs every unit some microseconds.
    pub lock: Duration,
    /// How long the claim takes altogether: the server counts `lock` anew for each lock.
    pub statement: Duration,
    /// After how much idleness the server ends the transaction, so that a stopped worker's claims block no other.
    pub idle_in_transaction: Duration,
}

impl UnitLimits {
    /// The limits of a unit with these options.
    #[must_use]
    pub fn of(options: UnitOptions) -> Self {
        let UnitOptions { busy_timeout, idle_timeout, .. } = options;
        Self { lock: busy_timeout, statement: busy_timeout, idle_in_transaction: idle_timeout }
    }
}

/// The text that begins a unit, in one round trip of the simple protocol. `limits`: those of this unit, where the session does not have
/// them already, see [`SessionLimits`](crate::SessionLimits).
///
/// The claim puts `lock` and `statement` back (see [`PostgresStatements::claim`]); the idle limit stays to the end. All
/// are `SET LOCAL`, so nothing outlives the transaction behind a pooler.
///
/// It asks for READ WRITE, so that a session may have `default_transaction_read_only` on: statements that run after a
/// handler has ended the transaction itself are then refused, instead of being committed one by one. A standby refuses the
/// BEGIN as a missing feature (`0A000`), which is to be taken as read only. Because READ WRITE also overrules an old
/// primary that is fenced by that setting alone, a store looks at the server's own value when it opens a session.
///
/// `durability` is the value for `synchronous_commit`, where the session is not the store's alone: see
/// [`SessionFacts::shared_durability`](crate::SessionFacts::shared_durability).
///
/// ```
/// use std::time::Duration;
/// use idem_sql::{UnitLimits, begin_unit};
///
/// let second = Duration::from_secs(1);
/// let limits = UnitLimits { lock: second, statement: second, idle_in_transaction: 35 * second };
/// let text = begin_unit(Some(limits), None);
/// assert!(text.starts_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 1000; "));
/// ```
#[must_use]
pub fn begin_unit(limits: Option<UnitLimits>, durability: Option<&str>) -> String {
    let limits = limits.map(|limits| set_limits("SET LOCAL", limits)).unwrap_or_default();
    let durability = durability.map(|value| format!("; SET LOCAL synchronous_commit = {value}")).unwrap_or_default();
    format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{limits}{durability}")
}

/// The statements that set these limits, each behind a semicolon.
pub(crate) fn set_limits(set: &str, limits: UnitLimits) -> String {
    let settings = [
        ("lock_timeout", Some(limits.lock).filter(|lock| *lock < limits.statement)),
        ("statement_timeout", Some(limits.statement)),
        ("idle_in_transaction_session_timeout", Some(limits.idle_in_transaction)),
    ];
    let settings = settings.into_iter().filter_map(|(name, limit)| Some((name, limit?)));
    settings.map(|(name, limit)| format!("; {set} {name} = {}", milliseconds(limit))).collect()
}

/// A limit as the server's settings take it: zero would switch it off, and there are no more milliseconds than an i32 holds.
pub(crate) fn milliseconds(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// The seal's answer: an error where the transaction must not be committed.
macro_rules! sealed {
    () => {
        "\
pg_catalog.set_config('idem.sealed', $1::text, true),
    1 / coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = $1::text, false)::int4 AS sealed,
    CASE WHEN pg_catalog.current_setting('synchronous_commit') <> ALL ($2::text[])
        THEN pg_catalog.current_setting('synchronous_commit')::int4 END AS weaker"
    };
}

macro_rules! insert_results {
    ($rows:literal) => {
        concat!(
            "\
INSERT INTO {schema}.processed_results (consumer, key_id, kind, status, content_type, headers, body, sealed_with, answer_until,
    reference)
",
            $rows,
            "
ON CONFLICT (consumer, key_id) DO UPDATE SET kind = excluded.kind, status = excluded.status,
    content_type = excluded.content_type, headers = excluded.headers, body = excluded.body,
    sealed_with = excluded.sealed_with, stored_at = excluded.stored_at, answer_until = excluded.answer_until,
    reference = excluded.reference"
        )
    };
}

macro_rules! insert_events {
    ($on_conflict:literal) => {
        concat!(
            "\
INSERT INTO {schema}.outbox (number, destination, consumer, key_id, event_key, ordering_key, event_type, content_type, headers,
    payload, event_hash)
SELECT (ARRAY(SELECT pg_catalog.nextval('{schema}.outbox_numbers')
        FROM pg_catalog.generate_series(1, pg_catalog.cardinality($1::int4[]))))[asked.rank],
    destination, consumer, key_id, event_key, ordering_key, event_type, content_type, headers::json, payload, event_hash
FROM (SELECT pg_catalog.unnest($1::int4[]) AS destination, pg_catalog.unnest($2::int4[]) AS consumer,
    pg_catalog.unnest($3::uuid[]) AS key_id, pg_catalog.unnest($4::text[]) AS event_key,
    pg_catalog.unnest($5::bytea[]) AS ordering_key, pg_catalog.unnest($6::text[]) AS event_type,
    pg_catalog.unnest($7::text[]) AS content_type, pg_catalog.unnest($8::text[]) AS headers,
    pg_catalog.unnest($9::bytea[]) AS payload, pg_catalog.unnest($10::bytea[]) AS event_hash,
    pg_catalog.unnest($11::int4[]) AS rank) AS asked
",
            $on_conflict,
            "RETURNING destination, consumer, key_id"
        )
    };
}

macro_rules! insert_event {
    ($on_conflict:literal) => {
        concat!(
            "\
INSERT INTO {schema}.outbox (number, destination, consumer, key_id, event_key, ordering_key, event_type, content_type, headers,
    payload, event_hash)
VALUES (pg_catalog.nextval('{schema}.outbox_numbers'), ($1::int4[])[1], ($2::int4[])[1], ($3::uuid[])[1], ($4::text[])[1],
    ($5::bytea[])[1], ($6::text[])[1], ($7::text[])[1], ($8::text[])[1]::json, ($9::bytea[])[1], ($10::bytea[])[($11::int4[])[1]])
",
            $on_conflict,
            "RETURNING destination, consumer, key_id"
        )
    };
}

macro_rules! all_written {
    () => {
        "SELECT 1 / (pg_catalog.count(*) = pg_catalog.cardinality($1::int4[]))::int4 AS all_written FROM written"
    };
}

statements! {
    /// Every statement of the PostgreSQL stores, for one schema.
    ///
    /// Parameters are numbered and cast, so that a driver binds them without asking the server. `µs` stands for an
    /// `int8` of microseconds. Texts must hold no NUL, which PostgreSQL cannot store. The texts are shared, because
    /// a driver that takes ownership of its statement would copy them once a call.
    PostgresStatements with bookkeeping: BookkeepingStatements;

    /// Claims keys: inserts those that no other transaction holds, and waits for the transactions that hold the others.
    ///
    /// Parameters, the arrays of one length, folded and sorted: 1 consumers `int4[]`, 2 key ids `uuid[]`, 3 keys
    /// `text[]`, 4 payload hashes `bytea[]`, 5 hash ids `int4[]`, 6 retentions in µs `int8[]` (a NULL, or more than a
    /// hundred years, keeps the record for ever), 7 run `int4`, 8 lane `int4`, 9 the `lock_timeout` to put back `text`,
    /// 10 the `statement_timeout` to put back `text`.
    ///
    /// Result, always one row: `won_consumers int4[]` and `won_key_ids uuid[]`, side by side, empty if nothing was
    /// inserted; `xid text`, the transaction to seal, NULL if nothing was inserted; `backend_pid int4`; `processed_at` in µs since the
    /// Unix epoch, as the records have it; `epoch int8`, which differs when a cache of committed keys must be emptied; `waits bool`, whether rows of any ordering key of the
    /// consumers are not over;
    /// `limited_to text`, the `statement_timeout` and the idle limit of the claim; the mark of the transaction, for
    /// [`guard`](PostgresStatements::guard); and the two settings. A key that is not among the won ones is not thereby a duplicate: read it, in another statement.
    ///
    /// The won rows are aggregated *before* the limits are put back: the last line is computed from the aggregate, which
    /// exists only when every insert has had its wait.
    claim: "\
WITH won AS (
    INSERT INTO {schema}.processed_messages
        (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at)
    SELECT asked.consumer, asked.key_id, asked.idempotency_key, asked.payload_hash, asked.hash_id, $7::int4,
        CASE WHEN asked.retention <= 3155760000000000 THEN
            pg_catalog.date_trunc('minute', pg_catalog.now() + (asked.retention + 59999999)::float8
                * interval '1 microsecond', 'UTC')
        ELSE 'infinity' END
    FROM ROWS FROM (pg_catalog.unnest($1::int4[]), pg_catalog.unnest($2::uuid[]), pg_catalog.unnest($3::text[]),
        pg_catalog.unnest($4::bytea[]), pg_catalog.unnest($5::int4[]), pg_catalog.unnest($6::int8[])) WITH ORDINALITY
        AS asked (consumer, key_id, idempotency_key, payload_hash, hash_id, retention, place)
    ORDER BY asked.place
    ON CONFLICT (consumer, key_id) DO NOTHING
    RETURNING consumer, key_id
), unit AS (
    INSERT INTO {schema}.units (xid, run, lane)
    SELECT pg_catalog.pg_current_xact_id()::text::int8, $7::int4, $8::int4 WHERE EXISTS (SELECT FROM won)
), answer AS MATERIALIZED (
    SELECT coalesce(pg_catalog.array_agg(consumer), '{}') AS won_consumers,
        coalesce(pg_catalog.array_agg(key_id), '{}') AS won_key_ids
    FROM won
)
SELECT won_consumers, won_key_ids,
    CASE WHEN pg_catalog.cardinality(won_key_ids) > 0 THEN pg_catalog.pg_current_xact_id()::text END AS xid,
    pg_catalog.pg_backend_pid() AS backend_pid, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS processed_at,
    seen.epoch, seen.waits,
    pg_catalog.concat_ws(' ', pg_catalog.current_setting('statement_timeout'),
        pg_catalog.current_setting('idle_in_transaction_session_timeout')) AS limited_to, pg_catalog.set_config('idem.unit', 'begun', true) AS unit,
    pg_catalog.set_config('lock_timeout', $9::text, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', $10::text, true) AS statement_timeout
FROM answer CROSS JOIN (
    SELECT coalesce(pg_catalog.sum(c.epoch), 0)::int8 AS epoch,
        coalesce(pg_catalog.bool_or(c.waits) FILTER (WHERE c.consumer = ANY ($1::int4[])), false) AS waits
    FROM {schema}.controls AS c
) AS seen";

    /// Claims the key of a unit of one message, which writes the record and nothing else: the record carries the seal's trigger.
    ///
    /// Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 key `text`, 4 payload hash `bytea`, 5 hash id `int4`, 6 retention
    /// in µs `int8`, 7 run `int4`, 8 and 9 the settings as 9 and 10 for many keys.
    ///
    /// Result: no row where the key was not inserted, and then no handler runs and the unit's limits stay. Otherwise `xid
    /// text`, the transaction to seal; `backend_pid int4`; `processed_at` in µs since the Unix epoch; `waits` and `limited_to` as for many keys; and
    /// the two settings, which are put back when the insert has had its wait.
    claim_one: "\
INSERT INTO {schema}.processed_messages
    (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at, alone)
VALUES ($1::int4, $2::uuid, $3::text, $4::bytea, $5::int4, $7::int4,
    CASE WHEN $6::int8 <= 3155760000000000 THEN
        pg_catalog.date_trunc('minute', pg_catalog.now() + ($6::int8 + 59999999)::float8 * interval '1 microsecond', 'UTC')
    ELSE 'infinity' END, true)
ON CONFLICT (consumer, key_id) DO NOTHING
RETURNING pg_catalog.pg_current_xact_id()::text AS xid, pg_catalog.pg_backend_pid() AS backend_pid,
    (extract(epoch FROM processed_at) * 1000000::numeric)::int8 AS processed_at,
    coalesce((SELECT c.waits FROM {schema}.controls AS c WHERE c.consumer = $1::int4), false) AS waits,
    pg_catalog.concat_ws(' ', pg_catalog.current_setting('statement_timeout'),
        pg_catalog.current_setting('idle_in_transaction_session_timeout')) AS limited_to,
    pg_catalog.set_config('lock_timeout', $8::text, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', $9::text, true) AS statement_timeout";

    /// The rows of ordering keys that are not over. Parameters, arrays of one length: 1 consumers `int4[]`, 2 ordering keys `bytea[]`.
    /// Result, one row: `ahead int4[]`, in their order: 0 none, 1 the first is due or runs, 2 it waits.
    rows_ahead: "SELECT {schema}.rows_ahead($1::int4[], $2::bytea[]) AS ahead";

    /// Claims a key for [`question`](PostgresStatements::question), which rolls it back, with nothing in the records beyond the key's id.
    ///
    /// Parameters: 1 consumers `int4[]`, 2 key id `uuid`. No result: one row was inserted for each consumer for which the key is free.
    claim_to_ask: "\
INSERT INTO {schema}.processed_messages
    (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at, alone)
SELECT asked.consumer, $2::uuid, '', pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'), 0, 0, 'infinity', true
FROM pg_catalog.unnest($1::int4[]) AS asked (consumer) ORDER BY asked.consumer
ON CONFLICT (consumer, key_id) DO NOTHING";

    /// Reads the records of keys that a claim did not win, as a statement of its own, so that it sees commits made while the
    /// claim waited. Rows that this very transaction has inserted are not among them: where a claim denies its own rows, its
    /// keys have no winner, and nothing is a duplicate.
    ///
    /// Parameters: 1 consumers `int4[]`, 2 key ids `uuid[]`. Result, a row a key that was found: `consumer int4`,
    /// `key_id uuid`, `idempotency_key text`, `payload_hash bytea`, `hash_id int4`, `processed_at` in µs since the Unix
    /// epoch, `processed_by int4`, `expires_at` in µs since the Unix epoch or NULL for ever.
    read: "\
SELECT consumer, key_id, idempotency_key, payload_hash, hash_id,
    (extract(epoch FROM processed_at) * 1000000::numeric)::int8 AS processed_at, processed_by,
    CASE WHEN expires_at < 'infinity' THEN (extract(epoch FROM expires_at) * 1000000::numeric)::int8 END AS expires_at
FROM {schema}.read_records($1::int4[], $2::uuid[])";

    /// Reads the records of keys as `read` does, and their answers beside them: the whole answer to a repeat, in one statement,
    /// which may be a transaction of its own. Record and answer are of one commit, and one snapshot has both or neither.
    ///
    /// Parameters: 1 consumers `int4[]`, 2 key ids `uuid[]`. Result, a row a key that was found: the columns of `read`, and those of
    /// `read_results` from `kind` on, which are NULL where there is no answer.
    look_up: "\
SELECT p.consumer, p.key_id, p.idempotency_key, p.payload_hash, p.hash_id,
    (extract(epoch FROM p.processed_at) * 1000000::numeric)::int8 AS processed_at, p.processed_by,
    CASE WHEN p.expires_at < 'infinity' THEN (extract(epoch FROM p.expires_at) * 1000000::numeric)::int8 END AS expires_at,
    r.kind::int4 AS kind, r.status::int4 AS status, r.content_type, r.headers::text AS headers, r.body,
    r.sealed_with::int4 AS sealed_with, r.reference, (extract(epoch FROM r.answer_until) * 1000000::numeric)::int8 AS answer_until
FROM {schema}.read_records($1::int4[], $2::uuid[]) AS p
LEFT JOIN {schema}.read_results($1::int4[], $2::uuid[]) AS r ON r.consumer = p.consumer AND r.key_id = p.key_id";

    /// Permits this transaction to commit, if it is the one that claimed; the last statement before COMMIT.
    ///
    /// Parameters: 1 the claim's xid `text`, 2 the values of `synchronous_commit` that are no weaker than the session's own
    /// `text[]`. Result: one row, to be ignored. It *raises* `22012` where the transaction is another or has no id, `25P02`
    /// where it has already failed, and [`WEAKER_COMMIT`](crate::WEAKER_COMMIT) where a handler has weakened
    /// `synchronous_commit`, by a name that is no number: returning a flag would let the COMMIT that is pipelined behind it go
    /// on. It needs no right of its own, since a handler may have set another role.
    seal: concat!("SELECT ", sealed!());

    /// The seal of a unit that claimed nothing, whose handlers ran unprotected: it raises where the transaction has failed
    /// (`25P02`, A9) or is not the one that was begun (`22012`), which does not have the mark of the claim.
    ///
    /// Parameters: 1 as 2 for the seal. Result: one row.
    guard: "\
SELECT 1 / coalesce(pg_catalog.current_setting('idem.unit', true) = 'begun', false)::int4 AS guarded,
    CASE WHEN pg_catalog.current_setting('synchronous_commit') <> ALL ($1::text[])
        THEN pg_catalog.current_setting('synchronous_commit')::int4 END AS weaker";

    /// The facts of its server that a session reads before its first unit and after each reconnect.
    ///
    /// No parameters. Result, one row: `version_num int4` (150018), `server_now` in µs since the Unix epoch, `backend_pid
    /// int4` and `backend_start`, when that process began, in µs since the Unix epoch; `in_recovery bool`, `read_only bool`,
    /// `encoding text`, `database text`, `role text`, `current_schema text`, where a table without a schema's name would be made,
    /// and as `text` the settings in force `lock_timeout`,
    /// `statement_timeout`, `idle_in_transaction_session_timeout`, `client_connection_check_interval`,
    /// `synchronous_commit`, `session_replication_role`, `default_transaction_read_only`; `synchronous_commit_default text` and
    /// `default_transaction_isolation text`, their values after a RESET; and `read_only_source text`, the source of the last setting,
    /// as `pg_settings` has it.
    server_facts: "\
SELECT pg_catalog.current_setting('server_version_num')::int4 AS version_num,
    (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now, pg_catalog.pg_backend_pid() AS backend_pid,
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    pg_catalog.current_setting('transaction_read_only')::bool AS read_only,
    pg_catalog.current_setting('server_encoding') AS encoding, pg_catalog.current_database()::text AS database,
    current_user::text AS role, coalesce(pg_catalog.current_schema()::text, '') AS current_schema,
    pg_catalog.current_setting('lock_timeout') AS lock_timeout,
    pg_catalog.current_setting('statement_timeout') AS statement_timeout,
    pg_catalog.current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
    pg_catalog.current_setting('client_connection_check_interval') AS client_connection_check_interval,
    pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
    pg_catalog.current_setting('session_replication_role') AS session_replication_role,
    (SELECT (extract(epoch FROM a.backend_start) * 1000000::numeric)::int8
        FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a) AS backend_start,
    pg_catalog.current_setting('default_transaction_read_only') AS default_transaction_read_only,
    s.synchronous_commit_default, s.default_transaction_isolation, s.read_only_source
FROM (SELECT pg_catalog.max(reset_val) FILTER (WHERE name = 'synchronous_commit') AS synchronous_commit_default,
        pg_catalog.max(reset_val) FILTER (WHERE name = 'default_transaction_isolation') AS default_transaction_isolation,
        pg_catalog.max(source) FILTER (WHERE name = 'default_transaction_read_only') AS read_only_source
    FROM pg_catalog.pg_settings
    WHERE name IN ('synchronous_commit', 'default_transaction_isolation', 'default_transaction_read_only')) AS s";

    /// Whether transactions of this session are read only unless they say otherwise, and the source of that setting. No
    /// parameters. Result, one row: `read_only bool`, `source text` as `pg_settings` has it.
    read_only_default: "\
SELECT setting = 'on' AS read_only, source FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'";

    /// Ends the server process that still runs an abandoned unit, and no other: a pooler may have given the process to
    /// another client meanwhile, and the server its number to another process.
    ///
    /// Parameters: 1 the process `int4`, 2 when it began in µs since the Unix epoch `int8` where it serves no other
    /// client, otherwise NULL, 3 the unit's transaction `text` or NULL. Result: `ended bool`, or no row where the unit
    /// has ended.
    terminate_unit: "\
SELECT pg_catalog.pg_terminate_backend(pid) AS ended FROM pg_catalog.pg_stat_activity
WHERE pid = $1::int4 AND ((extract(epoch FROM backend_start) * 1000000::numeric)::int8 = $2::int8
    OR backend_xid = $3::text::xid8::xid)";

    /// The newest migration. Run it only where `schema_facts` reports `migrations_table`. No parameters. Result, at most
    /// one row: `version int4`, `oldest_worker text`.
    schema_version: "SELECT version, oldest_worker FROM {schema}.migrations ORDER BY version DESC LIMIT 1";

    /// The sequences that are behind the rows of their columns. Run it only where `schema_facts` reports the function. No parameters.
    /// Result, a row a sequence: `table_name text`, `sequence_name text`, quoted and with its schema, `next_value int8`, `highest int8`.
    sequences_behind: "SELECT table_name, sequence_name, next_value, highest FROM {schema}.sequences_behind()";

    /// Writes the events of a unit. The numbers are drawn first and given by rank, so that the rows come sorted and nothing is kept
    /// or sorted here: functions in FROM, and a sort of whole rows, cost the server more than they are worth.
    ///
    /// Parameters, the arrays of one length, in the order of the first three: 1 destinations `int4[]`, 2 consumers `int4[]`, 3 key
    /// ids `uuid[]`, 4 keys `text[]`, 5 ordering keys `bytea[]`, 6 event types `text[]`, 7 content types `text[]`, 8 headers `text[]`
    /// (JSON), 9 payloads `bytea[]`, 10 hashes `bytea[]`, 11 ranks from 1 `int4[]`; 5 to 8 may hold NULLs. Result, a row an event
    /// that was inserted: `destination int4`, `consumer int4`, `key_id uuid`. An event that is not among them is in the outbox,
    /// or was: read it, in another statement.
    append_events: insert_events!("ON CONFLICT (destination, consumer, key_id) DO NOTHING\n");

    /// The same of events none of which is in the outbox, as far as is known: one that is makes the statement fail on the
    /// primary key. Looking for such a one is a third of an event's cost at the server here.
    append_new_events: insert_events!("");

    /// Writes the event of a unit that has one, with the same parameters and the same result: without taking arrays apart.
    append_event: insert_event!("ON CONFLICT (destination, consumer, key_id) DO NOTHING\n");

    /// The same of events none of which is in the outbox, for a store that sends the seal and the COMMIT behind it without waiting for
    /// the answer: so it fails, with 22012, where the table has taken fewer of them than it was given. The result says nothing.
    append_before_seal: concat!("WITH written AS (", insert_events!(""), ")\n", all_written!());

    /// The same of one event.
    append_one_before_seal: concat!("WITH written AS (", insert_event!(""), ")\n", all_written!());

    /// Reads events that were not inserted, as a statement of its own, which sees commits made meanwhile. Parameters: 1
    /// destinations `int4[]`, 2 consumers `int4[]`, 3 key ids `uuid[]`. Result, a row an event that was found: `destination
    /// int4`, `consumer int4`, `key_id uuid`, `event_key text`, `event_hash bytea`.
    read_events: "\
SELECT o.destination, o.consumer, o.key_id, o.event_key, o.event_hash
FROM ROWS FROM (pg_catalog.unnest($1::int4[]), pg_catalog.unnest($2::int4[]), pg_catalog.unnest($3::uuid[]))
    AS asked (destination, consumer, key_id)
JOIN {schema}.outbox AS o
    ON o.destination = asked.destination AND o.consumer = asked.consumer AND o.key_id = asked.key_id";

    /// Writes the answers of a unit, each in place of one that outlived its record, and is its seal.
    ///
    /// Parameters: 1 and 2 as for the seal, and the arrays of one length 3 consumers `int4[]`, 4 key ids `uuid[]`, 5 kinds `int4[]` (0 an
    /// answer, 1 an error), 6 statuses `int4[]`, 7 content types `text[]`, 8 headers `text[]` (JSON), 9 bodies `bytea[]`, 10 the numbers
    /// of the keys that they are sealed with `int4[]`, 11 for how many microseconds they are kept `int8[]` (NULL: as long as their
    /// records), 12 the references that stay of them then `text[]`; 6 to 8 and 10 to 12 may hold NULLs. Result and errors:
    /// those of the seal.
    seal_results: concat!(
        "WITH written AS (",
        insert_results!(
            "\
SELECT consumer, key_id, kind::int2, status::int2, content_type, headers::json, body, sealed_with::int2,
    pg_catalog.now() + kept_for::float8 * interval '1 microsecond', reference
FROM ROWS FROM (pg_catalog.unnest($3::int4[]), pg_catalog.unnest($4::uuid[]), pg_catalog.unnest($5::int4[]),
    pg_catalog.unnest($6::int4[]), pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::text[]), pg_catalog.unnest($9::bytea[]),
    pg_catalog.unnest($10::int4[]), pg_catalog.unnest($11::int8[]), pg_catalog.unnest($12::text[]))
    AS asked (consumer, key_id, kind, status, content_type, headers, body, sealed_with, kept_for, reference)
ORDER BY consumer, key_id"
        ),
        ")\nSELECT ",
        sealed!()
    );

    /// The same for a unit that has one answer, with the values in place of the arrays.
    seal_result: concat!(
        insert_results!(
            "\
VALUES ($3::int4, $4::uuid, $5::int4::int2, $6::int4::int2, $7::text, $8::text::json, $9::bytea, $10::int4::int2,
    pg_catalog.now() + $11::int8::float8 * interval '1 microsecond', $12::text)"
        ),
        "\nRETURNING ",
        sealed!()
    );

    /// Reads the answers of keys whose records were found. Parameters: 1 consumers `int4[]`, 2 key ids `uuid[]`. Result, a row an
    /// answer that was found: `consumer int4`, `key_id uuid`, `kind int4` (1 an error, 2 more where it was erased, 6 more where its time was
    /// over), `status int4`, `content_type text`, `headers text` (JSON), `body bytea`, `sealed_with int4`, `reference text`,
    /// `answer_until` in µs since the Unix epoch; `status` to `headers`, `sealed_with`, `reference` and `answer_until` may be NULL.
    read_results: "\
SELECT consumer, key_id, kind::int4 AS kind, status::int4 AS status, content_type, headers::text AS headers, body,
    sealed_with::int4 AS sealed_with, reference, (extract(epoch FROM answer_until) * 1000000::numeric)::int8 AS answer_until
FROM {schema}.read_results($1::int4[], $2::uuid[])";

    /// Whether this role may write events and answers. No parameters. Result, one row: `may bool`.
    may_append: "\
SELECT pg_catalog.has_table_privilege('{schema}.outbox', 'INSERT')
    AND pg_catalog.has_table_privilege('{schema}.processed_results', 'INSERT') AS may";

    /// The parts of the schema, from the catalogues alone: see [`SchemaFacts`](crate::SchemaFacts), whose fields have
    /// the columns' names.
    ///
    /// Parameter: 1 the schema's plain name `text`. Result, one row: `migrations_table bool`, `table_kind text` or NULL,
    /// `columns text[]`, `indexes text[]`, `seal_triggers text[]`, `suppressors text[]`, `functions text[]`,
    /// `missing_privileges text[]`, `triggers_fire bool`.
    schema_facts: include_str!("postgres/schema_facts.sql");
}

impl PostgresStatements {
    /// The text that asks whether a key is free for these consumers, for the simple protocol: it inserts a row for each for which it is.
    ///
    /// BEGIN, the claim and ROLLBACK are one message, between whose statements the server waits for no client: whatever becomes of
    /// that, the key is held for no longer than the server takes to go on. After an error the transaction holds nothing, and
    /// is to be rolled back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use idem_core::Uuid;
    /// # use idem_sql::{PostgresStatements, SchemaName, UnitLimits};
    /// let second = Duration::from_secs(1);
    /// let limits = UnitLimits { lock: second, statement: second, idle_in_transaction: second };
    /// let text = PostgresStatements::new(&SchemaName::default()).question(limits, &[7, 8], Uuid::nil());
    /// assert!(text.starts_with("BEGIN ") && text.ends_with("; ROLLBACK"));
    /// assert!(text.contains("'{7,8}'::int4[]") && text.contains("'00000000-0000-0000-0000-000000000000'::uuid"));
    /// ```
    #[must_use]
    pub fn question(&self, limits: UnitLimits, consumers: &[i32], key_id: Uuid) -> String {
        let consumers: Vec<String> = consumers.iter().map(i32::to_string).collect();
        let claim = self.claim_to_ask.replace("$1", &format!("'{{{}}}'", consumers.join(",")));
        format!("{}; {}; ROLLBACK", begin_unit(Some(limits), None), claim.replace("$2", &format!("'{key_id}'")))
    }
}

#[cfg(test)]
mod tests;
