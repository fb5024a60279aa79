//! The same statements in SQLite's dialect. Several in one text are one transaction, and now is the last parameter.

use crate::text::{dialect::Dialect, name::SchemaName, outbox::OutboxStatements};

impl OutboxStatements {
    /// The statements of SQLite with the prefix of idem's tables in them.
    #[must_use]
    pub fn sqlite(schema: &SchemaName) -> Self {
        let text = |template: &str| {
            let template = template.replace("{event}", EVENT).replace("{first_sent}", FIRST_SENT);
            Dialect::Sqlite.render(&template, schema).into()
        };
        Self {
            select_destination: text(SELECT_DESTINATION),
            insert_destination: text(INSERT_DESTINATION),
            lease: text(LEASE),
            release: text(RELEASE),
            next_events: text(NEXT_EVENTS),
            mark_behind: text(MARK_BEHIND),
            // A row that was deleted is gone at once.
            raise_pending: "".into(),
            settle: text(
                &SETTLE
                    .replace("{free}", &FREE.replace("{of}", "AND o.destination = ?1").replace("{now}", "?5"))
                    .replace("{gone}", PUBLISHED),
            ),
            backlog: text(BACKLOG),
            list_events: text(LIST_EVENTS),
            retry_events: text(&retry(&retried_on_sqlite(NAMED, "false", "?3"))),
            retry_stale_events: text(&retry(&retried_on_sqlite(NAMED, "true", "?3"))),
            skip_events: text(
                &SKIP_EVENTS
                    .replace("{free}", &FREE.replace("{of}", "").replace("{now}", "?3"))
                    .replace("{gone}", NAMED),
            ),
            pause: text(PAUSE),
        }
    }
}

const SELECT_DESTINATION: &str = r#"
SELECT id, id_form, iif(relayed_until > ?2, kind, NULL) AS kind, message_bytes_max, is_structured
FROM "{schema}_outbox_destinations" WHERE name = ?1"#;

const INSERT_DESTINATION: &str = r#"
INSERT INTO "{schema}_outbox_destinations" (id, name, id_form, created_at)
SELECT free.id, ?1, ?2, ?4 FROM (SELECT asked.value AS id FROM json_each(?3) AS asked
    WHERE NOT EXISTS (SELECT 1 FROM "{schema}_outbox_destinations" AS other WHERE other.id = asked.value) ORDER BY asked.key LIMIT 1) AS free
WHERE true ON CONFLICT (name) DO NOTHING RETURNING id, id_form, kind, message_bytes_max, is_structured"#;

const LEASE: &str = r#"
UPDATE "{schema}_outbox_destinations" SET relayed_by = ?2, relayed_until = ?8 + ?3,
    relay_lost_at = iif(relayed_by <> ?2 OR relayed_until <= ?8, min(relayed_until, ?8), relay_lost_at), receiver_keeps = ?4,
    kind = ?5, message_bytes_max = ?6, is_structured = ?7
WHERE id = ?1 AND iif(paused_at IS NULL,
    relayed_by IS NULL OR relayed_by = ?2 OR relayed_until <= ?8 OR relayed_until > ?8 + 120000000,
    relayed_by = ?2 AND relayed_until > ?8);
SELECT paused_at IS NULL AND relayed_by = ?2 AS mine, paused_at IS NOT NULL AS paused,
    max(relayed_until - ?8, 0) AS "left"
FROM "{schema}_outbox_destinations" WHERE id = ?1"#;

const RELEASE: &str = r#"
UPDATE "{schema}_outbox_destinations" SET relayed_by = NULL, relayed_until = NULL WHERE id = ?1 AND relayed_by = ?2"#;

/// As the function `first_sent` on PostgreSQL, of the event `o`.
const FIRST_SENT: &str = r#"ifnull(o.first_sent_at, iif(o.state <= 1 AND ifnull(o.not_before, o.created_at) <= (
    SELECT relay_lost_at FROM "{schema}_outbox_destinations" WHERE id = o.destination), ifnull(o.not_before, o.created_at), NULL))"#;

/// The columns of an event, but its payload.
const EVENT: &str = r#"ifnull(c.tenant, '') AS tenant, ifnull(c.name, '') AS consumer_name,
    coalesce(c.derives_as, c.name, '') AS derives_as, o.event_key, o.ordering_key, o.event_type, o.content_type, o.headers, o.created_at,
    o.attempts"#;

