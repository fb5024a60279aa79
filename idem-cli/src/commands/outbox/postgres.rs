//! The statements on PostgreSQL.

use super::Events;
use crate::{
    database::{Bind, Database},
    exit::Failure,
    report::Table,
};

/// Parameters: 1 numbers, 2 after how many microseconds one that may have been sent is stale.
const FOUND: &str = "\
SELECT o.number AS event, o.state, coalesce(pg_catalog.starts_with(o.error, 'stale: '), false) OR coalesce(
    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), d.relay_lost_at)
        < pg_catalog.clock_timestamp() - $2::int8::float8 * interval '1 microsecond', false) AS stale,
    d.name AS destination, coalesce(d.relayed_until > pg_catalog.clock_timestamp(), false)
        AND (o.state = 0 OR o.state = 1 AND o.not_before <= pg_catalog.clock_timestamp()) AS in_hand,
    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at),
        greatest(d.relay_lost_at, d.relayed_until)) IS NOT NULL AS may_be_sent
FROM {schema}.outbox AS o LEFT JOIN {schema}.outbox_destinations AS d ON d.id = o.destination WHERE o.number = ANY ($1::int8[]) ORDER BY o.number";

/// Parameter: 1 destination.
const DESTINATIONS: &str = "SELECT pg_catalog.count(*) FROM {schema}.outbox_destinations AS d WHERE d.name = $1::text";

/// Parameter: 1 destination.
const FAILED: &str = "\
SELECT o.number AS event FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
WHERE d.name = $1::text AND o.state <> 0 AND o.state = 2 ORDER BY o.number";

/// The trail is written before anything is shown. Parameters: 1 number, 2 who, 3 its name in the trail.
const NOTE_READ: &str = "\
WITH noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, $3::text, o.consumer, o.event_key, pg_catalog.format('event %s for %s', o.number, d.name)
    FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination WHERE o.number = $1::int8
    RETURNING id
)
SELECT pg_catalog.count(*) FROM noted";

/// Parameter: 1 number.
const SHOW: &str = "\
SELECT o.number AS event, d.name AS destination, c.name AS consumer, c.tenant, o.event_key AS key,
    pg_catalog.encode(o.ordering_key, 'escape') AS ordering_key, o.event_type AS type, o.content_type,
    (ARRAY['pending', 'waiting', 'failed', 'behind'])[o.state + 1] AS state, o.attempts, o.created_at,
    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), d.relay_lost_at) AS first_sent_at,
    CASE WHEN o.state = 1 THEN o.not_before END AS not_before, o.error, pg_catalog.octet_length(o.payload) AS payload_bytes
FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
LEFT JOIN {schema}.consumers AS c ON c.id = o.consumer WHERE o.number = $1::int8";

/// Parameter: 1 number.
const CONTENT: &str = "\
SELECT pg_catalog.encode(o.payload, 'hex') AS payload, o.headers FROM {schema}.outbox AS o WHERE o.number = $1::int8";

/// An event that is to go although it is stale counts as one that was never sent, or the relay would set it aside again. `not_before`
/// is since when it may go, as in the function `retry_events`.
/// Parameters: 1 numbers, 2 who, 3 whether stale ones are meant.
const RETRY: &str = "\
WITH going AS (
    UPDATE {schema}.outbox AS o SET state = 0, attempts = 0,
        not_before = CASE WHEN $3::int8 = 1 THEN pg_catalog.clock_timestamp() ELSE least(o.not_before, pg_catalog.clock_timestamp()) END,
        first_sent_at = CASE WHEN $3::int8 = 1 THEN NULL ELSE o.first_sent_at END
    FROM {schema}.outbox_destinations AS d
    WHERE d.id = o.destination AND o.number = ANY ($1::int8[]) AND o.state <> 0 AND o.state IN (1, 2)
    RETURNING o.number, o.consumer, o.event_key, d.name
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, CASE WHEN $3::int8 = 1 THEN 'retry-stale-event' ELSE 'retry-event' END, consumer, event_key,
        pg_catalog.format('event %s for %s', number, name) FROM going
)
SELECT pg_catalog.count(*) FROM going";

