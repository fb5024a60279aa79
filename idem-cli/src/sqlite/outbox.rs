//! `idem outbox` on a file.

use idem_core::outbox::{EventName, UNDER_WAY};
use idem_sql::retried_on_sqlite;
use serde_json::{Value, json};

use super::file::{Bind, File};
use crate::{commands::outbox::events::Events, exit::Failure, report::Table};

/// The events `o` that are named. Parameter: 1 a JSON array of their numbers and keys.
const NAMED: &str = "(o.number, o.event_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))";

/// As on PostgreSQL.
const IN_HAND: &str = "(d.relayed_until > {now} AND (o.state = 0 OR o.state = 1 AND o.not_before <= {now})
    OR o.state = 1 AND o.error = '{under_way}' AND o.not_before > {now})";

/// Since when a copy of the event `o` may be with the receivers of `d`; NULL where it certainly was never sent.
const FIRST_SENT: &str =
    "ifnull(o.first_sent_at, iif(o.state <= 1 AND ifnull(o.not_before, o.created_at) <= d.relay_lost_at,
    ifnull(o.not_before, o.created_at), NULL))";

const FOUND: &str = r#"
SELECT o.number, o.event_key AS key, d.name AS destination, o.state, ifnull(substr(o.error, 1, 7) = 'stale: ', 0) AS set_aside,
    {now} - {first_sent} AS first_sent_ago, d.receiver_keeps, {in_hand} AS in_hand,
    o.first_sent_at IS NOT NULL OR (o.state <= 1 AND ifnull(o.not_before, o.created_at)
        <= max(ifnull(d.relay_lost_at, 0), ifnull(d.relayed_until, 0))) AS may_be_sent
FROM "{schema}_outbox" AS o LEFT JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE {named} ORDER BY o.number"#;

const FAILED: &str = r#"
SELECT o.number, o.event_key AS key FROM "{schema}_outbox" AS o
JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination WHERE d.name = ?1 AND o.state = 2 ORDER BY o.number"#;

/// Further parameters: 2 who, 3 its name in the trail.
const NOTE_READ: &str = r#"
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, ?3, o.consumer, o.event_key, 'event ' || o.number || ' for ' || d.name
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination WHERE {named}"#;

/// As on PostgreSQL.
const BECAUSE: &str = r#"(SELECT substr(a.details, length(d.name) + 3) FROM "{schema}_audit" AS a
    WHERE d.paused_at IS NOT NULL AND a.action = 'pause-outbox' AND substr(a.details, 1, length(d.name) + 2) = d.name || ': '
    ORDER BY a.id DESC LIMIT 1)"#;

const PAUSED: &str = r#"
SELECT d.name AS destination, {because} AS because FROM "{schema}_outbox_destinations" AS d WHERE d.paused_at IS NOT NULL"#;

const SHOW: &str = r#"
SELECT o.number || ':' || o.event_key AS event, d.name AS destination, c.name AS consumer, c.tenant,
    CAST(o.ordering_key AS TEXT) AS ordering_key, o.event_type AS type, o.content_type,
    CASE o.state WHEN 0 THEN 'pending' WHEN 1 THEN 'waiting' WHEN 2 THEN 'failed' ELSE 'behind' END AS state, o.attempts,
    {at}o.created_at{} AS created_at, {at}{first_sent}{} AS first_sent_at, {at}iif(o.state = 1, o.not_before, NULL){} AS not_before,
    o.error, length(o.payload) AS payload_bytes, d.paused_at IS NOT NULL AS paused, {because} AS paused_because
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
LEFT JOIN "{schema}_consumers" AS c ON c.id = o.consumer WHERE {named}"#;

const CONTENT: &str = r#"SELECT payload, headers FROM "{schema}_outbox" AS o WHERE {named}"#;

/// The line in the trail of [`retried_on_sqlite`]. Further parameters: 2 who, 3 whether stale ones are meant.
const RETRY: &str = r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, CASE WHEN ?3 = 1 THEN 'retry-stale-event' ELSE 'retry-event' END, o.consumer, o.event_key,
    'event ' || o.number || ' for ' || d.name
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE {named} AND o.state IN (1, 2)"#;

/// Events that a relay may have in hand stay, and followers that wait behind no other go. Further parameters: 2 who, 3 why.
const SKIP: [&str; 3] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, 'skip-event', o.consumer, o.event_key, 'event ' || o.number || ' for ' || d.name || ': ' || ?3
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination WHERE {named} AND {in_hand} IS NOT TRUE"#,
    r#"DELETE FROM "{schema}_outbox" AS o WHERE {named} AND NOT EXISTS (
    SELECT 1 FROM "{schema}_outbox_destinations" AS d WHERE d.id = o.destination AND {in_hand})"#,
    r#"UPDATE "{schema}_outbox" AS f SET state = 0, not_before = {now}
WHERE f.state = 3 AND NOT EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = f.destination
    AND b.ordering_key = f.ordering_key AND b.state IN (1, 2) AND b.number < f.number)"#,
];

