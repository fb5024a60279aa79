//! The statements outside of units of work, which every database has in its own dialect.

mod sqlite;

use std::sync::Arc;

use crate::text::{
    dialect::Dialect, inbox::InboxStatements, name::SchemaName, outbox::OutboxStatements, statements::statements,
};

statements! {
    /// The statements outside of units of work.
    ///
    /// The documentation holds for both dialects: parameters by their numbers, results by their names. The types are
    /// those of PostgreSQL. In SQLite an instant is an `INTEGER` of microseconds since the Unix epoch, and one parameter
    /// more follows the last: now, by the process's clock, because a file has none.
    BookkeepingStatements with outbox: OutboxStatements with inbox: InboxStatements;

    /// The binding of a consumer's name, and the id of its scope. The oldest scope of the name holds the binding.
    ///
    /// Parameters: 1 tenant `text`, 2 name `text`. Result, no row where the name is new: `binding int4`, the id of the
    /// scope that binds; `id int4`, that of the tenant's scope, or NULL; `bound_to text`, `handler text`, `key_rules text`,
    /// `hash_rules text`, each empty where no start has named it; `derives_as text`, the first name of one that was renamed, or
    /// NULL.
    select_consumer: "\
SELECT oldest.id AS binding, wanted.id, oldest.bound_to, oldest.handler, oldest.key_rules, oldest.hash_rules, oldest.derives_as
FROM (SELECT * FROM {schema}.consumers WHERE name = $2::text ORDER BY id LIMIT 1) AS oldest
LEFT JOIN {schema}.consumers AS wanted ON wanted.name = oldest.name AND wanted.tenant = $1::text";

    /// Parameters: 1 tenant, 2 name, 3 bound_to, 4 handler, 5 key_rules, 6 hash_rules, all `text`, 7 retention in µs or
    /// NULL for ever, 8 the [numbers](idem_core::store::Interned) that it may have `int8[]`. Result: `id int4`, or no row where
    /// another start was first: select again.
    insert_consumer: "\
INSERT INTO {schema}.consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention)
OVERRIDING SYSTEM VALUE
SELECT free.id::int4, $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::int8::float8 * interval '1 microsecond'
FROM pg_catalog.unnest($8::int8[]) WITH ORDINALITY AS free (id, place)
WHERE NOT EXISTS (SELECT FROM {schema}.consumers AS other WHERE other.id = free.id) ORDER BY free.place LIMIT 1
ON CONFLICT (name, tenant) DO NOTHING RETURNING id";

    /// The present name of a consumer that had this name at first. Parameter: 1 name `text`. Result: `name text`, or no row.
    select_renamed: "\
SELECT name FROM {schema}.consumers WHERE derives_as = $1::text AND name <> $1::text ORDER BY id LIMIT 1";

    /// Another consumer that is bound to a source. Parameters: 1 bound_to, 2 the name that is not meant, both `text`. Result: `name text`,
    /// or no row.
    select_reader: "\
SELECT name FROM {schema}.consumers WHERE bound_to <> '' AND bound_to = $1::text AND name <> $2::text ORDER BY id LIMIT 1";

    /// Adds the scope of another tenant, like the oldest of its name.
    ///
    /// Parameters: 1 tenant `text`, 2 name `text`, 3 the [numbers](idem_core::store::Interned) that it may have `int8[]`. Result:
    /// `id int4`, or no row where another was first: select again.
    insert_tenant: "\
INSERT INTO {schema}.consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention, redelivery_horizon,
    derives_as)
OVERRIDING SYSTEM VALUE
SELECT free.id::int4, $1::text, oldest.name, oldest.bound_to, oldest.handler, oldest.key_rules, oldest.hash_rules,
    oldest.retention, oldest.redelivery_horizon, oldest.derives_as