/// Locks the destination's row before it removes an event and lets its followers go, as a relay does when it takes the destination
/// and when it notes the ends of events. Events that a relay may have in hand stay. Parameters: 1 numbers, 2 who, 3 why.
const SKIP: &str = "\
WITH destinations AS MATERIALIZED (
    SELECT d.id, d.name, d.relayed_until FROM {schema}.outbox_destinations AS d ORDER BY d.id FOR NO KEY UPDATE
), gone AS MATERIALIZED (
    SELECT o.number, o.consumer, o.event_key, d.name FROM destinations AS d
    JOIN {schema}.outbox AS o ON o.destination = d.id WHERE o.number = ANY ($1::int8[])
        AND (d.relayed_until > pg_catalog.clock_timestamp()
            AND (o.state = 0 OR o.state = 1 AND o.not_before <= pg_catalog.clock_timestamp())) IS NOT TRUE
    FOR UPDATE OF o
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, 'skip-event', consumer, event_key,
        pg_catalog.format('event %s for %s: %s', number, name, $3::text) FROM gone
)
SELECT {schema}.skip_events(ARRAY(SELECT number FROM gone))";

/// Parameters: 1 destination, 2 who, 3 why.
const PAUSE: &str = "\
WITH paused AS (
    UPDATE {schema}.outbox_destinations SET paused_at = coalesce(paused_at, pg_catalog.now()) WHERE name = $1::text
    RETURNING name
), noted AS (
    INSERT INTO {schema}.audit (who, action, details)
    SELECT $2::text, 'pause-outbox', pg_catalog.format('%s: %s', name, $3::text) FROM paused
)
SELECT pg_catalog.count(*) FROM paused";

/// Parameters: 1 destination, 2 who.
const RESUME: &str = "\
WITH resumed AS (
    UPDATE {schema}.outbox_destinations SET paused_at = NULL WHERE name = $1::text RETURNING name
), noted AS (
    INSERT INTO {schema}.audit (who, action, details) SELECT $2::text, 'resume-outbox', name FROM resumed
)
SELECT pg_catalog.count(*) FROM resumed";

impl Events for Database {
    async fn found(&mut self, events: &[i64], stale_after: i64) -> Result<Table, Failure> {
        self.table(FOUND, &[Bind::Numbers(events), Bind::Number(stale_after)]).await
    }

    async fn failed(&mut self, destination: &str) -> Result<Option<Table>, Failure> {
        let named = [Bind::Text(destination)];
        if self.number(DESTINATIONS, &named).await? == 0 {
            return Ok(None);
        }
        self.table(FAILED, &named).await.map(Some)
    }

    async fn note_read(&mut self, event: i64, called: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(NOTE_READ, &[Bind::Number(event), Bind::Text(&by), Bind::Text(called)]).await
    }

    async fn described(&mut self, event: i64) -> Result<Table, Failure> {
        self.table(SHOW, &[Bind::Number(event)]).await
    }

    async fn content(&mut self, event: i64) -> Result<Table, Failure> {
        self.table(CONTENT, &[Bind::Number(event)]).await
    }

    async fn retry(&mut self, events: &[i64], with_stale: bool) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(RETRY, &[Bind::Numbers(events), Bind::Text(&by), Bind::Number(with_stale.into())]).await
    }

    async fn skip(&mut self, events: &[i64], because: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(SKIP, &[Bind::Numbers(events), Bind::Text(&by), Bind::Text(because)]).await
    }

    async fn pause(&mut self, destination: &str, reason: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(PAUSE, &[Bind::Text(destination), Bind::Text(&by), Bind::Text(reason)]).await
    }

    async fn resume(&mut self, destination: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(RESUME, &[Bind::Text(destination), Bind::Text(&by)]).await
    }
}