const NEXT_EVENTS: &str = r#"
SELECT o.number, m.is_behind, {event}, CASE WHEN NOT m.is_behind THEN o.payload END AS payload,
    ?4 - {first_sent} AS first_sent_ago
FROM (
    WITH oldest AS MATERIALIZED (
        SELECT * FROM (
            SELECT * FROM (
                SELECT number, ordering_key, length(payload) + ifnull(length(headers), 0) AS bytes FROM "{schema}_outbox"
                WHERE destination = ?1 AND state = 0 ORDER BY number LIMIT max(?2, 1000))
            UNION ALL
            SELECT * FROM (
                SELECT number, ordering_key, length(payload) + ifnull(length(headers), 0) AS bytes FROM "{schema}_outbox"
                WHERE destination = ?1 AND state = 1 AND not_before <= ?4 ORDER BY not_before LIMIT max(?2, 1000)))
        ORDER BY number LIMIT max(?2, 1000)
    ), judged AS MATERIALIZED (
        SELECT l.number, l.bytes, l.ordering_key IS NOT NULL AND (
            EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = ?1 AND b.ordering_key = l.ordering_key
                AND b.state IN (1, 2) AND b.number < l.number AND b.number NOT IN (SELECT number FROM oldest))
            OR EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = ?1 AND b.ordering_key = l.ordering_key
                AND b.state = 3 AND b.number < l.number)) AS is_behind
        FROM oldest AS l
    )
    SELECT number, is_behind, sum(NOT is_behind) OVER (ORDER BY number) AS events,
        sum(iif(is_behind, 0, bytes)) OVER (ORDER BY number) AS bytes
    FROM judged
) AS m JOIN "{schema}_outbox" AS o ON o.number = m.number
LEFT JOIN "{schema}_consumers" AS c ON c.id = o.consumer
WHERE m.is_behind OR m.events <= ?2 AND (m.bytes <= ?3 OR m.events = 1)
ORDER BY o.number"#;

const MARK_BEHIND: &str = r#"
UPDATE "{schema}_outbox" AS o SET state = 3, first_sent_at = {first_sent}
WHERE o.number IN (SELECT value FROM json_each(?2)) AND o.destination = ?1 AND o.state IN (0, 1) AND (
    EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = o.destination AND b.ordering_key = o.ordering_key
        AND b.state IN (1, 2) AND b.number < o.number)
    OR EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = o.destination AND b.ordering_key = o.ordering_key
        AND b.state = 3 AND b.number < o.number));
SELECT changes() AS marked"#;

/// The events that were published, each by its number and the key in the same place. The number alone finds it by the table's own key.
const PUBLISHED: &str = "b.number IN (SELECT value FROM json_each(?2)) \
    AND (b.number, b.event_key) IN (SELECT value, ?3 ->> key FROM json_each(?2))";

/// The same of those that a person has named.
const NAMED: &str = "number IN (SELECT value FROM json_each(?1)) \
    AND (number, event_key) IN (SELECT value, ?2 ->> key FROM json_each(?1))";

/// Lets events go that wait only behind events that are removed next: `{gone}` says whether `b` is, `{of}` says of which
/// destination.
const FREE: &str = r#"UPDATE "{schema}_outbox" AS o SET state = 0, not_before = {now}
WHERE o.state = 3 {of} AND (o.destination, o.ordering_key) IN (
        SELECT b.destination, b.ordering_key FROM "{schema}_outbox" AS b WHERE {gone})
    AND NOT EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = o.destination
        AND b.ordering_key = o.ordering_key AND b.state IN (1, 2) AND b.number < o.number
        AND NOT ({gone}))"#;

const SETTLE: &str = r#"
UPDATE "{schema}_outbox" AS o SET state = s.state, attempts = o.attempts + s.counted, error = s.error,
    not_before = iif(s.state = 1, ?5 + s.after, NULL),
    first_sent_at = iif(o.state = 1 AND o.error = s.takes_back AND o.not_before > ?5, NULL,
        ifnull({first_sent}, iif(s.may_be_sent, ?5, NULL)))
FROM (
    SELECT value ->> 'number' AS number, value ->> 'key' AS event_key, value ->> 'state' AS state, value ->> 'after' AS "after",
        value ->> 'error' AS error, value ->> 'may_be_sent' AS may_be_sent, value ->> 'counted' AS counted,
        value ->> 'takes_back' AS takes_back
    FROM json_each(?4)) AS s