fn statement(template: &str) -> String {
    let whole = template.replace("{named}", NAMED).replace("{in_hand}", IN_HAND).replace("{first_sent}", FIRST_SENT);
    whole.replace("{under_way}", UNDER_WAY).replace("{because}", BECAUSE)
}

/// The parameter that names them.
fn named<'e>(events: impl IntoIterator<Item = &'e EventName>) -> String {
    let name = |event: &EventName| json!([event.number.0, event.key.as_str()]);
    Value::Array(events.into_iter().map(name).collect()).to_string()
}

/// As on PostgreSQL.
pub(super) const READERS: &str = r#"
SELECT c.name, c.bound_to, min(c.retention) AS retention FROM "{schema}_consumers" AS c
WHERE c.bound_to <> '' GROUP BY c.name, c.bound_to ORDER BY c.name"#;

pub(super) const SHARED_KEYS: &str = r#"
SELECT d.name AS destination, shared.writers, count(*) AS keys
FROM (
    SELECT o.destination, group_concat(o.writer, ', ') AS writers
    FROM (
        SELECT o.key_id, o.destination, iif(c.tenant = '', c.name, c.name || ' (tenant ' || c.tenant || ')') AS writer
        FROM (SELECT key_id, destination, consumer FROM "{schema}_outbox" ORDER BY number LIMIT 100000) AS o
        JOIN "{schema}_consumers" AS c ON c.id = o.consumer ORDER BY c.name, c.tenant
    ) AS o GROUP BY o.key_id, o.destination HAVING count(*) > 1
) AS shared JOIN "{schema}_outbox_destinations" AS d ON d.id = shared.destination
GROUP BY d.name, shared.writers ORDER BY d.name, shared.writers LIMIT 20"#;

/// Parameters: 1 destination, 2 who, 3 why.
const PAUSE: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, details)
SELECT {now}, ?2, 'pause-outbox', name || ': ' || ?3 FROM "{schema}_outbox_destinations" WHERE name = ?1"#,
    r#"UPDATE "{schema}_outbox_destinations" SET paused_at = ifnull(paused_at, {now}) WHERE name = ?1"#,
];

/// Parameters: 1 destination, 2 who.
const RESUME: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, details)
SELECT {now}, ?2, 'resume-outbox', name FROM "{schema}_outbox_destinations" WHERE name = ?1"#,
    r#"UPDATE "{schema}_outbox_destinations" SET paused_at = NULL WHERE name = ?1"#,
];

impl Events for File {
    async fn found(&mut self, events: &[EventName]) -> Result<Table, Failure> {
        self.table(&statement(FOUND), &[named(events).as_str().into()]).await
    }

    async fn failed(&mut self, destination: &str) -> Result<Option<Table>, Failure> {
        let of_name = r#"SELECT count(*) FROM "{schema}_outbox_destinations" WHERE name = ?1"#;
        if self.number(of_name, &[destination.into()]).await? == 0 {
            return Ok(None);
        }
        self.table(FAILED, &[destination.into()]).await.map(Some)
    }

    async fn note_read(&mut self, event: &EventName, called: &str) -> Result<i64, Failure> {
        let (by, event) = (self.by.clone(), named([event]));
        let binds = [event.as_str().into(), by.as_str().into(), called.into()];
        let [noted] = self.act([&*statement(NOTE_READ)], &binds).await?;
        Ok(noted)
    }

    async fn described(&mut self, event: &EventName) -> Result<Table, Failure> {
        self.table(&statement(SHOW), &[named([event]).as_str().into()]).await
    }

    async fn content(&mut self, event: &EventName) -> Result<Table, Failure> {
        self.table(&statement(CONTENT), &[named([event]).as_str().into()]).await
    }

    async fn retry(&mut self, events: &[EventName], with_stale: bool) -> Result<i64, Failure> {
        let (by, events) = (self.by.clone(), named(events));
        let binds: [Bind<'_>; 3] = [events.as_str().into(), by.as_str().into(), i64::from(with_stale).into()];
        let [_, going] = self.act([&*statement(RETRY), &*retried_on_sqlite(NAMED, "?3 = 1", "{now}")], &binds).await?;
        Ok(going)
    }

    async fn skip(&mut self, events: &[EventName], because: &str) -> Result<i64, Failure> {
        let (by, events, statements) = (self.by.clone(), named(events), SKIP.map(statement));
        let binds = [events.as_str().into(), by.as_str().into(), because.into()];
        let [_, gone, _] = self.act(statements.each_ref().map(String::as_str), &binds).await?;
        Ok(gone)
    }

    async fn pause(&mut self, destination: &str, reason: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        let [_, paused] = self.act(PAUSE, &[destination.into(), by.as_str().into(), reason.into()]).await?;
        Ok(paused)
    }

    async fn paused(&mut self) -> Result<Table, Failure> {
        self.table(&statement(PAUSED), &[]).await
    }

    async fn resume(&mut self, destination: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        let [_, resumed] = self.act(RESUME, &[destination.into(), by.as_str().into()]).await?;
        Ok(resumed)
    }
}
