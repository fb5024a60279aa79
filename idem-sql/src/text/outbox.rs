//! The statements of the outbox, in either dialect.

pub(crate) mod sqlite;

use std::sync::Arc;

use crate::text::{dialect::Dialect, name::SchemaName, statements::statements};

statements! {
    /// The statements of the outbox outside of units of work, documented as
    /// [`BookkeepingStatements`](crate::BookkeepingStatements) are.
    OutboxStatements;

    /// A destination. Parameter: 1 name `text`. Result, at most one row: `id int4`, `id_form text`, `kind text` and `message_bytes_max
    /// int8`, NULL where no relay has said them, `is_structured bool`. What a relay has said holds as long as its lease (O116).
    select_destination: "\
SELECT id, id_form, CASE WHEN relayed_until > pg_catalog.clock_timestamp() THEN kind END AS kind, message_bytes_max, is_structured
FROM {schema}.outbox_destinations WHERE name = $1::text";

    /// Interns a destination. Parameters: 1 name, 2 form of its ids, both `text`, 3 the [numbers](idem_core::store::Interned) that
    /// it may have `int8[]`. Result, no row where another was first, else as of
    /// `select_destination`.
    insert_destination: "\
INSERT INTO {schema}.outbox_destinations (id, name, id_form) OVERRIDING SYSTEM VALUE
SELECT free.id::int4, $1::text, $2::text FROM pg_catalog.unnest($3::int8[]) WITH ORDINALITY AS free (id, place)
WHERE NOT EXISTS (SELECT FROM {schema}.outbox_destinations AS other WHERE other.id = free.id) ORDER BY free.place LIMIT 1
ON CONFLICT (name) DO NOTHING RETURNING id, id_form, kind, message_bytes_max, is_structured";

    /// Takes or renews a lease. Parameters: 1 destination `int4`, 2 relay `text`, 3 for µs `int8`, 4 for how many µs receivers recognise a
    /// copy `int8`, and what it takes: 5 kind `text` and 6 bytes of a message `int8`, or NULL, 7 whether it is structured `bool`. Result,
    /// one row: `mine bool`, `paused bool`, `left` in µs or NULL. A lease that ends in more than two minutes was given by a clock that was
    /// ahead. One of a destination that was paused since is renewed as long as it runs. Events whose numbers another server, or another
    /// sequence, has drawn may all have been sent, and begin anywhere: the backup that was restored may be older than any lease.
    lease: "\
SELECT mine, paused, remaining AS left
FROM {schema}.lease_destination($1::int4, $2::text, $3::int8, $4::int8, $5::text, $6::int8, $7::bool)";

    /// Ends a lease. Parameters: 1 destination `int4`, 2 relay `text`. No result to look at.
    release: "SELECT {schema}.release_destination($1::int4, $2::text) AS released";

    /// The next events that may go, and those before them that stand behind others. Parameters: 1 destination `int4`, 2 how many
    /// `int8`, 3 how many bytes `int8`. Result, in the order of `number int8`: `is_behind bool`, `tenant text`, `consumer_name
    /// text`, `derives_as text`, `event_key text`, `ordering_key bytea`, `event_type text`, `content_type text`, `headers text`,
    /// `payload bytea`, NULL where it is behind, `created_at` in µs since the Unix epoch, `attempts int4`, `first_sent_ago` in µs or NULL.
    next_events: "\
SELECT number, is_behind, tenant, consumer_name, derives_as, event_key, ordering_key, event_type, content_type, headers, payload,
    created_at, attempts, first_sent_ago
FROM {schema}.next_events($1::int4, $2::int8, $3::int8)";

    /// Marks events that stand behind others. Parameters: 1 destination `int4`, 2 numbers `int8[]`. Result, one row: `marked int8`.
    mark_behind: "SELECT {schema}.mark_behind($1::int4, $2::int8[]) AS marked";

    /// Lets looks begin past the published events. Parameters: 1 destination `int4`, 2 the writers and 3 the number from the call
    /// before, `text` and `int8`, NULL for the first. Result, one row: `writers text`, with the server in it, because they say nothing
    /// about another one, and `last int8`. Empty where no published event is met again.
    raise_pending: "SELECT writers, last FROM {schema}.raise_pending($1::int4, $2::text, $3::int8)";

    /// Notes the ends of events. Parameters: 1 destination `int4`, 2 the published `int8[]` and 3 their keys `text[]`, 4 the others
    /// as a JSON array of objects `text`: `number`, `key`, `state`, `after` in µs or null, `error`, `may_be_sent`, `counted`, and
    /// `takes_back`, the error of the note that is taken back together with its mark, or null. An event
    /// with another key is another one, to which a server without the last commits gave the same number. No result to look at.
    settle: "SELECT {schema}.settle_events($1::int4, $2::int8[], $3::text[], $4::text::json) AS settled";

    /// The waiting events. Parameter: 1 consumer's name `text` or NULL. Result, a row a destination, in the order of the names:
    /// `id int4`, `name text`, `paused bool`, `relayed_by text` or NULL, `pending int8`, `waiting int8`, `failed int8`, `behind int8`,
    /// `oldest`, `due`, `first_sent_ago` and `receiver_keeps` in µs or NULL, and what it takes as in `select_destination`.
    backlog: "\
SELECT d.id, d.name, d.paused_at IS NOT NULL AS paused,
    (extract(epoch FROM d.receiver_keeps) * 1000000::numeric)::int8 AS receiver_keeps,
    d.kind, d.message_bytes_max, d.is_structured,
    CASE WHEN d.relayed_until > pg_catalog.clock_timestamp() THEN d.relayed_by END AS relayed_by,
    n.pending, n.waiting, n.failed, n.behind,
    (extract(epoch FROM pg_catalog.clock_timestamp() - n.oldest) * 1000000::numeric)::int8 AS oldest,
    (extract(epoch FROM pg_catalog.clock_timestamp() - n.due) * 1000000::numeric)::int8 AS due,
    (extract(epoch FROM pg_catalog.clock_timestamp() - n.first_sent) * 1000000::numeric)::int8 AS first_sent_ago
FROM {schema}.outbox_destinations AS d CROSS JOIN LATERAL {schema}.count_events(d.id, $1::text) AS n
ORDER BY d.name";

    /// Events for people. Parameters: 1 destination's name `text` or NULL, 2 state `int4` or NULL, 3 how many `int8`. Result, as
    /// that of `next_events` with a payload that is always NULL, and `destination text`, `payload_bytes int8`, `state int4`,
    /// `error text`, `not_before` in µs since the Unix epoch or NULL.
    list_events: "\
SELECT o.number, coalesce(c.tenant, '') AS tenant, coalesce(c.name, '') AS consumer_name,
    coalesce(c.derives_as, c.name, '') AS derives_as, o.event_key, o.ordering_key, o.event_type, o.content_type, o.headers::text AS headers, NULL::bytea AS payload,
    (extract(epoch FROM o.created_at) * 1000000::numeric)::int8 AS created_at, o.attempts,
    (extract(epoch FROM pg_catalog.clock_timestamp() - {schema}.first_sent(o.state, o.first_sent_at,
        coalesce(o.not_before, o.created_at), d.relay_lost_at)) * 1000000::numeric)::int8 AS first_sent_ago,
    d.name AS destination, pg_catalog.octet_length(o.payload)::int8 AS payload_bytes, o.state::int4 AS state, o.error,
    (extract(epoch FROM CASE WHEN o.state = 1::int2 THEN o.not_before END) * 1000000::numeric)::int8 AS not_before
FROM {schema}.outbox AS o JOIN {schema}.outbox_destinations AS d ON d.id = o.destination
LEFT JOIN {schema}.consumers AS c ON c.id = o.consumer
WHERE ($1::text IS NULL OR d.name = $1::text) AND ($2::int4 IS NULL OR o.state::int4 = $2::int4)
ORDER BY o.number LIMIT $3::int8";

    /// Lets waiting and failed events go again. Parameters: 1 numbers `int8[]`, 2 their keys `text[]`. Result, one row: `events int8`.
    retry_events: "SELECT {schema}.retry_events($1::int8[], $2::text[], false) AS events";

    /// The same for stale ones: the time for which their receivers know a copy starts again.
    retry_stale_events: "SELECT {schema}.retry_events($1::int8[], $2::text[], true) AS events";

    /// Removes events unsent, and lets those go that waited behind them. Parameters: 1 numbers `int8[]`, 2 their keys `text[]`. Result, one
    /// row: `events int8`.
    skip_events: "SELECT {schema}.skip_events($1::int8[], $2::text[]) AS events";

    /// Pauses a destination or lets it go on. Parameters: 1 name `text`, 2 whether it is paused `bool`. Result, a row where there
    /// is one of this name: `id int4`.
    pause: "\
UPDATE {schema}.outbox_destinations SET paused_at = CASE WHEN $2::bool THEN coalesce(paused_at, pg_catalog.now()) END
WHERE name = $1::text RETURNING id";
}
