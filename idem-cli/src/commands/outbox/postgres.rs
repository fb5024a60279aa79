//! The statements on PostgreSQL.

use idem_core::outbox::{EventName, UNDER_WAY};

use super::events::Events;
use crate::{
    database::{Bind, Database},
    exit::Failure,
    report::Table,
};

/// Whether a relay may have the event `o` in hand at this moment, because it has the destination `d`, or because the time of its call
/// is not over: where the relay was killed, its receiver may be carrying it out.
const IN_HAND: &str = "(d.relayed_until > pg_catalog.clock_timestamp() AND (o.state = 0 OR o.state = 1
    AND o.not_before <= pg_catalog.clock_timestamp())
    OR o.state = 1 AND o.error = '{under_way}' AND o.not_before > pg_catalog.clock_timestamp())";

/// Why the destination `d` is paused: what the last one who did it has said, as long as the trail is kept.
const BECAUSE: &str = "(SELECT pg_catalog.substr(a.details, pg_catalog.length(d.name) + 3) FROM {schema}.audit AS a
    WHERE d.paused_at IS NOT NULL AND a.action = 'pause-outbox' AND pg_catalog.starts_with(a.details, pg_catalog.concat(d.name, ': '))
    ORDER BY a.id DESC LIMIT 1)";

const PAUSED: &str = "\
SELECT d.name AS destination, {because} AS because FROM {schema}.outbox_destinations AS d WHERE d.paused_at IS NOT NULL";

fn statement(template: &str) -> String {
    template.replace("{in_hand}", IN_HAND).replace("{under_way}", UNDER_WAY).replace("{because}", BECAUSE)
}

/// Parameters: 1 numbers, 2 keys.
const FOUND: &str = "\
SELECT o.number, o.event_key AS key, d.name AS destination, o.state,
    coalesce(pg_catalog.starts_with(o.error, 'stale: '), false) AS set_aside,
    (extract(epoch FROM pg_catalog.clock_timestamp() - {schema}.first_sent(o.state, o.first_sent_at,
        coalesce(o.not_before, o.created_at), d.relay_lost_at)) * 1000000::numeric)::int8 AS first_sent_ago,
    (extract(epoch FROM d.receiver_keeps) * 1000000::numeric)::int8 AS receiver_keeps, {in_hand} AS in_hand,
    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at),
        greatest(d.relay_lost_at, d.relayed_until)) IS NOT NULL AS may_be_sent
FROM ROWS FROM (pg_catalog.unnest($1::int8[]), pg_catalog.unnest($2::text[])) AS named (number, event_key)
JOIN {schema}.outbox AS o ON o.number = named.number AND o.event_key = named.event_key
LEFT JOIN {schema}.outbox_destinations AS d ON d.id = o.destination ORDER BY o.number";

/// Parameter: 1 destination.
const DESTINATIONS: &str = "SELECT pg_catalog.count(*) FROM {schema}.outbox_destinations AS d WHERE d.name = $1::text";

/// Parameter: 1 destination.
const FAILED: &str = "\
SELECT o.number, o.event_key AS key FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
WHERE d.name = $1::text AND o.state <> 0 AND o.state = 2 ORDER BY o.number";

/// The trail is written before anything is shown. Parameters: 1 number, 2 key, 3 who, 4 its name in the trail.
const NOTE_READ: &str = "\
WITH noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, $4::text, o.consumer, o.event_key, pg_catalog.format('event %s for %s', o.number, d.name)
    FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
    WHERE o.number = $1::int8 AND o.event_key = $2::text
    RETURNING id
)
SELECT pg_catalog.count(*) FROM noted";

/// Parameters: 1 number, 2 key.
const SHOW: &str = "\
SELECT pg_catalog.format('%s:%s', o.number, o.event_key) AS event, d.name AS destination, c.name AS consumer, c.tenant,
    pg_catalog.encode(o.ordering_key, 'escape') AS ordering_key, o.event_type AS type, o.content_type,
    (ARRAY['pending', 'waiting', 'failed', 'behind'])[o.state + 1] AS state, o.attempts, o.created_at,
    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), d.relay_lost_at) AS first_sent_at,
    CASE WHEN o.state = 1 THEN o.not_before END AS not_before, o.error, pg_catalog.octet_length(o.payload) AS payload_bytes,
    d.paused_at IS NOT NULL AS paused, {because} AS paused_because
FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
LEFT JOIN {schema}.consumers AS c ON c.id = o.consumer WHERE o.number = $1::int8 AND o.event_key = $2::text";

/// Parameters: 1 number, 2 key.
const CONTENT: &str = "\
SELECT pg_catalog.encode(o.payload, 'hex') AS payload, o.headers FROM {schema}.outbox AS o
WHERE o.number = $1::int8 AND o.event_key = $2::text";

/// Locks the destinations' rows before those of the events, as a relay does when it takes a destination and when it notes the ends of
/// events. Parameters: 1 numbers, 2 keys, 3 who, 4 whether stale ones are meant.
const RETRY: &str = "\
WITH destinations AS MATERIALIZED (
    SELECT d.id, d.name FROM {schema}.outbox_destinations AS d ORDER BY d.id FOR NO KEY UPDATE
), going AS MATERIALIZED (
    SELECT o.number, o.consumer, o.event_key, d.name
    FROM ROWS FROM (pg_catalog.unnest($1::int8[]), pg_catalog.unnest($2::text[])) AS named (number, event_key)
    JOIN {schema}.outbox AS o ON o.number = named.number AND o.event_key = named.event_key
    JOIN destinations AS d ON d.id = o.destination WHERE o.state IN (1, 2) FOR UPDATE OF o
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, CASE WHEN $4::int8 = 1 THEN 'retry-stale-event' ELSE 'retry-event' END, consumer, event_key,
        pg_catalog.format('event %s for %s', number, name) FROM going
)
SELECT {schema}.retry_events(pg_catalog.array_agg(number), pg_catalog.array_agg(event_key), $4::int8 = 1) FROM going";