FROM (SELECT * FROM {schema}.consumers WHERE name = $2::text ORDER BY id LIMIT 1) AS oldest
CROSS JOIN (
    SELECT asked.id FROM pg_catalog.unnest($3::int8[]) WITH ORDINALITY AS asked (id, place)
    WHERE NOT EXISTS (SELECT FROM {schema}.consumers AS other WHERE other.id = asked.id) ORDER BY asked.place LIMIT 1
) AS free
ON CONFLICT (name, tenant) DO NOTHING RETURNING id";

    /// Fills in the parts that no start had named, and goes over to another hash rule. It never changes a bound part: a
    /// race that was lost answers no row, and the start has to compare again.
    ///
    /// Parameters: 1 binding `int4`, 2 bound_to, 3 handler, 4 hash_rules, 5 the hash_rules that were read, 6 key_rules, all
    /// `text`. Result: `id int4`, or no row.
    fill_binding: "\
UPDATE {schema}.consumers SET bound_to = $2::text, handler = $3::text, hash_rules = $4::text, key_rules = $6::text
WHERE id = $1::int4 AND key_rules IN ('', $6::text) AND bound_to IN ('', $2::text) AND handler IN ('', $3::text)
    AND hash_rules = $5::text RETURNING id";

    /// How long records are kept, and for how long the broker may deliver again.
    ///
    /// Parameters: 1 consumer `int4`, 2 retention in µs or NULL for ever, 3 redelivery horizon in µs or NULL where the
    /// broker does not say. Result: `id int4` if one was changed.
    update_horizons: "\
UPDATE {schema}.consumers AS c SET retention = asked.retention, redelivery_horizon = asked.redelivery_horizon
FROM (SELECT $2::int8::float8 * interval '1 microsecond' AS retention,
    $3::int8::float8 * interval '1 microsecond' AS redelivery_horizon) AS asked
