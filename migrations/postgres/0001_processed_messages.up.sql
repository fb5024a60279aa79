-- The record of every key, and the tables around it. Runs in one transaction, on PostgreSQL 14 and later.
-- {schema} stands for the quoted name of the schema; every name is qualified, because nothing here may depend on the
-- search_path of a session that a pooler handed out. Text is compared as bytes (COLLATE "C"): a language's collation may
-- call two different keys equal (failure B9), and may change with the operating system's library under the index.
-- Never edited once released: a change is a new migration.

-- The id of a key. A canonical lower-case UUID of version 1 to 7 is itself, so that UUIDv7 keeps its locality; every
-- other text becomes a version-8 UUID from a digest, so that the two ranges cannot meet and nobody can send the "UUID"
-- that is another key's digest. The golden vectors hold this function and the Rust one together.
CREATE FUNCTION {schema}.key_id(key text) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $idem$
SELECT CASE
    WHEN key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[1-7][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN key::uuid
    ELSE (
        SELECT encode(
            set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128),
            'hex')::uuid
        FROM (SELECT substring(sha256(convert_to('idem:key:v1:' || key, 'UTF8')) FROM 1 FOR 16) AS digest) AS hashed
    )
END
$idem$;

-- One row a processed key, inserted by the claim and never updated. The columns stand in the order that wastes no byte
-- on alignment, because this row is written once a message.
CREATE TABLE {schema}.processed_messages (
    key_id          uuid        NOT NULL,
    processed_at    timestamptz NOT NULL DEFAULT now(),
    -- Rounded up to the full minute by the claim, which keeps its index small; 'infinity' is kept for ever.
    expires_at      timestamptz NOT NULL,
    consumer        int         NOT NULL,
    hash_id         int         NOT NULL,
    processed_by    int         NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    payload_hash    bytea       NOT NULL,
    CONSTRAINT processed_messages_pkey PRIMARY KEY (consumer, key_id)
) WITH (
    -- Rows are inserted and deleted, never updated: no page needs room for a newer version. With the server's default
    -- of a fifth, a table of a hundred million rows would wait for twenty million dead ones.
    fillfactor = 100,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE INDEX idx_processed_messages_expires ON {schema}.processed_messages (expires_at);

-- Reads the records of some keys. It is a function, because a plan that is cached while the table is tiny is a
-- sequential scan, and stays one while the table grows under it: measured two seconds instead of one millisecond for a
-- hundred keys. The setting holds for this query alone, also whenever it is planned again.
CREATE FUNCTION {schema}.read_records(consumers int[], key_ids uuid[])
    RETURNS SETOF {schema}.processed_messages
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    AS $idem$
BEGIN
    RETURN QUERY
    SELECT found.*
    FROM unnest(consumers, key_ids) AS asked (consumer, key_id)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.processed_messages AS p
        WHERE p.consumer = asked.consumer AND p.key_id = asked.key_id
        LIMIT 1
    ) AS found;
END
$idem$;