WHERE o.number = s.number AND o.event_key = s.event_key AND o.destination = ?1;
{free};
DELETE FROM "{schema}_outbox" AS b WHERE {gone} AND b.destination = ?1"#;

/// Each state is counted by an index of its own, and not further than this: every relay asks every few seconds.
const BACKLOG: &str = r#"
SELECT id, name, paused, relayed_by, n ->> 0 AS pending, n ->> 1 AS waiting, n ->> 2 AS failed, n ->> 3 AS behind,
    n ->> 4 AS oldest, n ->> 5 AS first_sent_ago, n ->> 6 AS due, receiver_keeps,
    kind, message_bytes_max, is_structured
FROM (WITH counted AS MATERIALIZED (
    SELECT d.id, d.name, d.receiver_keeps, d.kind, d.message_bytes_max, d.is_structured, d.paused_at IS NOT NULL AS paused, iif(d.relayed_until > ?2, d.relayed_by, NULL) AS relayed_by, (
        SELECT json_array(count(*) FILTER (WHERE o.state = 0), count(*) FILTER (WHERE o.state = 1),
            count(*) FILTER (WHERE o.state = 2), count(*) FILTER (WHERE o.state = 3),
            ?2 - min(o.created_at) FILTER (WHERE o.state IN (0, 1)), ?2 - min(o.first_sent_at),
            ?2 - min(ifnull(o.not_before, o.created_at)) FILTER (WHERE o.state = 0 OR o.state = 1 AND o.not_before <= ?2))
        FROM (
            SELECT * FROM (SELECT state, consumer, created_at, not_before, {first_sent} AS first_sent_at FROM "{schema}_outbox" AS o
                WHERE destination = d.id AND state = 0 ORDER BY number LIMIT 100000)
            UNION ALL
            SELECT * FROM (SELECT state, consumer, created_at, not_before, {first_sent} FROM "{schema}_outbox" AS o
                WHERE destination = d.id AND state IN (1, 2) LIMIT 100000)
            UNION ALL
            SELECT * FROM (SELECT state, consumer, created_at, not_before, {first_sent} FROM "{schema}_outbox" AS o
                WHERE destination = d.id AND state = 3 LIMIT 100000)
        ) AS o
        WHERE ?1 IS NULL OR o.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1)
    ) AS n
    FROM "{schema}_outbox_destinations" AS d
) SELECT * FROM counted) ORDER BY name"#;

const LIST_EVENTS: &str = r#"
SELECT o.number, {event}, NULL AS payload, ?4 - {first_sent} AS first_sent_ago, d.name AS destination,
    length(o.payload) AS payload_bytes, o.state, o.error, iif(o.state = 1, o.not_before, NULL) AS not_before
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
LEFT JOIN "{schema}_consumers" AS c ON c.id = o.consumer
WHERE (?1 IS NULL OR d.name = ?1) AND (?2 IS NULL OR o.state = ?2)
ORDER BY o.number LIMIT ?3"#;

/// As the function `retry_events` on PostgreSQL: `{stale}` says whether stale events are meant.
const RETRIED: &str = r#"
UPDATE "{schema}_outbox" AS o SET state = 0, attempts = 0,
    not_before = iif({stale}, {now}, min(ifnull(not_before, {now}), {now})),
    first_sent_at = iif({stale}, iif({first_sent} IS NULL, NULL, {now}), first_sent_at),
    error = iif({stale} AND substr(error, 1, 7) = 'stale: ', NULL, error)
WHERE {named} AND state IN (1, 2)"#;

/// The template of the statement that lets waiting and failed events of the outbox `o` go again: those that `named` finds, now, and
/// whether `stale` ones are meant, as the caller's dialect of parameters has them.
#[must_use]
pub fn retried_on_sqlite(named: &str, stale: &str, now: &str) -> String {
    let text = RETRIED.replace("{first_sent}", FIRST_SENT).replace("{named}", named);
    text.replace("{stale}", stale).replace("{now}", now)
}

fn retry(statement: &str) -> String {
    format!("{statement};\nSELECT changes() AS events")
}

const SKIP_EVENTS: &str = r#"
{free};
DELETE FROM "{schema}_outbox" AS b WHERE {gone};
SELECT changes() AS events"#;

const PAUSE: &str = r#"
UPDATE "{schema}_outbox_destinations" SET paused_at = iif(?2, ifnull(paused_at, ?3), NULL) WHERE name = ?1 RETURNING id"#;