WHERE c.id = $1::int4 AND (c.retention IS DISTINCT FROM asked.retention
    OR c.redelivery_horizon IS DISTINCT FROM asked.redelivery_horizon) RETURNING c.id";

    /// Parameter: 1 rule `text`. Result: `id int4` or no row.
    select_hash: "SELECT id FROM {schema}.payload_hashes WHERE rule = $1::text";

    /// Parameters: 1 rule `text`, 2 the [numbers](idem_core::store::Interned) that it may have `int8[]`. Result: `id int4`, or no
    /// row where another start was first: select again.
    insert_hash: "\
INSERT INTO {schema}.payload_hashes (id, rule) OVERRIDING SYSTEM VALUE
SELECT free.id::int4, $1::text FROM pg_catalog.unnest($2::int8[]) WITH ORDINALITY AS free (id, place)
WHERE NOT EXISTS (SELECT FROM {schema}.payload_hashes AS other WHERE other.id = free.id) ORDER BY free.place LIMIT 1
ON CONFLICT (rule) DO NOTHING RETURNING id";

    /// Parameters: 1 host `text`, 2 process `int4`, 3 version `text`. Result: `id int4` and
    /// `server_now` in µs since the Unix epoch.
    insert_run: "\
INSERT INTO {schema}.worker_runs (host, process, version) VALUES ($1::text, $2::int4, $3::text)
RETURNING id, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now";

    /// Counts an attempt, before the run and in a transaction of its own.
    ///
    /// Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 key `text`, 4 payload hash `bytea`. Result: `attempts int4`, this
    /// one included. Another payload under the same key is another message, with a count of its own.
    count_attempt: "\
INSERT INTO {schema}.message_attempts AS a (consumer, key_id, idempotency_key, attempts, payload_hash)
VALUES ($1::int4, $2::uuid, $3::text, 1, $4::bytea)
ON CONFLICT (consumer, key_id, payload_hash) DO UPDATE SET last_at = pg_catalog.now(), attempts = least(a.attempts, 2147483646) + 1
RETURNING attempts";

    /// Takes back the count of an attempt that failed through no fault of the message (Busy, shutdown, infrastructure).
    /// Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 payload hash `bytea`. Result: `attempts int4`, never below
    /// zero, or no row.
    uncount_attempt: "\
UPDATE {schema}.message_attempts SET attempts = greatest(attempts - 1, 0)
WHERE consumer = $1::int4 AND key_id = $2::uuid AND payload_hash = $3::bytea RETURNING attempts";

    /// Ends the count of a payload's attempts. Parameters: 1 consumer `int4`, 2 key id `uuid`, 3 payload hash `bytea`. Result:
    /// `attempts int4`, or no row.
    end_attempts: "\
UPDATE {schema}.message_attempts SET attempts = 0
WHERE consumer = $1::int4 AND key_id = $2::uuid AND payload_hash = $3::bytea RETURNING attempts";

    /// Records a dead letter, unless one with its identity is there, and ends the count of its attempts: no other payload's.
    ///
    /// It waits for a transaction that is inserting an equal row; where it returns no row, run [`Self::update_dead_letter`]
    /// as a *second statement*, which sees the row that this one met. If that one returns no row either, cleanup took the
    /// row away in between: begin again, three rounds at most. Both may share a transaction at READ COMMITTED, or have one
    /// each.
    ///
    /// Parameters: 1 consumer `int4`, 2 origin `text`, 3 key id `uuid` or NULL, 4 key `text` or NULL, 5 payload hash
    /// `bytea`, 6 hash id `int4` or NULL where that is of the payload's bytes, 7 reason `text`, 8 attempts `int4`, 9 error
    /// `text`, 10 payload `bytea` or NULL, 11 its original size `int8`, 12 whether there was one `bool`, 13 headers as JSON
    /// in `text` or NULL, 14 message id `text` or NULL, 15 message type `text` or NULL, 16 record key `bytea` or NULL,
    /// 17 ordering key `bytea` or NULL, 18 identity `bytea`, 19 fingerprint `text`. Result: no row, or `id int8`,
    /// `idempotency_key text` or NULL, `origin text`, `reason text`, `attempts int4`, `error text`, `fingerprint text` or
    /// NULL, `copies int8`, `first_at` in µs since the Unix epoch, `payload_kept bool`, `published_at` in µs since the Unix
    /// epoch or NULL, `loss_accepted bool`, `replayed text` or NULL, and `waits_until` in µs since the Unix epoch or NULL. Where a row of
    /// the key and payload waits for a later try, it is the result, and nothing is written.
    insert_dead_letter: "\
WITH waiting AS MATERIALIZED (
    SELECT id, idempotency_key, origin, reason, attempts, error, fingerprint, copies, first_at, payload, has_payload, published_at,
        loss_accepted_at, replay_outcome, due_at
    FROM {schema}.dead_letters AS w
    WHERE w.consumer = $1::int4 AND w.key_id = $3::uuid AND w.payload_hash = $5::bytea AND w.state <> 0::int2 AND w.due_by IS NULL LIMIT 1
), ended AS (
    UPDATE {schema}.message_attempts SET attempts = 0
    WHERE consumer = $1::int4 AND key_id = $3::uuid AND payload_hash = $5::bytea AND NOT EXISTS (SELECT FROM waiting)
), inserted AS (
INSERT INTO {schema}.dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason,
    attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key,
    ordering_key, identity, fingerprint)
SELECT $1::int4, $2::text, $2::text, $3::uuid, $4::text, $5::bytea, $6::int4, $7::text, $8::int4, $9::text, $10::bytea,
    $11::int8, $12::bool, $13::text::json, $14::text, $15::text, $16::bytea, $17::bytea, $18::bytea, $19::text
WHERE NOT EXISTS (SELECT FROM waiting)
ON CONFLICT (consumer, identity) DO NOTHING
RETURNING id, idempotency_key, origin, reason, attempts, error, fingerprint, copies, first_at, payload, has_payload, published_at,
    loss_accepted_at, replay_outcome, due_at
)
SELECT r.id, r.idempotency_key, r.origin, r.reason, r.attempts, r.error, r.fingerprint, r.copies,
    (extract(epoch FROM r.first_at) * 1000000::numeric)::int8 AS first_at,
    r.payload IS NOT NULL OR NOT r.has_payload AS payload_kept,
    (extract(epoch FROM r.published_at) * 1000000::numeric)::int8 AS published_at,
    r.loss_accepted_at IS NOT NULL AS loss_accepted, r.replay_outcome AS replayed,
    (extract(epoch FROM r.due_at) * 1000000::numeric)::int8 AS waits_until
