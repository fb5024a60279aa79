//! The statements of the inbox, in either dialect.

pub(crate) mod sqlite;

use std::sync::Arc;

use crate::text::{dialect::Dialect, name::SchemaName, statements::statements};

statements! {
    /// The statements of the inbox, documented as [`BookkeepingStatements`](crate::BookkeepingStatements) are.
    InboxStatements;

    /// The inbox of a consumer. Parameter: 1 its name `text`. Result, no row where it is unknown without a tenant: `id int4`, `bound_to
    /// text`, empty where no start has named it, `slots int8`, 0 where it has no inbox.
    select_inbox: "\
SELECT c.id, coalesce((SELECT b.bound_to FROM {schema}.consumers AS b WHERE b.name = c.name AND b.bound_to <> ''::text
        ORDER BY b.id LIMIT 1), ''::text) AS bound_to,
    (SELECT pg_catalog.count(*) FROM {schema}.inbox_slots AS s WHERE s.consumer = c.id) AS slots
FROM {schema}.consumers AS c WHERE c.name = $1::text AND c.tenant = ''::text";

    /// Makes the slots of an inbox, unless it has some. Parameters: 1 consumer `int4`, 2 how many `int4`. Result, one row: `slots int8`.
    open_inbox: "SELECT {schema}.open_inbox($1::int4, $2::int4) AS slots";

    /// Writes messages. Parameters: 1 consumer `int4`, 2 slots `int8[]`, 3 when they were sent, in µs since the Unix epoch `int8[]`, the
    /// least number for NULL, 4 origins, 5 keys, 6 message ids, 7 types, 8 problems, 9 headers, all `text[]`, 10 record keys, 11 ordering
    /// keys, 12 payloads, all `bytea[]`. No result. SQLite has one parameter a value, and `{rows}` in the place of the rows.
    put_messages: "\
INSERT INTO {schema}.inbox (consumer, slot, sent_at, origin, idempotency_key, message_id, message_type, problem, headers, record_key,
    ordering_key, payload)
SELECT $1::int4, r.slot::int2, CASE WHEN r.sent_at > (-9223372036854775808)::int8
        THEN '1970-01-01 00:00:00+00'::timestamptz + r.sent_at::float8 * interval '1 microsecond' END,
    r.origin, r.idempotency_key, r.message_id, r.message_type, r.problem, r.headers::json, r.record_key, r.ordering_key, r.payload
FROM ROWS FROM (pg_catalog.unnest($2::int8[]), pg_catalog.unnest($3::int8[]), pg_catalog.unnest($4::text[]), pg_catalog.unnest($5::text[]),
    pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::text[]), pg_catalog.unnest($8::text[]), pg_catalog.unnest($9::text[]),
    pg_catalog.unnest($10::bytea[]), pg_catalog.unnest($11::bytea[]), pg_catalog.unnest($12::bytea[]))
    WITH ORDINALITY AS r (slot, sent_at, origin, idempotency_key, message_id, message_type, problem, headers, record_key, ordering_key,
        payload, place)
ORDER BY r.place";

    /// Renews leases, and takes free slots. Parameters: 1 consumer `int4`, 2 holder `text`, 3 for µs `int8`, 4 whether it takes more `bool`.
    /// Result, a row for each slot that it has: `slot int4`, `epoch int8`, `is_wanted bool`.
    hold_slots: "SELECT slot, epoch, is_wanted FROM {schema}.hold_slots($1::int4, $2::text, $3::int8, $4::bool)";

    /// Ends leases. Parameters: 1 consumer `int4`, 2 holder `text`, 3 slots, 4 epochs, both `int8[]`. No result to look at.
    release_slots: "SELECT {schema}.release_slots($1::int4, $2::text, $3::int8[], $4::int8[]) AS released";

    /// The next messages. Parameters: 1 consumer `int4`, 2 slots, 3 epochs, 4 the numbers behind which each slot's rows begin, 5 numbers
    /// that are left out, all `int8[]`, 6 how many of each slot, 7 how many, 8 how many bytes, all `int8`. Result, in the order of
    /// `number int8`: `slot int4`, `received_at` and `sent_at`, which may be NULL, in µs since the Unix epoch, `origin`, `message_id`,
    /// `message_type`, `problem`, `headers`, all `text`, `record_key`, `ordering_key`, `payload`, all `bytea`. All but the origin may be
    /// NULL.
    next_messages: "\
SELECT slot, number, received_at, sent_at, origin, message_id, message_type, problem, record_key, ordering_key, headers, payload
FROM {schema}.next_messages($1::int4, $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8, $7::int8, $8::int8)";

    /// Removes processed messages. Parameters: 1 consumer `int4`, 2 holder `text`, 3 slots, 4 epochs, 5 numbers, 6 when each was received, in
    /// µs since the Unix epoch, all `int8[]`. Result: `slot int4` and `epoch int8` of the slots that the holder has.
    remove_messages: "\
SELECT slot, epoch FROM {schema}.remove_messages($1::int4, $2::text, $3::int8[], $4::int8[], $5::int8[], $6::int8[])";

    /// What waits. Parameters: 1 consumer `int4`, 2 numbers that are left out `int8[]`, 3 up to how many are counted `int8`. Result, one
    /// row: `messages int8`, `oldest`, its age in µs or NULL, `free_slots int8`.
    count_messages: "\
SELECT messages, (extract(epoch FROM pg_catalog.clock_timestamp() - oldest) * 1000000::numeric)::int8 AS oldest, free_slots
FROM {schema}.count_messages($1::int4, $2::int8[], $3::int8)";
}