/// Locks as [`RETRY`] does. Events that a relay may have in hand stay. Parameters: 1 numbers, 2 keys, 3 who, 4 why.
const SKIP: &str = "\
WITH destinations AS MATERIALIZED (
    SELECT d.id, d.name, d.relayed_until FROM {schema}.outbox_destinations AS d ORDER BY d.id FOR NO KEY UPDATE
), gone AS MATERIALIZED (
    SELECT o.number, o.consumer, o.event_key, d.name
    FROM ROWS FROM (pg_catalog.unnest($1::int8[]), pg_catalog.unnest($2::text[])) AS named (number, event_key)
    JOIN {schema}.outbox AS o ON o.number = named.number AND o.event_key = named.event_key
    JOIN destinations AS d ON d.id = o.destination WHERE {in_hand} IS NOT TRUE FOR UPDATE OF o
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, 'skip-event', consumer, event_key,
        pg_catalog.format('event %s for %s: %s', number, name, $4::text) FROM gone
)
SELECT {schema}.skip_events(pg_catalog.array_agg(number), pg_catalog.array_agg(event_key)) FROM gone";

/// For how long each reader of a queue or topic remembers keys; NULL where that is for ever.
pub(crate) const READERS: &str = "\
SELECT c.name, c.bound_to, (extract(epoch FROM pg_catalog.min(c.retention)) * 1000000::numeric)::int8 AS retention
FROM {schema}.consumers AS c WHERE c.bound_to <> '' GROUP BY c.name, c.bound_to ORDER BY c.name";

/// The writers of events that wait under one key for one destination, of the first in the order of their ids: those of one key come
/// together there, and are as likely to be among them as any other.
pub(crate) const SHARED_KEYS: &str = "\
SELECT d.name AS destination, shared.writers, pg_catalog.count(*) AS keys
FROM (
    SELECT o.destination, pg_catalog.string_agg(
        CASE WHEN c.tenant = '' THEN c.name ELSE pg_catalog.format('%s (tenant %s)', c.name, c.tenant) END, ', '
        ORDER BY c.name, c.tenant) AS writers
    FROM (SELECT key_id, destination, consumer FROM {schema}.outbox ORDER BY key_id, destination, consumer LIMIT 100000) AS o
    JOIN {schema}.consumers AS c ON c.id = o.consumer
    GROUP BY o.key_id, o.destination HAVING pg_catalog.count(*) > 1
) AS shared JOIN {schema}.outbox_destinations AS d ON d.id = shared.destination
GROUP BY d.name, shared.writers ORDER BY d.name, shared.writers LIMIT 20";

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

/// The parameters that name events.
struct Named {
    numbers: Vec<i64>,
    keys: Vec<String>,
}

impl Named {
    fn of(events: &[EventName]) -> Self {
        Self {
            numbers: events.iter().map(|event| event.number.0).collect(),
            keys: events.iter().map(|event| event.key.to_string()).collect(),
        }
    }

    fn binds(&self) -> [Bind<'_>; 2] {
        [Bind::Numbers(&self.numbers), Bind::Texts(&self.keys)]
    }
}

fn one(event: &EventName) -> [Bind<'_>; 2] {
    [Bind::Number(event.number.0), Bind::Text(event.key.as_str())]
}

impl Events for Database {
    async fn found(&mut self, events: &[EventName]) -> Result<Table, Failure> {
        self.table(&statement(FOUND), &Named::of(events).binds()).await
    }

    async fn failed(&mut self, destination: &str) -> Result<Option<Table>, Failure> {
        let named = [Bind::Text(destination)];
        if self.number(DESTINATIONS, &named).await? == 0 {
            return Ok(None);
        }
        self.table(FAILED, &named).await.map(Some)
    }

    async fn note_read(&mut self, event: &EventName, called: &str) -> Result<i64, Failure> {
        let (by, [number, key]) = (self.by.clone(), one(event));
        self.act(NOTE_READ, &[number, key, Bind::Text(&by), Bind::Text(called)]).await
    }

    async fn described(&mut self, event: &EventName) -> Result<Table, Failure> {
        self.table(&statement(SHOW), &one(event)).await
    }

    async fn content(&mut self, event: &EventName) -> Result<Table, Failure> {
        self.table(CONTENT, &one(event)).await
    }

    async fn retry(&mut self, events: &[EventName], with_stale: bool) -> Result<i64, Failure> {
        let (by, named) = (self.by.clone(), Named::of(events));
        let [numbers, keys] = named.binds();
        self.act(RETRY, &[numbers, keys, Bind::Text(&by), Bind::Number(with_stale.into())]).await
    }

    async fn skip(&mut self, events: &[EventName], because: &str) -> Result<i64, Failure> {
        let (by, named) = (self.by.clone(), Named::of(events));
        let [numbers, keys] = named.binds();
        self.act(&statement(SKIP), &[numbers, keys, Bind::Text(&by), Bind::Text(because)]).await
    }

    async fn pause(&mut self, destination: &str, reason: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(PAUSE, &[Bind::Text(destination), Bind::Text(&by), Bind::Text(reason)]).await
    }

    async fn paused(&mut self) -> Result<Table, Failure> {
        self.table(&statement(PAUSED), &[]).await
    }

    async fn resume(&mut self, destination: &str) -> Result<i64, Failure> {
        let by = self.by.clone();
        self.act(RESUME, &[Bind::Text(destination), Bind::Text(&by)]).await
    }
}