FROM (SELECT * FROM waiting UNION ALL SELECT * FROM inserted) AS r";

    /// Keeps a message as a row until its later try. Parameters: those of [`Self::insert_dead_letter`], and 20 the delay in µs `int8`. Result: `id int8`, NULL where the row ended in between, and
    /// `is_written bool`.
    put_aside: "\
SELECT id, is_written FROM {schema}.put_aside($1::int4, $2::text, $3::uuid, $4::text, $5::bytea, $6::int4, $7::text, $8::int4, $9::text,
    $10::bytea, $11::int8, $12::bool, $13::text::json, $14::text, $15::text, $16::bytea, $17::bytea, $18::bytea, $19::text, $20::int8)";

    /// Folds a dead letter into the row that has its identity; see [`Self::insert_dead_letter`].
    ///
    /// A copy counts if its origin is neither the row's first nor its last one: one that comes back after a crash does
    /// not. A new copy of a message whose replay has ended puts the row before the operator again.
    ///
    /// Parameters: 1 consumer `int4`, 2 identity `bytea`, 3 origin `text`, 4 reason `text`, 5 attempts `int4`, 6 error
    /// `text`, 7 fingerprint `text`. Result: as `insert_dead_letter`.
    update_dead_letter: "\
UPDATE {schema}.dead_letters AS d SET
    copies = least(d.copies, 9223372036854775806::int8) + ($3::text NOT IN (d.origin, d.last_origin))::int4::int8,
    last_origin = CASE WHEN $3::text = d.origin THEN d.last_origin ELSE $3::text END,
    reason = $4::text, attempts = $5::int4, error = $6::text, fingerprint = $7::text, last_at = pg_catalog.now(),
    (replayed_at, replay_outcome) = (
        SELECT d.replayed_at, d.replay_outcome WHERE $3::text IN (d.origin, d.last_origin))
WHERE d.consumer = $1::int4 AND d.identity = $2::bytea
RETURNING d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.fingerprint, d.copies,
    (extract(epoch FROM d.first_at) * 1000000::numeric)::int8 AS first_at,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
    (extract(epoch FROM d.published_at) * 1000000::numeric)::int8 AS published_at,
    d.loss_accepted_at IS NOT NULL AS loss_accepted, d.replay_outcome AS replayed,
    CASE WHEN d.state <> 0::int2 AND d.due_by IS NULL THEN (extract(epoch FROM d.due_at) * 1000000::numeric)::int8 END AS waits_until";

    /// Gives a dead letter the payload that was over the limit when it was set aside. Parameters: 1 id `int8`, 2 payload
    /// `bytea`. Result: `id int8`, or no row where it is kept already, or gone.
    keep_payload: "\
SELECT kept AS id FROM {schema}.keep_payload($1::int8, $2::bytea) AS kept WHERE kept IS NOT NULL";

    /// The bytes of a consumer's dead letters, over all its tenants, except those that a replay has handled. It reads their
    /// rows, without the payloads, only where the whole table takes more than the second parameter.
    ///
    /// Parameters: 1 name `text`, 2 bytes that need no closer look `int8`, 3 bytes of a row beside its texts `int8`. Result,
    /// one row: `bytes int8`.
    dead_letter_bytes: "\
SELECT CASE WHEN taken.bytes <= $2::int8 THEN taken.bytes ELSE (
    SELECT coalesce(pg_catalog.sum($3::int8 + CASE WHEN d.payload IS NULL THEN 0::int8 ELSE d.payload_bytes END
        + coalesce(pg_catalog.pg_column_size(d.headers), 0)::int8 + pg_catalog.pg_column_size(d.error)::int8), 0::numeric)::int8
    FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
    WHERE c.name = $1::text AND coalesce(d.replay_outcome, '') NOT IN ('processed', 'duplicate')
) END AS bytes
FROM (SELECT pg_catalog.pg_total_relation_size('{schema}.dead_letters'::regclass) AS bytes) AS taken";

    /// How much room the tables take, by the catalogue. The planner's statistics know what share of the records a tenant's
    /// scope has.
    ///
    /// Parameter: 1 name `text`. Result, one row: `records int8`, `dead_letters int8`, each -1 where there is no estimate,
    /// `record_bytes int8`, `dead_letter_bytes int8`, and `records_of_largest_tenant int8`, NULL where there is no estimate.
    usage: "\
SELECT records.reltuples::int8 AS records, pg_catalog.pg_total_relation_size(records.oid::regclass) AS record_bytes,
    letters.reltuples::int8 AS dead_letters, pg_catalog.pg_total_relation_size(letters.oid::regclass) AS dead_letter_bytes,
    (SELECT (pg_catalog.max(share.frequency) * records.reltuples)::int8
        FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_stats AS s ON s.schemaname = n.nspname
        CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(s.most_common_vals::text::int4[]), pg_catalog.unnest(s.most_common_freqs))
            AS share (consumer, frequency)
        JOIN {schema}.consumers AS c ON c.id = share.consumer
        WHERE n.oid = records.relnamespace AND s.tablename = records.relname AND s.attname = 'consumer'
            AND c.name = $1::text) AS records_of_largest_tenant
