//! The same statements in SQLite's dialect. Several in one text are one transaction, and now is the last parameter.

use crate::text::{dialect::Dialect, inbox::InboxStatements, name::SchemaName};

impl InboxStatements {
    /// The statements of SQLite with the prefix of idem's tables in them.
    #[must_use]
    pub fn sqlite(schema: &SchemaName) -> Self {
        let text = |template: &str| Dialect::Sqlite.render(template, schema).into();
        Self {
            select_inbox: text(SELECT_INBOX),
            open_inbox: text(OPEN_INBOX),
            put_messages: text(PUT_MESSAGES),
            hold_slots: text(HOLD_SLOTS),
            release_slots: text(RELEASE_SLOTS),
            next_messages: text(NEXT_MESSAGES),
            remove_messages: text(REMOVE_MESSAGES),
            count_messages: text(COUNT_MESSAGES),
        }
    }
}

const SELECT_INBOX: &str = r#"
SELECT c.id, ifnull((SELECT b.bound_to FROM "{schema}_consumers" AS b WHERE b.name = c.name AND b.bound_to <> '' ORDER BY b.id LIMIT 1), '')
        AS bound_to,
    (SELECT count(*) FROM "{schema}_inbox_slots" AS s WHERE s.consumer = c.id) AS slots
FROM "{schema}_consumers" AS c WHERE c.name = ?1 AND c.tenant = ''"#;

const OPEN_INBOX: &str = r#"
INSERT INTO "{schema}_inbox_slots" (consumer, slot)
WITH RECURSIVE numbers (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM numbers WHERE slot + 1 < ?2)
SELECT ?1, slot FROM numbers WHERE NOT EXISTS (SELECT 1 FROM "{schema}_inbox_slots" WHERE consumer = ?1);
SELECT count(*) AS slots FROM "{schema}_inbox_slots" WHERE consumer = ?1"#;

const PUT_MESSAGES: &str = r#"
INSERT INTO "{schema}_inbox" (consumer, slot, sent_at, origin, key_id, idempotency_key, message_id, message_type, problem, headers,
    record_key, ordering_key, payload, received_at)
VALUES {rows}"#;

const HOLD_SLOTS: &str = r#"
UPDATE "{schema}_inbox_slots" SET held_until = ?5 + ?3 WHERE consumer = ?1 AND held_by = ?2;
UPDATE "{schema}_inbox_slots" SET held_by = ?2, held_until = ?5 + ?3, epoch = epoch + 1, wanted_by = NULL, wanted_until = NULL
WHERE ?4 AND consumer = ?1 AND (held_until IS NULL OR held_until <= ?5 OR held_until > ?5 + 120000000) AND held_by IS NOT ?2
    AND (wanted_until IS NULL OR wanted_until <= ?5 OR wanted_by = ?2);
UPDATE "{schema}_inbox_slots" SET wanted_by = ?2, wanted_until = ?5 + 5000000
WHERE ?4 AND consumer = ?1 AND slot = (
    SELECT w.slot FROM "{schema}_inbox_slots" AS w
    JOIN (SELECT held_by, count(*) AS slots FROM "{schema}_inbox_slots" WHERE consumer = ?1 AND held_until > ?5 GROUP BY held_by) AS m
        ON m.held_by = w.held_by
    WHERE w.consumer = ?1 AND w.held_by <> ?2
        AND m.slots > 1 + (SELECT count(*) FROM "{schema}_inbox_slots" WHERE consumer = ?1 AND held_by = ?2)
        AND (w.wanted_until IS NULL OR w.wanted_until <= ?5 OR w.wanted_by = ?2)
    ORDER BY ifnull(w.wanted_until > ?5, false) DESC, m.slots DESC, w.slot LIMIT 1);
SELECT slot, epoch, ifnull(wanted_by <> ?2 AND wanted_until > ?5, false) AS is_wanted
FROM "{schema}_inbox_slots" WHERE consumer = ?1 AND held_by = ?2 ORDER BY slot"#;

const RELEASE_SLOTS: &str = r#"
UPDATE "{schema}_inbox_slots" SET held_by = NULL, held_until = NULL
WHERE consumer = ?1 AND held_by = ?2 AND (slot, epoch) IN (SELECT value, ?4 ->> key FROM json_each(?3))"#;

/// By number over all slots: the index of the consumer has the numbers in their order.
const NEXT_MESSAGES: &str = r#"
SELECT i.slot, i.number, i.received_at, i.sent_at, i.origin, i.message_id, i.message_type, i.problem, i.record_key, i.ordering_key,
    i.headers, i.payload
FROM (
    SELECT number, sum(1) OVER (ORDER BY number) AS place, sum(bytes) OVER (ORDER BY number) AS bytes
    FROM (
        SELECT n.number, ifnull(length(n.payload), 0) + ifnull(length(n.headers), 0) AS bytes
        FROM "{schema}_inbox" AS n
        WHERE n.consumer = ?1 AND n.number > (SELECT min(value) FROM json_each(?4)) AND EXISTS (
                SELECT 1 FROM json_each(?2) AS m JOIN "{schema}_inbox_slots" AS s
                    ON s.consumer = ?1 AND s.slot = m.value AND s.epoch = ?3 ->> m.key AND s.held_by IS NOT NULL
                WHERE m.value = n.slot AND n.number > ?4 ->> m.key)
            AND n.number NOT IN (SELECT value FROM json_each(?5))
        ORDER BY n.number LIMIT min(?7, ?6 * json_array_length(?2)))
) AS m JOIN "{schema}_inbox" AS i ON i.number = m.number
WHERE m.bytes <= ?8 OR m.place = 1
ORDER BY m.number"#;

const REMOVE_MESSAGES: &str = r#"
DELETE FROM "{schema}_inbox" WHERE consumer = ?1 AND number IN (
        SELECT n.value FROM json_each(?5) AS n WHERE EXISTS (SELECT 1 FROM "{schema}_inbox_slots" AS s
            WHERE s.consumer = ?1 AND s.slot = ?3 ->> n.key AND s.epoch = ?4 ->> n.key AND s.held_by = ?2))
    AND (number, received_at) IN (SELECT value, ?6 ->> key FROM json_each(?5));
SELECT DISTINCT s.slot, s.epoch FROM json_each(?3) AS m JOIN "{schema}_inbox_slots" AS s
    ON s.consumer = ?1 AND s.slot = m.value AND s.epoch = ?4 ->> m.key AND s.held_by = ?2"#;

const COUNT_MESSAGES: &str = r#"
SELECT (SELECT count(*) FROM (SELECT 1 FROM "{schema}_inbox"
        WHERE consumer = ?1 AND number NOT IN (SELECT value FROM json_each(?2)) LIMIT ?3)) AS messages,
    (SELECT ?4 - received_at FROM "{schema}_inbox"
        WHERE consumer = ?1 AND number NOT IN (SELECT value FROM json_each(?2)) ORDER BY number LIMIT 1) AS oldest,
    (SELECT count(*) FROM "{schema}_inbox_slots" WHERE consumer = ?1 AND (held_until IS NULL OR held_until <= ?4)) AS free_slots"#;
