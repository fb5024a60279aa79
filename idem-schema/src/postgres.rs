//! The statements of PostgreSQL, as texts: each is documented with its parameters and its result.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use crate::{migrations::Dialect, name::SchemaName};

/// The limits that hold from `BEGIN` to the end of the claim, and for the idle time of the whole unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitLimits {
    /// How long the claim waits for one lock. The session's own limit stays in force where this is no shorter than
    /// `statement`, which then bounds the wait: each setting costs every unit some microseconds.
    pub lock: Duration,
    /// How long the claim takes altogether: the server counts `lock` anew for each lock.
    pub statement: Duration,
    /// After how much idleness the server ends the transaction, so that a stopped worker's claims block nobody.
    pub idle_in_transaction: Duration,
}

/// The text that begins a unit with its limits, in one round trip of the simple protocol.
///
/// The claim puts `lock` and `statement` back (see [`PostgresStatements::claim`]); the idle limit stays to the end. All
/// are `SET LOCAL`, so nothing outlives the transaction behind a pooler.
///
/// It asks for READ WRITE, so that a lane may have `default_transaction_read_only` on: whatever runs after a handler has
/// ended the transaction itself is then refused, instead of being committed statement by statement. A standby
/// refuses the BEGIN as a missing feature (`0A000`), which is to be taken as read only. Because READ WRITE also
/// overrules an old primary that is fenced by that setting alone, a store looks at the server's own value when it opens a
/// lane.
///
/// ```
/// use std::time::Duration;
/// use idem_schema::{UnitLimits, begin_unit};
///
/// let second = Duration::from_secs(1);
/// let text = begin_unit(UnitLimits { lock: second, statement: second, idle_in_transaction: 35 * second });
/// assert!(text.starts_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 1000; "));
/// ```
#[must_use]
pub fn begin_unit(limits: UnitLimits) -> String {
    let mut text = String::from("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
    let settings = [
        ("lock_timeout", Some(limits.lock).filter(|lock| *lock < limits.statement)),
        ("statement_timeout", Some(limits.statement)),
        ("idle_in_transaction_session_timeout", Some(limits.idle_in_transaction)),
    ];
    for (name, limit) in settings.into_iter().filter_map(|(name, limit)| Some((name, limit?))) {
        // Zero would switch the limit off, and the server takes no more milliseconds than an i32 holds.
        let milliseconds = limit.as_millis().clamp(1, 2_147_483_647);
        // Writing to a String cannot fail.
        let _ = write!(text, "; SET LOCAL {name} = {milliseconds}");
    }
    text
}

macro_rules! statements {
    ($($(#[$doc:meta])+ $name:ident: $text:expr;)+) => {
        /// Every statement of the PostgreSQL stores, for one schema.
        ///
        /// Parameters are numbered and cast, so that a driver binds them without asking the server. `µs` stands for an
        /// `int8` of microseconds. Texts must hold no NUL, which PostgreSQL cannot store. The texts are shared, because
        /// a driver that takes ownership of its statement would copy them once a call.
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct PostgresStatements {
            $($(#[$doc])+ pub $name: Arc<str>,)+
        }

        impl PostgresStatements {
            /// The statements with the schema's quoted name in them.
            #[must_use]
            pub fn new(schema: &SchemaName) -> Self {
                Self { $($name: Dialect::Postgres.render($text, schema).into(),)+ }
            }

            /// Every statement with its field's name, so that a test can have each prepared by a server.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
                [$((stringify!($name), &*self.$name)),+].into_iter()
            }
        }
    };
}

statements! {
    /// Claims keys: inserts what nobody has, and waits for those who hold some.
    ///
    /// Parameters, the arrays of one length, folded and sorted: 1 consumers `int4[]`, 2 key ids `uuid[]`, 3 keys
    /// `text[]`, 4 payload hashes `bytea[]`, 5 hash ids `int4[]`, 6 retentions in µs `int8[]` (a NULL, or more than a
    /// hundred years, keeps the record for ever), 7 run `int4`, 8 lane `int4`, 9 the `lock_timeout` to put back `text`,
    /// 10 the `statement_timeout` to put back `text`.
    ///
    /// Result, always one row: `won_consumers int4[]` and `won_key_ids uuid[]`, side by side, empty if nothing was
    /// inserted; `xid text`, the transaction to seal, NULL if nothing was inserted; `backend_pid int4`;
    /// `server_now timestamptz`; `epoch int8`, which differs when a cache of committed keys must be emptied; and the
    /// two settings. Whatever is not among the won keys is not thereby a duplicate: read it, in another statement.
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
    pg_catalog.pg_backend_pid() AS backend_pid, pg_catalog.now() AS server_now,
    (SELECT coalesce(pg_catalog.sum(epoch), 0)::int8 FROM {schema}.controls) AS epoch,
    pg_catalog.set_config('lock_timeout', $9::text, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', $10::text, true) AS statement_timeout
FROM answer";

    /// Claims one key, as [`claim`](Self::claim) does: for a unit of one message the arrays would cost more than the insert.
    ///
    /// Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 key `text`, 4 payload hash `bytea`, 5 hash id `int4`, 6 retention
    /// in µs `int8`, then 7 to 10 as for many keys.
    ///
    /// Result, always one row: `xid text`, the transaction to seal, NULL if the key was not inserted; `backend_pid int4`;
    /// and the two settings, which are put back when the insert has had its wait.
    claim_one: "\
WITH won AS (
    INSERT INTO {schema}.processed_messages
        (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at)
    VALUES ($1::int4, $2::uuid, $3::text, $4::bytea, $5::int4, $7::int4,
        CASE WHEN $6::int8 <= 3155760000000000 THEN
            pg_catalog.date_trunc('minute',
                pg_catalog.now() + ($6::int8 + 59999999)::float8 * interval '1 microsecond', 'UTC')
        ELSE 'infinity' END)
    ON CONFLICT (consumer, key_id) DO NOTHING
    RETURNING consumer
), unit AS (
    INSERT INTO {schema}.units (xid, run, lane)
    SELECT pg_catalog.pg_current_xact_id()::text::int8, $7::int4, $8::int4 FROM won
)
SELECT CASE WHEN answer.won > 0 THEN pg_catalog.pg_current_xact_id()::text END AS xid,
    pg_catalog.pg_backend_pid() AS backend_pid,
    pg_catalog.set_config('lock_timeout', $9::text, true) AS lock_timeout,
    pg_catalog.set_config('statement_timeout', $10::text, true) AS statement_timeout
FROM (SELECT pg_catalog.count(*) AS won FROM won) AS answer";

    /// Reads the records of keys that a claim did not win, as a statement of its own, so that it sees what was committed
    /// while the claim waited. What this very transaction has inserted is not among them: where a claim denies its own
    /// rows, its keys have no winner, and nothing is a duplicate.
    ///
    /// Parameters: 1 consumers `int4[]`, 2 key ids `uuid[]`. Result, a row a key that was found: `consumer int4`,
    /// `key_id uuid`, `idempotency_key text`, `payload_hash bytea`, `hash_id int4`, `processed_at` in µs since the Unix
    /// epoch, `processed_by int4`, `expires_at` in µs since the Unix epoch or NULL for ever.
    read: "\
SELECT consumer, key_id, idempotency_key, payload_hash, hash_id,
    (extract(epoch FROM processed_at) * 1000000::numeric)::int8 AS processed_at, processed_by,
    CASE WHEN expires_at < 'infinity' THEN (extract(epoch FROM expires_at) * 1000000::numeric)::int8 END AS expires_at
FROM {schema}.read_records($1::int4[], $2::uuid[])";

    /// Permits this transaction to commit, if it is the one that claimed; the last statement before COMMIT.
    ///
    /// Parameter: 1 the claim's xid `text`. Result: one row, not interesting. It *raises* `22012` where the transaction
    /// is another or has no id, and `25P02` where it has already failed: returning a flag would let the COMMIT that is
    /// pipelined behind it go on.
    seal: "\
SELECT pg_catalog.set_config('idem.sealed', $1::text, true),
    1 / coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = $1::text, false)::int4 AS sealed";

    /// The seal of a unit that claimed nothing, whose handlers ran unprotected: it raises where the transaction has failed
    /// (`25P02`, A9) or is not the one that was begun (`22012`), which has lost its own idle limit.
    ///
    /// Parameter: 1 the unit's `idle_in_transaction_session_timeout` in milliseconds `int8`. Result: one row.
    guard: "\
SELECT 1 / coalesce(pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval
    = $1::int8::float8 * interval '1 millisecond', false)::int4 AS guarded";

    /// What a consumer's name is bound to, and the id of its scope. The oldest scope of the name holds the binding.
    ///
    /// Parameters: 1 tenant `text`, 2 name `text`. Result, no row where the name is new: `binding int4`, the id of the
    /// scope that binds; `id int4`, that of the tenant's scope, or NULL; `bound_to text`, `handler text`, `key_rules text`,
    /// `hash_rules text`, each empty where nobody has said it.
    select_consumer: "\
SELECT oldest.id AS binding, wanted.id, oldest.bound_to, oldest.handler, oldest.key_rules, oldest.hash_rules
FROM (SELECT * FROM {schema}.consumers WHERE name = $2::text ORDER BY id LIMIT 1) AS oldest
LEFT JOIN {schema}.consumers AS wanted ON wanted.name = oldest.name AND wanted.tenant = $1::text";

    /// Parameters: 1 tenant, 2 name, 3 bound_to, 4 handler, 5 key_rules, 6 hash_rules, all `text`, 7 retention in µs or
    /// NULL for ever. Result: `id int4`, or no row where another start was first: select again. Select before you
    /// insert, so that no start burns a sequence value.
    insert_consumer: "\
INSERT INTO {schema}.consumers (tenant, name, bound_to, handler, key_rules, hash_rules, retention)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::int8::float8 * interval '1 microsecond')
ON CONFLICT (name, tenant) DO NOTHING RETURNING id";

    /// Adds the scope of another tenant, like the oldest of its name.
    ///
    /// Parameters: 1 tenant `text`, 2 name `text`. Result: `id int4`, or no row where another was first: select again.
    insert_tenant: "\
INSERT INTO {schema}.consumers (tenant, name, bound_to, handler, key_rules, hash_rules, retention)
SELECT $1::text, name, bound_to, handler, key_rules, hash_rules, retention
FROM {schema}.consumers WHERE name = $2::text ORDER BY id LIMIT 1
ON CONFLICT (name, tenant) DO NOTHING RETURNING id";

    /// Fills in what no start had said, and goes over to another hash rule. It never changes what is bound: a race that
    /// was lost answers no row, and the start has to compare again.
    ///
    /// Parameters: 1 binding `int4`, 2 bound_to, 3 handler, 4 hash_rules, 5 the hash_rules that were read, 6 key_rules, all
    /// `text`. Result: `id int4`, or no row.
    fill_binding: "\
UPDATE {schema}.consumers SET bound_to = $2::text, handler = $3::text, hash_rules = $4::text, key_rules = $6::text
WHERE id = $1::int4 AND key_rules IN ('', $6::text) AND bound_to IN ('', $2::text) AND handler IN ('', $3::text)
    AND hash_rules = $5::text RETURNING id";

    /// Parameters: 1 consumer `int4`, 2 retention in µs or NULL for ever. Result: `id int4` if it was changed.
    update_retention: "\
UPDATE {schema}.consumers SET retention = $2::int8::float8 * interval '1 microsecond'
WHERE id = $1::int4 AND retention IS DISTINCT FROM $2::int8::float8 * interval '1 microsecond' RETURNING id";

    /// Parameter: 1 rule `text`. Result: `id int4` or no row.
    select_hash: "SELECT id FROM {schema}.payload_hashes WHERE rule = $1::text";

    /// Parameter: 1 rule `text`. Result: `id int4`, or no row where another start was first: select again.
    insert_hash: "\
INSERT INTO {schema}.payload_hashes (rule) VALUES ($1::text) ON CONFLICT (rule) DO NOTHING RETURNING id";

    /// No parameters. Result: `id int4`, `rule text` of every rule that was ever used.
    list_hashes: "SELECT id, rule FROM {schema}.payload_hashes ORDER BY id";

    /// Parameters: 1 host `text`, 2 process `int4`, 3 version `text`. Result: `id int4` and
    /// `server_now` in µs since the Unix epoch.
    insert_run: "\
INSERT INTO {schema}.worker_runs (host, process, version) VALUES ($1::text, $2::int4, $3::text)
RETURNING id, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now";

    /// Parameter: 1 id `int4`. Result: `host text`, `process int4`, `version text`, `started_at timestamptz`, or no row.
    select_run: "SELECT host, process, version, started_at FROM {schema}.worker_runs WHERE id = $1::int4";

    /// Counts an attempt, before the run and in a transaction of its own.
    ///
    /// Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 key `text`, 4 payload hash `bytea`. Result: `attempts int4`, this
    /// one included. Another payload under the same key starts anew.
    count_attempt: "\
INSERT INTO {schema}.attempts AS a (consumer, key_id, idempotency_key, attempts, payload_hash)
VALUES ($1::int4, $2::uuid, $3::text, 1, $4::bytea)
ON CONFLICT (consumer, key_id) DO UPDATE SET last_at = pg_catalog.now(), payload_hash = excluded.payload_hash,
    attempts = CASE WHEN a.payload_hash = excluded.payload_hash THEN a.attempts + 1 ELSE 1 END
RETURNING attempts";

    /// Takes a count back that was nobody's fault (Busy, shutdown, infrastructure). Parameters: 1 consumer `int4`,
    /// 2 key id `uuid`. Result: `attempts int4`, never below zero, or no row.
    uncount_attempt: "\
UPDATE {schema}.attempts SET attempts = greatest(attempts - 1, 0)
WHERE consumer = $1::int4 AND key_id = $2::uuid RETURNING attempts";

    /// Records a dead letter, unless one with its identity is there.
    ///
    /// It waits for whoever is inserting an equal row; where it returns no row, run [`Self::update_dead_letter`] as a *second
    /// statement*, which sees the row that this one met. Returns that one no row either, cleanup took the row away in
    /// between: begin again, three rounds at most. Both may share a transaction at READ COMMITTED, or have one each.
    ///
    /// Parameters: 1 consumer `int4`, 2 origin `text`, 3 key id `uuid` or NULL, 4 key `text` or NULL, 5 payload hash
    /// `bytea`, 6 hash id `int4` or NULL where that is of the payload's bytes, 7 reason `text`, 8 attempts `int4`, 9 error
    /// `text`, 10 payload `bytea` or NULL, 11 its original size `int8`, 12 whether there was one `bool`, 13 headers as JSON
    /// in `text` or NULL, 14 message id `text` or NULL, 15 message type `text` or NULL, 16 record key `bytea` or NULL,
    /// 17 ordering key `bytea` or NULL, 18 identity `bytea`, 19 fingerprint `text`. Result: no row, or `id int8`,
    /// `idempotency_key text` or NULL, `origin text`, `reason text`, `attempts int4`, `error text`, `fingerprint text` or
    /// NULL, `copies int8`, `first_at` in µs since the Unix epoch, `payload_kept bool`, `published_at` in µs since the Unix
    /// epoch or NULL, `loss_accepted bool`, and `replayed text` or NULL.
    insert_dead_letter: "\
INSERT INTO {schema}.dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason,
    attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key,
    ordering_key, identity, fingerprint)
VALUES ($1::int4, $2::text, $2::text, $3::uuid, $4::text, $5::bytea, $6::int4, $7::text, $8::int4, $9::text, $10::bytea,
    $11::int8, $12::bool, $13::text::json, $14::text, $15::text, $16::bytea, $17::bytea, $18::bytea, $19::text)
ON CONFLICT DO NOTHING
RETURNING id, idempotency_key, origin, reason, attempts, error, fingerprint, copies,
    (extract(epoch FROM first_at) * 1000000::numeric)::int8 AS first_at,
    payload IS NOT NULL OR NOT has_payload AS payload_kept,
    (extract(epoch FROM published_at) * 1000000::numeric)::int8 AS published_at,
    loss_accepted_at IS NOT NULL AS loss_accepted, replay_outcome AS replayed";

    /// Folds a dead letter into the row that has its identity; see [`Self::insert_dead_letter`].
    ///
    /// A copy counts if its origin is neither the row's first nor its last one: what a crash brings back does not. A new
    /// copy of a message whose replay has ended puts the row before the operator again.
    ///
    /// Parameters: 1 consumer `int4`, 2 identity `bytea`, 3 origin `text`, 4 reason `text`, 5 attempts `int4`, 6 error
    /// `text`, 7 fingerprint `text`. Result: as `insert_dead_letter`.
    update_dead_letter: "\
UPDATE {schema}.dead_letters AS d SET
    copies = d.copies + ($3::text NOT IN (d.origin, d.last_origin))::int4::int8,
    last_origin = CASE WHEN $3::text = d.origin THEN d.last_origin ELSE $3::text END,
    reason = $4::text, attempts = $5::int4, error = $6::text, fingerprint = $7::text, last_at = pg_catalog.now(),
    (replay_requested_at, replay_taken_at, replay_taken_by, replayed_at, replay_outcome) = (
        SELECT d.replay_requested_at, d.replay_taken_at, d.replay_taken_by, d.replayed_at, d.replay_outcome
        WHERE d.replayed_at IS NULL OR $3::text IN (d.origin, d.last_origin))
WHERE d.consumer = $1::int4 AND d.identity = $2::bytea
RETURNING d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.fingerprint, d.copies,
    (extract(epoch FROM d.first_at) * 1000000::numeric)::int8 AS first_at,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
    (extract(epoch FROM d.published_at) * 1000000::numeric)::int8 AS published_at,
    d.loss_accepted_at IS NOT NULL AS loss_accepted, d.replay_outcome AS replayed";

    /// Gives a dead letter the payload that was over the limit when it was set aside. Parameters: 1 id `int8`, 2 payload
    /// `bytea`. Result: `id int8`, or no row where it is kept already, or gone.
    keep_payload: "\
SELECT kept AS id FROM {schema}.keep_payload($1::int8, $2::bytea) AS kept WHERE kept IS NOT NULL";

    /// Notes that the broker confirmed the dead letter. Parameter: 1 id `int8`. No result.
    mark_published: "UPDATE {schema}.dead_letters SET published_at = pg_catalog.now() WHERE id = $1::int8";

    /// The dead letters of a consumer over all its tenants, newest first. Parameters: 1 name `text`, 2 how many at most
    /// `int8`. Result: as `insert_dead_letter`.
    list_dead_letters: "\
SELECT d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.fingerprint, d.copies,
    (extract(epoch FROM d.first_at) * 1000000::numeric)::int8 AS first_at,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
    (extract(epoch FROM d.published_at) * 1000000::numeric)::int8 AS published_at,
    d.loss_accepted_at IS NOT NULL AS loss_accepted, d.replay_outcome AS replayed
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE c.name = $1::text ORDER BY d.id DESC LIMIT $2::int8";

    /// Asks for a replay of those that can be replayed: their payload was kept and they are not waiting already. Empties
    /// the caches of committed keys of their consumers.
    ///
    /// Parameter: 1 ids `int8[]`. Result: `marked int8`.
    request_replays: "\
WITH asked AS (
    UPDATE {schema}.dead_letters SET replay_requested_at = pg_catalog.now(), replay_taken_at = NULL, replay_taken_by = NULL,
        replayed_at = NULL, replay_outcome = NULL
    WHERE id = ANY ($1::int8[]) AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL)
        AND (payload IS NOT NULL OR NOT has_payload)
    RETURNING consumer
), emptied AS (
    INSERT INTO {schema}.controls AS c (consumer, epoch) SELECT DISTINCT consumer, 1 FROM asked ORDER BY consumer
    ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1
)
SELECT pg_catalog.count(*) AS marked FROM asked";

    /// Takes dead letters whose replay was asked for. What another run took is left alone, until that was longer ago than
    /// parameter 4: its process has died.
    ///
    /// Parameters: 1 consumer's name `text`, 2 run `int4`, 3 how many `int8`, 4 take over after µs. Result, the oldest in no
    /// promised order: `id int8`, `consumer int4`, `origin text`, `idempotency_key text`, `payload bytea`, `has_payload
    /// bool`, `headers text` (JSON), `message_id text`, `message_type text`, `record_key bytea`, `ordering_key bytea`; what
    /// the table lets be NULL may be NULL.
    take_replays: "\
WITH taken AS MATERIALIZED (
    SELECT d.id FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
    WHERE c.name = $1::text AND d.replay_requested_at IS NOT NULL AND d.replayed_at IS NULL
        AND (d.replay_taken_at IS NULL OR d.replay_taken_at < pg_catalog.now() - $4::int8::float8 * interval '1 microsecond')
    ORDER BY d.id LIMIT $3::int8 FOR UPDATE OF d SKIP LOCKED
)
UPDATE {schema}.dead_letters AS d SET replay_taken_at = pg_catalog.now(), replay_taken_by = $2::int4
FROM taken WHERE d.id = taken.id
RETURNING d.id, d.consumer, d.origin, d.idempotency_key, d.payload, d.has_payload, d.headers::text AS headers,
    d.message_id, d.message_type, d.record_key, d.ordering_key";

    /// Ends a replay. Parameters: 1 id `int8`, 2 outcome `text`. No result.
    finish_replay: "\
UPDATE {schema}.dead_letters SET replayed_at = pg_catalog.now(), replay_outcome = $2::text
WHERE id = $1::int8 AND replay_requested_at IS NOT NULL AND replayed_at IS NULL";

    /// Gives one back that was taken and did not run. Parameter: 1 id `int8`. No result.
    release_replay: "\
UPDATE {schema}.dead_letters SET replay_taken_at = NULL, replay_taken_by = NULL
WHERE id = $1::int8 AND replay_requested_at IS NOT NULL AND replayed_at IS NULL";

    /// Gives back what a run took and did not end, at its shutdown. Parameter: 1 run `int4`. Result: `id int8` of each.
    release_replays: "\
UPDATE {schema}.dead_letters SET replay_taken_at = NULL, replay_taken_by = NULL
WHERE replay_taken_by = $1::int4 AND replay_requested_at IS NOT NULL AND replayed_at IS NULL RETURNING id";

    /// Parameter: 1 consumer `int4`. Result, always one row: `state text` (`running`, `paused`, `halted`), `by text`,
    /// `reason text`, `epoch int8`, `server_now` in µs since the Unix epoch, and `identity text`: which server this is,
    /// and of which life, as far as it tells. A cache of committed keys must be emptied when the epoch or that differs.
    read_control: "\
SELECT coalesce(c.state, 'running') AS state, coalesce(c.by, '') AS by, coalesce(c.reason, '') AS reason,
    coalesce(c.epoch, 0) AS epoch, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now,
    {schema}.server_identity() AS identity
