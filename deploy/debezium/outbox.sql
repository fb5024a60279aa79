-- Events out through Debezium in place of a relay. Run it with psql, once, after `idem migrate up`, as a superuser or as idem_migrator with
-- the attribute REPLICATION; in another schema than idem, change `idem.` throughout. Workers then run with --relay off.
--
-- Each event leaves the outbox in the transaction that has published it. What Debezium reads is the log, so the row that it
-- reads is deleted again at once, and both tables stay empty. The columns have the names that its EventRouter expects.

CREATE TABLE idem.outbox_cdc (
    -- What receivers know the event by, and the header `id` of the record.
    id             text  NOT NULL,
    -- The destination, which is the topic, and what keeps events in order, which is the record's key.
    aggregatetype  text  NOT NULL,
    aggregateid    text  NOT NULL,
    type           text,
    payload        bytea NOT NULL,
    contenttype    text,
    -- The keys at the beginning of the chain, and of the message whose handler has published it.
    correlationid  text,
    causationid    text,
    traceparent    text,
    tracestate     text,
    -- For the attributes of a CloudEvent, which only an event with a type is.
    specversion    text,
    source         text,
    createdat      text
);
CREATE INDEX outbox_cdc_id ON idem.outbox_cdc (id);

-- What keeps events in order, as the text whose bytes a relay would give the record as its key. One that is no text in UTF-8 has its
-- bytes beyond ASCII written as octal numbers: it keeps its events in order, under another key than a relay's.
CREATE FUNCTION idem.outbox_record_key(ordering_key bytea) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN convert_from(ordering_key, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN encode(ordering_key, 'escape');
END
$idem$;

CREATE FUNCTION idem.outbox_to_cdc() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    INSERT INTO idem.outbox_cdc
        (id, aggregatetype, aggregateid, type, payload, contenttype, correlationid, causationid, traceparent, tracestate,
            specversion, source, createdat)
    SELECT o.event_key, d.name, coalesce(idem.outbox_record_key(o.ordering_key), o.event_key), o.event_type, o.payload, o.content_type,
        h.correlationid, h.causationid, h.traceparent, h.tracestate,
        CASE WHEN o.event_type IS NOT NULL THEN '1.0' END, CASE WHEN o.event_type IS NOT NULL THEN '/idem' || s.source END,
        CASE WHEN o.event_type IS NOT NULL THEN to_char(o.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END
    FROM added AS o JOIN idem.outbox_destinations AS d ON d.id = o.destination JOIN idem.consumers AS c ON c.id = o.consumer
    CROSS JOIN LATERAL (
        SELECT max(value) FILTER (WHERE name = 'idemcause') AS correlationid,
            max(value) FILTER (WHERE name = 'idemcausedby') AS causationid,
            max(value) FILTER (WHERE name = 'traceparent') AS traceparent,
            max(value) FILTER (WHERE name = 'tracestate') AS tracestate
        FROM (SELECT pair ->> 0 AS name, pair ->> 1 AS value FROM json_array_elements(o.headers) AS e (pair)) AS headers
    ) AS h
    -- Tenant and consumer, by the name from which ids are derived, percent-encoded as in a URI.
    CROSS JOIN LATERAL (
        SELECT string_agg(CASE WHEN place < 0 THEN '/'
            WHEN strpos('-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', chr(byte)) > 0 THEN chr(byte)
            ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END, '' ORDER BY part, place) AS source
        FROM (VALUES (1, convert_to(c.tenant, 'UTF8')), (2, convert_to(coalesce(c.derives_as, c.name), 'UTF8'))) AS p (part, bytes)
        CROSS JOIN LATERAL generate_series(-1, length(bytes) - 1) AS place
        CROSS JOIN LATERAL (SELECT CASE WHEN place < 0 THEN 0 ELSE get_byte(bytes, place) END) AS b (byte)
        WHERE bytes <> ''
    ) AS s
    ORDER BY o.number;
    DELETE FROM idem.outbox_cdc AS c USING added AS o WHERE c.id = o.event_key;
    DELETE FROM idem.outbox AS p USING added AS o
        WHERE p.key_id = o.key_id AND p.destination = o.destination AND p.consumer = o.consumer;
    RETURN NULL;
END
$idem$;
REVOKE ALL ON FUNCTION idem.outbox_to_cdc() FROM PUBLIC;

CREATE PUBLICATION idem_outbox FOR TABLE idem.outbox_cdc WITH (publish = 'insert');

-- Debezium sees no event from before the slot, so the slot comes before the first event that leaves the outbox. The connector finds it there.
SELECT pg_create_logical_replication_slot('idem_outbox', 'pgoutput');

DO $idem$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'idem_outbox' AND database = current_database()) THEN
        RAISE EXCEPTION 'there is no slot idem_outbox, and without it events would be lost: no trigger was made';
    END IF;
    CREATE TRIGGER outbox_to_cdc AFTER INSERT ON idem.outbox
        REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION idem.outbox_to_cdc();
END
$idem$;