FROM pg_catalog.pg_class AS records, pg_catalog.pg_class AS letters
WHERE records.oid = '{schema}.processed_messages'::regclass::oid AND letters.oid = '{schema}.dead_letters'::regclass::oid";

    /// Notes that the broker confirmed the dead letter. Parameter: 1 id `int8`. No result.
    mark_published: "UPDATE {schema}.dead_letters SET published_at = pg_catalog.now() WHERE id = $1::int8";

    /// The dead letters of a consumer over all its tenants, newest first. Parameters: 1 name `text`, 2 how many at most
    /// `int8`. Result: as `insert_dead_letter`.
    list_dead_letters: "\
SELECT d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.fingerprint, d.copies,
    (extract(epoch FROM d.first_at) * 1000000::numeric)::int8 AS first_at,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
    (extract(epoch FROM d.published_at) * 1000000::numeric)::int8 AS published_at,
    d.loss_accepted_at IS NOT NULL AS loss_accepted, d.replay_outcome AS replayed,
    CASE WHEN d.state <> 0::int2 AND d.due_by IS NULL THEN (extract(epoch FROM d.due_at) * 1000000::numeric)::int8 END AS waits_until
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE c.name = $1::text ORDER BY d.id DESC LIMIT $2::int8";

    /// Makes rows due now: dead letters whose payload was kept, and rows that wait for a later try. They have all their attempts again, and
    /// the caches of committed keys of their consumers are emptied.
    ///
    /// Parameters: 1 ids `int8[]`, in SQLite a JSON array, 2 the operator `text`. Result: `id int8` of each that was marked.
    due_now: "SELECT due AS id FROM {schema}.due_now($1::int8[], $2::text) AS due";

    /// Whether any row is due for [`Self::take_due`]: workers ask every few seconds, mostly for nothing, and that must write nothing.
    /// Parameters: 1 consumer's name `text`, 2 the lease in µs `int8`. Result: `waiting bool`.
    any_due: "SELECT {schema}.any_due($1::text, $2::int8) AS waiting";

    /// Takes rows that are due, in the order in which they are to run. A row under another run's lease is left alone until the lease is
    /// over, and so are all rows of its ordering key.
    ///
    /// Parameters: 1 consumer's name `text`, 2 run `int4`, 3 how many `int8`, 4 bytes of payload before the last one `int8`, 5 the lease in
    /// µs `int8`. Result: `id int8`, `consumer int4`, `origin text`, `idempotency_key text`, `payload bytea`, `has_payload bool`,
    /// `headers text` (JSON), `message_id text`, `message_type text`, `record_key bytea`, `ordering_key bytea`, `attempts int4`, 0 of a
    /// replay, `replayed bool`, and `was_taken bool`: whether another run's lease is over. Columns that the table lets be NULL may be NULL.
    take_due: "\
SELECT id, consumer, origin, idempotency_key, payload, has_payload, headers, message_id, message_type, record_key, ordering_key, attempts,
    replayed, was_taken