-- One row a unit of work that claimed something. It exists for its trigger, and tells which run and lane committed.
-- It has no primary key on purpose: transaction ids repeat after a restore into another cluster, and a unit must not
-- fail for that.
CREATE TABLE {schema}.units (
    xid  bigint      NOT NULL,
    at   timestamptz NOT NULL DEFAULT now(),
    run  int         NOT NULL,
    lane int         NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

CREATE INDEX idx_units_at ON {schema}.units (at);

-- Without this, cleanup's DELETE fails wherever a publication covers all tables, because there is no primary key.
ALTER TABLE {schema}.units REPLICA IDENTITY FULL;

-- Refuses a COMMIT that idem did not seal (failure A12): a handler that commits in the middle of a batch would commit
-- the claims of messages that never ran, and each of their redeliveries would pass for a duplicate.
CREATE FUNCTION {schema}.refuse_unsealed_commit() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    -- The setting is NULL before its first use in a session and empty after it: neither equals a transaction id.
    IF current_setting('idem.sealed', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ID001',
            MESSAGE = 'idem refused a COMMIT that it did not send',
            DETAIL = 'The transaction holds claimed keys whose messages may not have been handled; it was rolled back.',
            HINT = 'A handler must not end its transaction or set all constraints immediate: return Ok or an error instead.';
    END IF;
    RETURN NULL;
END
$idem$;

CREATE CONSTRAINT TRIGGER refuse_unsealed_commit
    AFTER INSERT ON {schema}.units
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_unsealed_commit();

-- Who consumes, and what its name was bound to by its first start.
CREATE TABLE {schema}.consumers (
    id               int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The empty text stands for "no tenant": NULLs would not be equal to each other in the key below (failure B8).
    tenant           text        COLLATE "C" NOT NULL DEFAULT '',
    name             text        COLLATE "C" NOT NULL,
    -- Empty where no start has said it yet: it binds nothing, and the first start that says it fills it in.
    bound_to         text        COLLATE "C" NOT NULL,
    handler          text        COLLATE "C" NOT NULL,
    key_rules        text        COLLATE "C" NOT NULL,
    hash_rules       text        COLLATE "C" NOT NULL,
    -- NULL keeps records for ever.
    retention        interval,
    first_started_at timestamptz NOT NULL DEFAULT now(),
    -- The name comes first, because a name is bound to one source whatever the tenant.
    CONSTRAINT consumers_name_tenant UNIQUE (name, tenant)
);

-- How payloads were hashed: name, version and parameters as one canonical text, so that a record names it by a number.
CREATE TABLE {schema}.payload_hashes (
    id   int  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule text COLLATE "C" NOT NULL,
    CONSTRAINT payload_hashes_rule UNIQUE (rule)
);

-- One row a start of a worker: what processed_by and units.run refer to.
CREATE TABLE {schema}.worker_runs (
    id         int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host       text        COLLATE "C" NOT NULL,
    process    int         NOT NULL,
    version    text        COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
);

-- One row a key that failed. Written before the run, in a transaction of its own, so that a message that kills the
-- process is counted too. The worker may not delete, so a success sets the count to zero and cleanup removes the row.
CREATE TABLE {schema}.attempts (
    key_id          uuid        NOT NULL,
    first_at        timestamptz NOT NULL DEFAULT now(),
    last_at         timestamptz NOT NULL DEFAULT now(),
    consumer        int         NOT NULL,
    attempts        int         NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    last_error      text        COLLATE "C",
    -- Another payload under the same key is another message, whose count starts anew.
    payload_hash    bytea       NOT NULL,
    CONSTRAINT attempts_pkey PRIMARY KEY (consumer, key_id)
) WITH (
    -- Room for the next count on the same page, which then needs no new index entry.
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02
);

-- Messages that will not run again by themselves. A malformed message may have no key.
CREATE TABLE {schema}.dead_letters (
    id                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer            int         NOT NULL,
    -- Where the first copy came from, and where the last counted copy came from: a redelivery after a crash carries one
    -- of the two and is not counted again.
    origin              text        COLLATE "C" NOT NULL,
    last_origin         text        COLLATE "C" NOT NULL,
    key_id              uuid,
    idempotency_key     text        COLLATE "C",
    payload_hash        bytea,
    hash_id             int,
    reason              text        COLLATE "C" NOT NULL,
    attempts            int         NOT NULL,
    error               text        COLLATE "C" NOT NULL,
    -- NULL when the message had none (has_payload is false) or when it was over the limit (has_payload is true).
    payload             bytea,
    payload_bytes       bigint      NOT NULL,
    has_payload         boolean     NOT NULL,
    -- json keeps repeated names and any escape; jsonb would refuse a NUL, and a dead letter must never be refused.
    headers             json,
    message_id          text        COLLATE "C",
    message_type        text        COLLATE "C",
    record_key          bytea,
    ordering_key        bytea,
    copies              bigint      NOT NULL DEFAULT 1,
    first_at            timestamptz NOT NULL DEFAULT now(),
    last_at             timestamptz NOT NULL DEFAULT now(),
    published_at        timestamptz,
    replay_requested_at timestamptz,
    replay_taken_at     timestamptz,
    replay_taken_by     int,
    replayed_at         timestamptz,
    replay_outcome      text        COLLATE "C",
    CONSTRAINT dead_letters_origin UNIQUE (consumer, origin)
) WITH (fillfactor = 90);

-- Equal messages that failed for the same reason are one row with a count. NULLs in a unique index differ from each
-- other before PostgreSQL 15, so a message without a hash counts as one with an empty hash.
CREATE UNIQUE INDEX dead_letters_equal ON {schema}.dead_letters
    (consumer, key_id, COALESCE(payload_hash, ''::bytea), reason) WHERE key_id IS NOT NULL;
CREATE INDEX idx_dead_letters_last ON {schema}.dead_letters (last_at);
CREATE INDEX idx_dead_letters_replay ON {schema}.dead_letters (consumer, id)
    WHERE replay_requested_at IS NOT NULL AND replayed_at IS NULL;

-- Who did what to records, consumers and dead letters.
CREATE TABLE {schema}.audit (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT now(),
    who             text        COLLATE "C" NOT NULL,
    action          text        COLLATE "C" NOT NULL,
    consumer        int,
    idempotency_key text        COLLATE "C",
    details         text        COLLATE "C" NOT NULL DEFAULT ''
);

CREATE INDEX idx_audit_at ON {schema}.audit (at);

-- What an operator asks of the running workers of a consumer. The epoch rises when records were forgotten, replayed or
-- restored, and empties every cache of committed keys.
CREATE TABLE {schema}.controls (
    consumer int         PRIMARY KEY,
    state    text        COLLATE "C" NOT NULL DEFAULT 'running',
    by       text        COLLATE "C" NOT NULL DEFAULT '',
    reason   text        COLLATE "C" NOT NULL DEFAULT '',
    at       timestamptz NOT NULL DEFAULT now(),
    epoch    bigint      NOT NULL DEFAULT 0,
    CONSTRAINT controls_state CHECK (state IN ('running', 'paused', 'halted'))
);

-- What an auditor may read: names instead of numbers, and neither payloads nor headers, which may hold personal data.
CREATE VIEW {schema}.audit_view AS
    SELECT a.id, a.at, a.who, a.action, c.tenant, c.name AS consumer_name, a.idempotency_key, a.details
    FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer;

CREATE VIEW {schema}.dead_letters_view AS
    SELECT d.id, c.tenant, c.name AS consumer_name, d.origin, d.last_origin, d.idempotency_key, d.payload_hash,
           h.rule AS hash_rule, d.reason, d.attempts, d.error, d.payload_bytes, d.has_payload, d.message_id,
           d.message_type, d.copies, d.first_at, d.last_at, d.published_at, d.replay_requested_at, d.replay_taken_at,
           d.replayed_at, d.replay_outcome
    FROM {schema}.dead_letters AS d
    LEFT JOIN {schema}.consumers AS c ON c.id = d.consumer
    LEFT JOIN {schema}.payload_hashes AS h ON h.id = d.hash_id;
