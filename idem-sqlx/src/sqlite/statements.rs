//! The statements of SQLite, as texts: each is documented with its parameters and its result.

use std::sync::Arc;

use idem_schema::{Dialect, SchemaName};
use sqlx::AssertSqlSafe;

macro_rules! statements {
    ($($(#[$doc:meta])+ $name:ident: $text:expr;)+) => {
        /// Every statement of the store, with the tables' prefix in it. All instants are microseconds.
        ///
        /// The prefix is a checked [`SchemaName`]; every other value is bound.
        #[derive(Debug)]
        pub(super) struct Statements {
            $($(#[$doc])+ $name: Arc<str>,)+
        }

        impl Statements {
            pub(super) fn new(schema: &SchemaName) -> Self {
                Self { $($name: Dialect::Sqlite.render($text, schema).into(),)+ }
            }

            $($(#[$doc])+ pub(super) fn $name(&self) -> AssertSqlSafe<Arc<str>> {
                AssertSqlSafe(Arc::clone(&self.$name))
            })+
        }
    };
}

statements! {
    /// Claims keys, notes the unit if anything was won, and forgets the attempts of these keys if the unit commits. It is
    /// one text, because each text is one trip to the connection's thread.
    ///
    /// 1 a JSON array of `[consumer, key, hash id, expires at]`, 2 a blob with 16 bytes of key id and 32 bytes of payload
    /// hash a claim, 3 now, 4 run, 5 lane. Result, a row a key that was inserted: `consumer`, `key_id`.
    claim: r#"
INSERT INTO "{schema}_processed_messages"
    (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at)
SELECT value ->> 0, substr(?2, 1 + 48 * key, 16), value ->> 1, substr(?2, 17 + 48 * key, 32), value ->> 2, ?3, ?4,
    value ->> 3
FROM json_each(?1) WHERE true
ON CONFLICT (consumer, key_id) DO NOTHING
RETURNING consumer, key_id;
INSERT INTO "{schema}_units" (run, lane, at) SELECT ?4, ?5, ?3 WHERE changes() > 0;
DELETE FROM "{schema}_attempts" WHERE EXISTS (SELECT 1 FROM "{schema}_attempts") AND (consumer, key_id) IN (
    SELECT value ->> 0, substr(?2, 1 + 48 * key, 16) FROM json_each(?1))"#;

    /// Reads the records of keys. 1 and 2 as for `claim`. Result, a row a key that was found: `place`, its position from
    /// 0, `idempotency_key`, `payload_hash`, `hash_id`, `processed_at`, `processed_by`, `expires_at`.
    read: r#"
SELECT asked.key AS place, p.idempotency_key, p.payload_hash, p.hash_id, p.processed_at, p.processed_by, p.expires_at
FROM json_each(?1) AS asked CROSS JOIN "{schema}_processed_messages" AS p
WHERE p.consumer = asked.value ->> 0 AND p.key_id = substr(?2, 1 + 48 * asked.key, 16)"#;

    /// 1 tenant, 2 name. Result, at most one row: `id`, `bound_to`, `handler`, `key_rules`, `hash_rules`.
    select_consumer: r#"
SELECT id, bound_to, handler, key_rules, hash_rules FROM "{schema}_consumers" WHERE tenant = ?1 AND name = ?2"#;

    /// 1 tenant, 2 name, 3 bound_to, 4 handler, 5 key rules, 6 hash rules, 7 retention or NULL, 8 now. Result: `id`.
    insert_consumer: r#"
INSERT INTO "{schema}_consumers" (tenant, name, bound_to, handler, key_rules, hash_rules, retention, first_started_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING id"#;

    /// What a first start left open is bound by the first start that has it. 1 id, 2 bound_to, 3 handler, 4 retention.
    update_consumer: r#"
UPDATE "{schema}_consumers" SET bound_to = ?2, handler = ?3, retention = ?4 WHERE id = ?1"#;

    /// Gives another tenant of a consumer a scope of its own. 1 tenant, 2 name, 3 now. Result: `id`, or no row where
    /// nobody has registered the consumer.
    insert_scope: r#"
INSERT INTO "{schema}_consumers" (tenant, name, bound_to, handler, key_rules, hash_rules, retention, first_started_at)
SELECT ?1, name, bound_to, handler, key_rules, hash_rules, retention, ?3 FROM "{schema}_consumers"
WHERE name = ?2 ORDER BY id LIMIT 1
RETURNING id"#;

    /// 1 rule. Result: `id` or no row.
    select_hash: r#"SELECT id FROM "{schema}_payload_hashes" WHERE rule = ?1"#;

    /// 1 rule. Result: `id`.
    insert_hash: r#"INSERT INTO "{schema}_payload_hashes" (rule) VALUES (?1) RETURNING id"#;

    /// 1 host, 2 process, 3 version, 4 now. Result: `id`.
    insert_run: r#"
INSERT INTO "{schema}_worker_runs" (host, process, version, started_at) VALUES (?1, ?2, ?3, ?4) RETURNING id"#;

    /// 1 consumer, 2 key id, 3 key, 4 payload hash, 5 now. Result: `attempts`, this one included.
    count_attempt: r#"
INSERT INTO "{schema}_attempts" AS a
    (consumer, key_id, idempotency_key, payload_hash, attempts, first_at, last_at)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5)
ON CONFLICT (consumer, key_id) DO UPDATE SET
    attempts = CASE WHEN a.payload_hash = excluded.payload_hash THEN a.attempts + 1 ELSE 1 END,
    first_at = CASE WHEN a.payload_hash = excluded.payload_hash THEN a.first_at ELSE excluded.first_at END,
    idempotency_key = excluded.idempotency_key, payload_hash = excluded.payload_hash, last_at = excluded.last_at
RETURNING attempts"#;

    /// 1 consumer, 2 key id. Never below zero.
    uncount_attempt: r#"
UPDATE "{schema}_attempts" SET attempts = max(attempts - 1, 0) WHERE consumer = ?1 AND key_id = ?2"#;

    /// 1 consumer, 2 key id.
    forget_attempts: r#"DELETE FROM "{schema}_attempts" WHERE consumer = ?1 AND key_id = ?2"#;

    /// 1 consumer, 2 origin, 3 key id, 4 key, 5 payload hash, 6 hash id or NULL where that is of the payload's bytes,
    /// 7 reason, 8 attempts, 9 error, 10 payload, 11 its size, 12 whether there was one, 13 headers, 14 message id, 15 type,
    /// 16 record key, 17 now, 18 identity, 19 fingerprint. Result: `id`, or no row where a row has its identity.
    insert_dead_letter: r#"
INSERT INTO "{schema}_dead_letters" (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id,
    reason, attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key, first_at,
    last_at, identity, fingerprint)
VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?17, ?18, ?19)
ON CONFLICT DO NOTHING RETURNING id"#;

    /// Folds a dead letter into the row that has its identity. A copy counts if its origin is neither the row's first nor
    /// its last one: what a crash brings back does not. A new one puts a row whose replay has ended before the operator
    /// again, and a payload that was over the limit is kept where it comes now. 1 consumer, 2 identity, 3 origin, 4 reason,
    /// 5 attempts, 6 error, 7 fingerprint, 8 now, 9 payload or NULL. Result: `id`.
    count_dead_letter: r#"
UPDATE "{schema}_dead_letters" SET copies = copies + (?3 NOT IN (origin, last_origin)),
    last_origin = CASE WHEN ?3 = origin THEN last_origin ELSE ?3 END,
    reason = ?4, attempts = ?5, error = ?6, fingerprint = ?7, last_at = ?8,
    payload = CASE WHEN has_payload THEN ifnull(payload, ?9) END,
    replay_requested_at = CASE WHEN replayed_at IS NULL OR ?3 IN (origin, last_origin) THEN replay_requested_at END,
    replay_taken_at = CASE WHEN replayed_at IS NULL OR ?3 IN (origin, last_origin) THEN replay_taken_at END,
    replay_taken_by = CASE WHEN replayed_at IS NULL OR ?3 IN (origin, last_origin) THEN replay_taken_by END,
    replay_outcome = CASE WHEN replayed_at IS NULL OR ?3 IN (origin, last_origin) THEN replay_outcome END,
    replayed_at = CASE WHEN ?3 IN (origin, last_origin) THEN replayed_at END
WHERE consumer = ?1 AND identity = ?2 RETURNING id"#;

    /// 1 id. Result: what `dead_letters` reads.
    select_dead_letter: r#"
SELECT id, idempotency_key, origin, reason, attempts, error, fingerprint, copies, first_at,
    payload IS NOT NULL OR has_payload = 0 AS payload_kept, published_at,
    loss_accepted_at IS NOT NULL AS loss_accepted, replay_outcome
FROM "{schema}_dead_letters" WHERE id = ?1"#;

    /// 1 consumer's name, 2 how many. Result, newest first: as `select_dead_letter`.
    dead_letters: r#"
SELECT d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.fingerprint, d.copies, d.first_at,
    d.payload IS NOT NULL OR d.has_payload = 0 AS payload_kept, d.published_at,
    d.loss_accepted_at IS NOT NULL AS loss_accepted, d.replay_outcome
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
WHERE c.name = ?1 ORDER BY d.id DESC LIMIT ?2"#;

    /// 1 id, 2 now.
    mark_published: r#"UPDATE "{schema}_dead_letters" SET published_at = ?2 WHERE id = ?1"#;

    /// A payload that was too large to keep cannot be replayed. 1 a JSON array of ids, 2 now.
    request_replay: r#"
UPDATE "{schema}_dead_letters" SET replay_requested_at = ?2, replay_taken_at = NULL, replay_taken_by = NULL,
    replayed_at = NULL, replay_outcome = NULL
WHERE id IN (SELECT value FROM json_each(?1)) AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL)
    AND (payload IS NOT NULL OR has_payload = 0)"#;

    /// Whether anything waits for a replay. 1 consumer's name, 2 taken before. Result: `waiting`.
    replays_waiting: r#"
SELECT EXISTS (
    SELECT 1 FROM "{schema}_consumers" AS c JOIN "{schema}_dead_letters" AS d ON d.consumer = c.id
    WHERE c.name = ?1 AND d.replay_requested_at IS NOT NULL AND d.replayed_at IS NULL
        AND (d.replay_taken_at IS NULL OR d.replay_taken_at < ?2)) AS waiting"#;

    /// 1 consumer's name, 2 taken before, 3 how many, 4 now, 5 run. Result, in any order: `id`, `consumer`, `origin`,
    /// `idempotency_key`, `payload`, `has_payload`, `headers`, `message_id`, `message_type`, `record_key`.
    take_replays: r#"
UPDATE "{schema}_dead_letters" SET replay_taken_at = ?4, replay_taken_by = ?5
WHERE id IN (
    SELECT d.id FROM "{schema}_consumers" AS c JOIN "{schema}_dead_letters" AS d ON d.consumer = c.id
    WHERE c.name = ?1 AND d.replay_requested_at IS NOT NULL AND d.replayed_at IS NULL
        AND (d.replay_taken_at IS NULL OR d.replay_taken_at < ?2)
    ORDER BY d.id LIMIT ?3)
RETURNING id, consumer, origin, idempotency_key, payload, has_payload, headers, message_id, message_type, record_key"#;

    /// 1 id, 2 now, 3 outcome.
    finish_replay: r#"
UPDATE "{schema}_dead_letters" SET replayed_at = ?2, replay_outcome = ?3
WHERE id = ?1 AND replay_requested_at IS NOT NULL AND replayed_at IS NULL"#;

    /// 1 id.
    release_replay: r#"
UPDATE "{schema}_dead_letters" SET replay_taken_at = NULL, replay_taken_by = NULL
WHERE id = ?1 AND replayed_at IS NULL"#;

    /// 1 consumer. Result: `state`, `by`, `reason`, `epoch`, or no row: running.
    control: r#"SELECT state, "by", reason, epoch FROM "{schema}_controls" WHERE consumer = ?1"#;

    /// 1 consumer, 2 state, 3 by, 4 reason, 5 now.
    set_control: r#"
INSERT INTO "{schema}_controls" (consumer, state, "by", reason, at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, "by" = excluded."by", reason = excluded.reason,
    at = excluded.at"#;

    /// 1 now, 2 who, 3 action, 4 consumer, 5 key, 6 details.
    audit: r#"
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"#;
}
