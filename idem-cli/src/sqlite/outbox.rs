//! `idem outbox` on a file.

use super::file::{Bind, File};
use crate::{commands::outbox::Events, exit::Failure, report::Table};

/// Parameters: 1 numbers as a JSON array, 2 after how many microseconds one that may have been sent is stale.
const FOUND: &str = r#"
SELECT number AS event, state, ifnull(substr(error, 1, 7) = 'stale: ', 0) OR ifnull(ifnull(o.first_sent_at,
    iif(o.state <= 1 AND ifnull(o.not_before, o.created_at) <= d.relay_lost_at, ifnull(o.not_before, o.created_at), NULL))
    < {now} - ?2, 0) AS stale,
    d.name AS destination, ifnull(d.relayed_until > {now}, 0) AND (o.state = 0 OR o.state = 1 AND o.not_before <= {now}) AS in_hand,
    o.first_sent_at IS NOT NULL OR (o.state <= 1 AND ifnull(o.not_before, o.created_at)
        <= max(ifnull(d.relay_lost_at, 0), ifnull(d.relayed_until, 0))) AS may_be_sent
FROM "{schema}_outbox" AS o LEFT JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination WHERE number IN (SELECT value FROM json_each(?1)) ORDER BY number"#;

const FAILED: &str = r#"
SELECT o.number AS event FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE d.name = ?1 AND o.state = 2 ORDER BY o.number"#;

/// Parameters: 1 number, 2 who, 3 its name in the trail.
const NOTE_READ: &str = r#"
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, ?3, o.consumer, o.event_key, 'event ' || o.number || ' for ' || d.name
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination WHERE o.number = ?1"#;

const SHOW: &str = r#"
SELECT o.number AS event, d.name AS destination, c.name AS consumer, c.tenant, o.event_key AS key,
    CAST(o.ordering_key AS TEXT) AS ordering_key, o.event_type AS type, o.content_type,
    CASE o.state WHEN 0 THEN 'pending' WHEN 1 THEN 'waiting' WHEN 2 THEN 'failed' ELSE 'behind' END AS state, o.attempts,
    {at}o.created_at{} AS created_at, {at}ifnull(o.first_sent_at,
        iif(o.state <= 1 AND ifnull(o.not_before, o.created_at) <= d.relay_lost_at, ifnull(o.not_before, o.created_at), NULL)){}
        AS first_sent_at, {at}iif(o.state = 1, o.not_before, NULL){} AS not_before, o.error,
    length(o.payload) AS payload_bytes
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
LEFT JOIN "{schema}_consumers" AS c ON c.id = o.consumer WHERE o.number = ?1"#;

const CONTENT: &str = r#"SELECT payload, headers FROM "{schema}_outbox" WHERE number = ?1"#;

/// As on PostgreSQL: a stale event that is to go counts as never sent. Parameters: 1 numbers, 2 who, 3 whether stale ones are
/// meant.
const RETRY: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, CASE WHEN ?3 = 1 THEN 'retry-stale-event' ELSE 'retry-event' END, o.consumer, o.event_key,
    'event ' || o.number || ' for ' || d.name
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE o.number IN (SELECT value FROM json_each(?1)) AND o.state IN (1, 2)"#,
    r#"UPDATE "{schema}_outbox" SET state = 0, attempts = 0, not_before = iif(?3 = 1, {now}, min(ifnull(not_before, {now}), {now})),
    first_sent_at = CASE WHEN ?3 = 1 THEN NULL ELSE first_sent_at END
WHERE number IN (SELECT value FROM json_each(?1)) AND state IN (1, 2)"#,
];

/// Events that a relay may have in hand stay, and followers that wait behind no other go. Parameters: 1 numbers, 2 who, 3 why.
const SKIP: [&str; 3] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, 'skip-event', o.consumer, o.event_key, 'event ' || o.number || ' for ' || d.name || ': ' || ?3
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE o.number IN (SELECT value FROM json_each(?1))
    AND (d.relayed_until > {now} AND (o.state = 0 OR o.state = 1 AND o.not_before <= {now})) IS NOT TRUE"#,
    r#"DELETE FROM "{schema}_outbox" AS o WHERE o.number IN (SELECT value FROM json_each(?1))
    AND (o.state = 0 OR o.state = 1 AND o.not_before <= {now}) * (SELECT ifnull(d.relayed_until > {now}, 0)
        FROM "{schema}_outbox_destinations" AS d WHERE d.id = o.destination) IS NOT TRUE"#,
    r#"UPDATE "{schema}_outbox" AS f SET state = 0, not_before = {now}
WHERE f.state = 3 AND NOT EXISTS (SELECT 1 FROM "{schema}_outbox" AS b WHERE b.destination = f.destination
    AND b.ordering_key = f.ordering_key AND b.state IN (1, 2) AND b.number < f.number)"#,
];

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
    async fn found(&mut self, events: &[i64], stale_after: i64) -> Result<Table, Failure> {
        self.table(FOUND, &[format!("{events:?}").as_str().into(), stale_after.into()]).await
    }

    async fn failed(&mut self, destination: &str) -> Result<Option<Table>, Failure> {
        let named = r#"SELECT count(*) FROM "{schema}_outbox_destinations" WHERE name = ?1"#;
        if self.number(named, &[destination.into()]).await? == 0 {
            return Ok(None);
        }
        self.table(FAILED, &[destination.into()]).await.map(Some)
    }

    async fn note_read(&mut self, event: i64, called: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        let [noted] = self.act([NOTE_READ], &[event.into(), by.as_str().into(), called.into()]).await?;
        Ok(noted)
    }

    async fn described(&mut self, event: i64) -> Result<Table, Failure> {
        self.table(SHOW, &[event.into()]).await
    }

    async fn content(&mut self, event: i64) -> Result<Table, Failure> {
        self.table(CONTENT, &[event.into()]).await
    }

    async fn retry(&mut self, events: &[i64], with_stale: bool) -> Result<i64, Failure> {
        let (by, events) = (self.by.clone(), format!("{events:?}"));
        let binds: [Bind<'_>; 3] = [events.as_str().into(), by.as_str().into(), i64::from(with_stale).into()];
        let [_, going] = self.act(RETRY, &binds).await?;
        Ok(going)
    }

    async fn skip(&mut self, events: &[i64], because: &str) -> Result<i64, Failure> {
        let (by, events) = (self.by.clone(), format!("{events:?}"));
        let [_, gone, _] = self.act(SKIP, &[events.as_str().into(), by.as_str().into(), because.into()]).await?;
        Ok(gone)
    }

    async fn pause(&mut self, destination: &str, reason: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        let [_, paused] = self.act(PAUSE, &[destination.into(), by.as_str().into(), reason.into()]).await?;
        Ok(paused)
    }

    async fn resume(&mut self, destination: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        let [_, resumed] = self.act(RESUME, &[destination.into(), by.as_str().into()]).await?;
        Ok(resumed)
    }
}