FROM {schema}.take_due($1::text, $2::int4, $3::int8, $4::int8, $5::int8)";

    /// Begins leases again. Parameters: 1 ids `int8[]`, 2 run `int4`. No result that counts.
    renew_due: "SELECT 1 AS renewed FROM {schema}.renew_due($1::int8[], $2::int4)";

    /// Gives rows back that were taken and did not run. Parameters: 1 ids `int8[]`, 2 run `int4`. No result that counts.
    release_due: "SELECT 1 AS released FROM {schema}.release_due($1::int8[], $2::int4)";

    /// Ends rows. Parameters: 1 ids `int8[]`, 2 their outcomes `text[]`, 3 run `int4`, and of those that failed 4 the delays before their
    /// later tries in µs `int8[]`, -1 of all others, 5 the reasons `text[]`, 6 the attempts `int8[]`, or 0, 7 the errors `text[]`, and 8 the
    /// fingerprints `text[]`, or ''. No result that counts.
    end_due: "\
SELECT {schema}.end_due($1::int8[], $2::text[], $3::int4, $4::int8[], $5::text[], $6::int8[], $7::text[], $8::text[]) AS ended";

    /// Parameter: 1 consumer `int4`. Result, always one row: `state text` (`running`, `paused`, `halted`), `by text`,
    /// `reason text`, `epoch int8`, `server_now` in µs since the Unix epoch, and `identity text`: which server this is,
    /// and of which life, as far as is known. A cache of committed keys must be emptied when the epoch or that differs.
    read_control: "\
SELECT coalesce(c.state, 'running') AS state, coalesce(c.by, '') AS by, coalesce(c.reason, '') AS reason,
    coalesce(c.epoch, 0) AS epoch, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now,
    {schema}.server_identity() AS identity
FROM (SELECT $1::int4 AS consumer) AS asked LEFT JOIN {schema}.controls AS c ON c.consumer = asked.consumer";

    /// Reports the state of a run, and reads the control as `read_control` does. Parameters: 1 consumer `int4`, 2 run `int4`,
    /// 3 its facts as JSON `text`, 4 whether it has ended `bool`. Result: that of `read_control`.
    report: "\
WITH reported AS (
    UPDATE {schema}.worker_runs SET consumer = $1::int4, seen_at = pg_catalog.now(), standing = $3::text,
        ended_at = CASE WHEN $4::bool THEN pg_catalog.now() END
    WHERE id = $2::int4
)
SELECT coalesce(c.state, 'running') AS state, coalesce(c.by, '') AS by, coalesce(c.reason, '') AS reason,
    coalesce(c.epoch, 0) AS epoch, (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now,
    {schema}.server_identity() AS identity
FROM (SELECT $1::int4 AS consumer) AS asked LEFT JOIN {schema}.controls AS c ON c.consumer = asked.consumer";

    /// What the tables know of a consumer, over all its tenants. Parameter: 1 name `text`. Result, always one row: `server_now int8`;
    /// the control that stops it, by `state text`, `by text`, `reason text`, `controlled_at`; its open dead letters, counted up to
    /// 10,001, by `open int8`, `conflicts int8`, `oldest`, `newest`; those among them that nothing has kept, `held int8` and
    /// `held_since`; rows that are due and that no worker took within ten minutes, `awaited int8` and `awaited_since`; and of its inbox the slots that no
    /// worker holds, `unheld int8`, and when its oldest message was received, `received`, NULL where none waits.
    standing: "\
WITH scopes AS MATERIALIZED (
    SELECT id FROM {schema}.consumers WHERE name = $1::text
), letters AS MATERIALIZED (
    SELECT d.reason, d.first_at, d.last_at, d.payload IS NULL AND d.has_payload AND d.published_at IS NULL AND d.loss_accepted_at IS NULL
        AS is_held
    FROM {schema}.dead_letters AS d
    WHERE d.consumer IN (SELECT id FROM scopes) AND d.state = 0::int2
        AND (d.replayed_at IS NULL OR pg_catalog.starts_with(d.replay_outcome, 'failed'))
    LIMIT 10001
), awaited AS MATERIALIZED (
    SELECT d.due_at FROM {schema}.dead_letters AS d
    WHERE d.consumer IN (SELECT id FROM scopes) AND d.state <> 0::int2 AND d.due_at < pg_catalog.now() - interval '10 minutes'
    LIMIT 10001
), control AS (
    SELECT o.state, o.by, o.reason, o.at FROM {schema}.controls AS o
    WHERE o.consumer IN (SELECT id FROM scopes) AND o.state <> 'running' ORDER BY o.state, o.at LIMIT 1
), inbox AS (
    SELECT f.free_slots, f.oldest FROM {schema}.consumers AS c
    CROSS JOIN LATERAL {schema}.count_messages(c.id, ARRAY[]::int8[], 1::int8) AS f
    WHERE c.name = $1::text AND c.tenant = ''
)
SELECT (extract(epoch FROM pg_catalog.now()) * 1000000::numeric)::int8 AS server_now,
    coalesce(control.state, 'running') AS state, coalesce(control.by, '') AS by, coalesce(control.reason, '') AS reason,
    (extract(epoch FROM control.at) * 1000000::numeric)::int8 AS controlled_at,
    known.open, known.conflicts, (extract(epoch FROM known.oldest) * 1000000::numeric)::int8 AS oldest,
    (extract(epoch FROM known.newest) * 1000000::numeric)::int8 AS newest,
    known.held, (extract(epoch FROM known.held_since) * 1000000::numeric)::int8 AS held_since,
    known.awaited, (extract(epoch FROM known.awaited_since) * 1000000::numeric)::int8 AS awaited_since,
    coalesce(inbox.free_slots, 0) AS unheld, (extract(epoch FROM inbox.oldest) * 1000000::numeric)::int8 AS received