FROM (SELECT $1::int4 AS consumer) AS asked LEFT JOIN {schema}.controls AS c ON c.consumer = asked.consumer";

    /// Parameters: 1 consumer `int4`, 2 state `text`, 3 by `text`, 4 reason `text`. Result: `epoch int8`.
    write_control: "\
INSERT INTO {schema}.controls AS c (consumer, state, by, reason) VALUES ($1::int4, $2::text, $3::text, $4::text)
ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, by = excluded.by, reason = excluded.reason, at = pg_catalog.now()
RETURNING epoch";

    /// Empties every cache of committed keys of a consumer. Parameter: 1 consumer `int4`. Result: the new `epoch int8`.
    raise_epoch: "\
INSERT INTO {schema}.controls AS c (consumer, epoch) VALUES ($1::int4, 1)
ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1 RETURNING epoch";

    /// Parameters: 1 who `text`, 2 action `text`, 3 consumer `int4` or NULL, 4 key `text` or NULL, 5 details `text`.
    /// Result: `id int8`.
    insert_audit: "\
INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
VALUES ($1::text, $2::text, $3::int4, $4::text, $5::text) RETURNING id";

    /// What a lane has to know of its server, read before its first unit and after each reconnect.
    ///
    /// No parameters. Result, one row: `version_num int4` (150018), `server_now` in µs since the Unix epoch, `backend_pid
    /// int4` and `backend_start`, when that process began, in µs since the Unix epoch; `in_recovery bool`, `read_only bool`,
    /// `encoding text`, `database text`, `role text`, and as `text` the settings in force `lock_timeout`,
    /// `statement_timeout`, `idle_in_transaction_session_timeout`, `client_connection_check_interval`,
    /// `synchronous_commit`, `default_transaction_isolation`, `session_replication_role`, `default_transaction_read_only`;
    /// and `read_only_source text`, by whose word the last is what it is, as `pg_settings` has it.
    server_facts: "\
SELECT pg_catalog.current_setting('server_version_num')::int4 AS version_num,
    (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now, pg_catalog.pg_backend_pid() AS backend_pid,
    pg_catalog.pg_is_in_recovery() AS in_recovery,
    pg_catalog.current_setting('transaction_read_only')::bool AS read_only,
    pg_catalog.current_setting('server_encoding') AS encoding, pg_catalog.current_database()::text AS database,
    current_user::text AS role,
    pg_catalog.current_setting('lock_timeout') AS lock_timeout,
    pg_catalog.current_setting('statement_timeout') AS statement_timeout,
    pg_catalog.current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
    pg_catalog.current_setting('client_connection_check_interval') AS client_connection_check_interval,
    pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
    pg_catalog.current_setting('default_transaction_isolation') AS default_transaction_isolation,
    pg_catalog.current_setting('session_replication_role') AS session_replication_role,
    (SELECT (extract(epoch FROM a.backend_start) * 1000000::numeric)::int8
        FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a) AS backend_start,
    pg_catalog.current_setting('default_transaction_read_only') AS default_transaction_read_only,
    (SELECT source FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only') AS read_only_source";

    /// Whether transactions of this session are read only unless they say otherwise, and by whose word. No parameters.
    /// Result, one row: `read_only bool`, `source text` as `pg_settings` has it.
    read_only_default: "\
SELECT setting = 'on' AS read_only, source FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'";

    /// Ends the server process that still runs an abandoned unit, and no other: a pooler may have given the process to
    /// another client meanwhile, and the server its number to another process.
    ///
    /// Parameters: 1 the process `int4`, 2 when it began in µs since the Unix epoch `int8` where it serves nobody else,
    /// otherwise NULL, 3 the unit's transaction `text` or NULL. Result: `ended bool`, or no row where the unit has ended.
    terminate_unit: "\
SELECT pg_catalog.pg_terminate_backend(pid) AS ended FROM pg_catalog.pg_stat_activity
WHERE pid = $1::int4 AND ((extract(epoch FROM backend_start) * 1000000::numeric)::int8 = $2::int8
    OR backend_xid = $3::text::xid8::xid)";

    /// The newest migration. Run it only where `schema_facts` reports `migrations_table`. No parameters. Result, at most
    /// one row: `version int4`, `oldest_worker text`.
    schema_version: "SELECT version, oldest_worker FROM {schema}.migrations ORDER BY version DESC LIMIT 1";

    /// What the schema is made of, from the catalogues alone: see [`SchemaFacts`](crate::SchemaFacts), whose fields have
    /// the columns' names.
    ///
    /// Parameter: 1 the schema's plain name `text`. Result, one row: `migrations_table bool`, `table_kind text` or NULL,
    /// `columns text[]`, `indexes text[]`, `seal_trigger text` or NULL, `suppressors text[]`, `functions text[]`,
    /// `missing_privileges text[]`, `triggers_fire bool`.
    schema_facts: include_str!("postgres/schema_facts.sql");
}

#[cfg(test)]
mod tests;
