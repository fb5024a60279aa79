//! The statements of a unit of work, as texts: each is documented with its parameters and its result.

use std::sync::Arc;

use idem_sql::{Dialect, SchemaName};
use sqlx::AssertSqlSafe;

macro_rules! statements {
    ($($(#[$doc:meta])+ $name:ident: $text:expr;)+) => {
        /// Every statement of a unit of work, with the tables' prefix in it. All instants are microseconds.
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
    /// Claims keys, notes the unit if anything was won, and forgets the attempts of these messages if the unit commits. It is
    /// one text, because each text is one trip to the connection's thread.
    ///
    /// 1 a JSON array of `[consumer, key, hash id, expires at]`, 2 a blob with 16 bytes of key id and 32 bytes of payload
    /// hash a claim, 3 now, 4 run, 5 lane. Result, a row a key that was inserted: `consumer`, `key_id`, and `waits`: whether rows of any
    /// ordering key of the consumer are not over.
    claim: r#"
INSERT INTO "{schema}_processed_messages"
    (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at)
SELECT value ->> 0, substr(?2, 1 + 48 * key, 16), value ->> 1, substr(?2, 17 + 48 * key, 32), value ->> 2, ?3, ?4,
    value ->> 3
FROM json_each(?1) WHERE true
ON CONFLICT (consumer, key_id) DO NOTHING
RETURNING consumer, key_id, EXISTS (SELECT 1 FROM "{schema}_dead_letters" AS d
    WHERE d.consumer = "{schema}_processed_messages".consumer AND d.state <> 0 AND d.ordering_key IS NOT NULL) AS waits;
INSERT INTO "{schema}_units" (run, lane, at) SELECT ?4, ?5, ?3 WHERE changes() > 0;
DELETE FROM "{schema}_message_attempts" WHERE EXISTS (SELECT 1 FROM "{schema}_message_attempts")
    AND (consumer, key_id, payload_hash) IN (
        SELECT value ->> 0, substr(?2, 1 + 48 * key, 16), substr(?2, 17 + 48 * key, 32) FROM json_each(?1))"#;

    /// The rows of ordering keys that are not over. 1 a JSON array of `[consumer, place, length]`, the last two of a key in 2, a blob; 3 now.
    /// Result, a row a key that has any: `place`, its position from 0, and `runs`: whether the first is due or runs.
    rows_ahead: r#"
SELECT asked.key AS place, w.due_at <= ?3 OR w.taken_at IS NOT NULL AS runs
FROM json_each(?1) AS asked CROSS JOIN "{schema}_dead_letters" AS w
WHERE w.id = (SELECT f.id FROM "{schema}_dead_letters" AS f
    WHERE f.consumer = asked.value ->> 0 AND f.ordering_key = substr(?2, asked.value ->> 1, asked.value ->> 2)
        AND f.state <> 0 AND f.ordering_key IS NOT NULL ORDER BY f.taken_at IS NULL, f.id LIMIT 1)"#;

    /// Writes events. 1 a JSON array of `[destination, consumer, key, event type, content type, headers, key id, hash, ordering
    /// key, payload]`, where each of the last four is `[place, length]` in 2, a blob; 3 now. Result, a row an event that was
    /// inserted: `destination`, `consumer`, `key_id`.
    append_events: r#"
INSERT INTO "{schema}_outbox" (destination, consumer, event_key, event_type, content_type, headers, key_id, event_hash,
    ordering_key, payload, created_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
    substr(?2, value ->> '$[6][0]', value ->> '$[6][1]'), substr(?2, value ->> '$[7][0]', value ->> '$[7][1]'),
    substr(?2, value ->> '$[8][0]', value ->> '$[8][1]'), substr(?2, value ->> '$[9][0]', value ->> '$[9][1]'), ?3
FROM json_each(?1) WHERE true ORDER BY key
ON CONFLICT (destination, consumer, key_id) DO NOTHING
RETURNING destination, consumer, key_id"#;

    /// Reads events. 1 a JSON array of `[destination, consumer]`, 2 a blob with 16 bytes of key id each. Result, a row an event
    /// that was found: `destination`, `consumer`, `key_id`, `event_key`, `event_hash`.
    read_events: r#"
SELECT o.destination, o.consumer, o.key_id, o.event_key, o.event_hash
FROM json_each(?1) AS asked CROSS JOIN "{schema}_outbox" AS o
WHERE o.destination = asked.value ->> 0 AND o.consumer = asked.value ->> 1 AND o.key_id = substr(?2, 1 + 16 * asked.key, 16)"#;

    /// Writes answers, each in place of one that outlived its record. 1 a JSON array of `[consumer, kind, status, content type,
    /// headers, key id, body, number of the sealing key, µs that it is kept, reference]`, where key id and body are
    /// `[place, length]` in 2, a blob; 3 now.
    append_results: r#"
INSERT INTO "{schema}_processed_results" (consumer, kind, status, content_type, headers, key_id, body, sealed_with, stored_at,
    answer_until, reference)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
    substr(?2, value ->> '$[5][0]', value ->> '$[5][1]'), substr(?2, value ->> '$[6][0]', value ->> '$[6][1]'), value ->> 7, ?3,
    ?3 + (value ->> 8), value ->> 9
FROM json_each(?1) WHERE true
ON CONFLICT (consumer, key_id) DO UPDATE SET kind = excluded.kind, status = excluded.status,
    content_type = excluded.content_type, headers = excluded.headers, body = excluded.body,
    sealed_with = excluded.sealed_with, stored_at = excluded.stored_at, answer_until = excluded.answer_until,
    reference = excluded.reference"#;

    /// Reads the answers of keys. 1 a JSON array of consumers, 2 a blob with 16 bytes of key id each. Result, a row an answer that was
    /// found: `consumer`, `key_id`, `kind`, `status`, `content_type`, `headers`, `body`, `sealed_with`, `reference`,
    /// `answer_until`.
    read_results: r#"
SELECT r.consumer, r.key_id, r.kind, r.status, r.content_type, r.headers, r.body, r.sealed_with, r.reference, r.answer_until
FROM json_each(?1) AS asked CROSS JOIN "{schema}_processed_results" AS r
WHERE r.consumer = asked.value AND r.key_id = substr(?2, 1 + 16 * asked.key, 16)"#;

    /// Reads the records of keys and their answers. 1 and 2 as for `claim`. Result, a row a key that was found: the columns of `read`, and
    /// those of `read_results` from `kind` on, which are NULL where there is no answer.
    look_up: r#"
SELECT asked.key AS place, p.idempotency_key, p.payload_hash, p.hash_id, p.processed_at, p.processed_by, p.expires_at,
    r.kind, r.status, r.content_type, r.headers, r.body, r.sealed_with, r.reference, r.answer_until
FROM json_each(?1) AS asked CROSS JOIN "{schema}_processed_messages" AS p
LEFT JOIN "{schema}_processed_results" AS r ON r.consumer = p.consumer AND r.key_id = p.key_id
WHERE p.consumer = asked.value ->> 0 AND p.key_id = substr(?2, 1 + 48 * asked.key, 16)"#;

    /// Reads the records of keys. 1 and 2 as for `claim`. Result, a row a key that was found: `place`, its position from
    /// 0, `idempotency_key`, `payload_hash`, `hash_id`, `processed_at`, `processed_by`, `expires_at`.
    read: r#"
SELECT asked.key AS place, p.idempotency_key, p.payload_hash, p.hash_id, p.processed_at, p.processed_by, p.expires_at
FROM json_each(?1) AS asked CROSS JOIN "{schema}_processed_messages" AS p
WHERE p.consumer = asked.value ->> 0 AND p.key_id = substr(?2, 1 + 48 * asked.key, 16)"#;
}