FROM (
    SELECT pg_catalog.count(*) AS open, pg_catalog.count(*) FILTER (WHERE reason = 'conflict') AS conflicts,
        pg_catalog.min(first_at) AS oldest, pg_catalog.max(last_at) AS newest,
        pg_catalog.count(*) FILTER (WHERE is_held) AS held, pg_catalog.min(first_at) FILTER (WHERE is_held) AS held_since,
        (SELECT pg_catalog.count(*) FROM awaited) AS awaited, (SELECT pg_catalog.min(due_at) FROM awaited) AS awaited_since
    FROM letters
) AS known LEFT JOIN control ON true LEFT JOIN inbox ON true";

    /// The last 100 runs of a consumer that have reported their state, the newest first. Parameter: 1 name `text`. Result: `run int4`, `host text`,
    /// `process int4`, `started_at`, `seen_at`, `ended_at` or NULL, and `standing text`, the facts as JSON.
    runs: "\
SELECT r.id AS run, r.host, r.process, (extract(epoch FROM r.started_at) * 1000000::numeric)::int8 AS started_at,
    (extract(epoch FROM r.seen_at) * 1000000::numeric)::int8 AS seen_at,
    (extract(epoch FROM r.ended_at) * 1000000::numeric)::int8 AS ended_at, r.standing
FROM {schema}.worker_runs AS r
WHERE r.seen_at IS NOT NULL AND r.consumer IN (SELECT c.id FROM {schema}.consumers AS c WHERE c.name = $1::text)
ORDER BY r.id DESC LIMIT 100";

    /// Parameters: 1 consumer `int4`, 2 state `text`, 3 by `text`, 4 reason `text`. Result: `epoch int8`.
    write_control: "\
INSERT INTO {schema}.controls AS c (consumer, state, by, reason) VALUES ($1::int4, $2::text, $3::text, $4::text)
ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, by = excluded.by, reason = excluded.reason, at = pg_catalog.now()
RETURNING epoch";

    /// Parameters: 1 who `text`, 2 action `text`, 3 consumer `int4` or NULL, 4 key `text` or NULL, 5 details `text`.
    /// Result: `id int8`.
    insert_audit: "\
INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
VALUES ($1::text, $2::text, $3::int4, $4::text, $5::text) RETURNING id";
}
