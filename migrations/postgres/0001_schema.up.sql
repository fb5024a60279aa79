-- The schema. Runs in one transaction, on PostgreSQL 14 and later.
-- {schema} stands for the quoted name of the schema; every name is qualified, because nothing here may depend on the
-- search_path of a session that a pooler handed out. Text is compared as bytes (COLLATE "C"): a language's collation may
-- call two different keys equal (failure B9), and may change with the operating system's library under the index.
-- Until 0.1.0 is tagged, every change is made here. After that, a change is a new migration.

-- Records

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
    -- Whether the record is the only one of its unit. Such a unit writes no row into `units`: the record's own trigger refuses what a
    -- handler's own COMMIT would commit. Records of batches fire no trigger, since one row of `units` answers for all of them.
    alone           boolean     NOT NULL DEFAULT false,
    CONSTRAINT processed_messages_pkey PRIMARY KEY (consumer, key_id),
    -- A worker inserts these, and a record beyond the bounds could not be read by any (S61).
    CONSTRAINT processed_messages_readable CHECK (octet_length(payload_hash) = 32
        AND processed_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59+00'
        AND (expires_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59+00' OR expires_at = 'infinity'))
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
-- hundred keys. Its settings hold for this query alone, also whenever it is planned again. It has one plan: for few keys the server
-- would otherwise make a plan at each call, which costs more than the look.
--
-- What this very transaction has inserted is not among the records: a claim that was made to deny its own rows would otherwise find them
-- here, and take new messages for duplicates of themselves. (After four thousand million transactions an old row may have the number of
-- this one. Its claim is then repeated in another.)
CREATE FUNCTION {schema}.read_records(consumers int[], key_ids uuid[])
    RETURNS SETOF {schema}.processed_messages
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN QUERY
    SELECT found.*
    FROM unnest(consumers, key_ids) AS asked (consumer, key_id)
    CROSS JOIN LATERAL (
        SELECT p.* FROM {schema}.processed_messages AS p
        WHERE p.consumer = asked.consumer AND p.key_id = asked.key_id
            AND p.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid
        LIMIT 1
    ) AS found;
END
$idem$;

-- The seal

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
--
-- The function has no search_path of its own: PostgreSQL sets and resets a function's settings at each call, which costs a unit more than
-- the comparison does. Every function, type and operator is qualified instead, so that the caller's search_path decides nothing (S11).
-- IS DISTINCT FROM, IN and CASE would look their operator up there, so the seal is compared by =, and whatever is not true, NULL too, is
-- refused.
CREATE FUNCTION {schema}.refuse_unsealed_commit() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql
    AS $idem$
BEGIN
    -- The setting is NULL before its first use in a session and empty after it: neither equals a transaction id.
    IF pg_catalog.current_setting('idem.sealed', true) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.text THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ID001',
        MESSAGE = 'idem refused a COMMIT that it did not send',
        DETAIL = 'The transaction holds claimed keys whose messages may not have been handled; it was rolled back.',
        HINT = 'A handler must not end its transaction or set all constraints immediate: return Ok or an error instead.';
END
$idem$;

CREATE CONSTRAINT TRIGGER refuse_unsealed_commit
    AFTER INSERT ON {schema}.units
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_unsealed_commit();

CREATE CONSTRAINT TRIGGER refuse_unsealed_commit
    AFTER INSERT ON {schema}.processed_messages
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.alone) EXECUTE FUNCTION {schema}.refuse_unsealed_commit();

-- Names behind the numbers

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
    -- For how long the broker may deliver again, as the consumer's last start learned.
    redelivery_horizon interval,
    -- The name from which the ids of events and of calls are derived, where the consumer was renamed since.
    derives_as       text        COLLATE "C",
    -- The name comes first, because a name is bound to one source whatever the tenant.
    CONSTRAINT consumers_name_tenant UNIQUE (name, tenant),
    -- A worker may write these. Beyond the bounds the arithmetic of others would fail (S57).
    CONSTRAINT consumers_id CHECK (id > 0),
    CONSTRAINT consumers_spans CHECK (
        retention BETWEEN interval '0' AND interval '1000 years' AND redelivery_horizon BETWEEN interval '0' AND interval '1000 years'
        -- The comparison takes years, days and microseconds together, and arithmetic takes them one by one.
        AND greatest(abs(extract(year FROM retention)), abs(extract(year FROM redelivery_horizon))) <= 1000
        AND greatest(abs(extract(day FROM retention)), abs(extract(day FROM redelivery_horizon))) <= 400000)
);

-- A first name decides the ids of events and of calls to providers. A login that is no member of the owner may copy that of the same
-- consumer, for another tenant, and give no other one (S57).
CREATE FUNCTION {schema}.refuse_other_first_name() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    IF NEW.derives_as IS NULL OR pg_has_role(current_user, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'MEMBER')
        OR EXISTS (SELECT FROM {schema}.consumers AS c WHERE c.name = NEW.name AND c.derives_as = NEW.derives_as) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = '42501',
        MESSAGE = 'the first name of a consumer cannot be chosen',
        HINT = 'An operator renames a consumer with idem consumers rename.';
END
$idem$;

CREATE TRIGGER refuse_other_first_name BEFORE INSERT ON {schema}.consumers
    FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_other_first_name();

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
    started_at timestamptz NOT NULL DEFAULT now(),
    -- What a worker reports of itself every ten seconds; NULL for a service over HTTP. A run without an end that reports no more is gone.
    consumer   int,
    seen_at    timestamptz,
    ended_at   timestamptz,
    -- Its conditions, each with its number, reason and time, as a JSON array; at the end, how it failed.
    standing   text        COLLATE "C" NOT NULL DEFAULT '[]'
) WITH (fillfactor = 50);

CREATE INDEX idx_worker_runs_consumer ON {schema}.worker_runs (consumer, id) WHERE consumer IS NOT NULL;

-- Failures

-- One row a message that failed. Written before the run, in a transaction of its own, so that a message that kills the
-- process is counted too. The worker may not delete, so what ends a count sets it to zero and cleanup removes the row.
CREATE TABLE {schema}.message_attempts (
    key_id          uuid        NOT NULL,
    first_at        timestamptz NOT NULL DEFAULT now(),
    last_at         timestamptz NOT NULL DEFAULT now(),
    consumer        int         NOT NULL,
    attempts        int         NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    payload_hash    bytea       NOT NULL,
    CONSTRAINT message_attempts_pkey PRIMARY KEY (consumer, key_id, payload_hash)
) WITH (
    -- Room for the next count on the same page, which then needs no new index entry.
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02
);

-- Messages that failed: those that wait for a later try, and those that will not run again by themselves. A malformed message may have no key.
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
    -- 0 it is dead, and an operator decides; 1 it runs at due_at; 2 it runs behind another row of its ordering key.
    state               smallint    NOT NULL DEFAULT 0,
    -- Of states 1 and 2: from when it may run.
    due_at              timestamptz,
    -- The operator who asked for the last replay. NULL in states 1 and 2: it waits for a later try, and its attempts go on.
    due_by              text        COLLATE "C",
    -- The lease of a row that runs: since when, the worker's run, and its login, by the server. Once the lease is over, another worker
    -- takes the row.
    taken_at            timestamptz,
    taken_by            int,
    taken_login         text        COLLATE "C",
    -- How the last replay ended.
    replayed_at         timestamptz,
    replay_outcome      text        COLLATE "C",
    -- A row stands for one content: identity is a digest that core computes (with a key, of key, payload hash and reason;
    -- without one, of the place, payload, headers, record key and type). So another message at an origin that is used again, as
    -- Kafka does when a topic is created again, is another row.
    identity            bytea,
    -- What it shares with those that failed alike, made of facts and no value: f1- and 16 hexadecimal digits.
    fingerprint         text        COLLATE "C",
    -- An operator accepted that a payload which is neither kept nor published is lost.
    loss_accepted_at    timestamptz,
    loss_accepted_by    text        COLLATE "C",
    CONSTRAINT dead_letters_state CHECK (state BETWEEN 0 AND 2),
    CONSTRAINT dead_letters_due CHECK ((state = 0) = (due_at IS NULL)),
    CONSTRAINT dead_letters_taken CHECK ((taken_at IS NULL) = (taken_by IS NULL) AND (taken_at IS NULL OR state <> 0))
) WITH (fillfactor = 90);

CREATE UNIQUE INDEX dead_letters_identity ON {schema}.dead_letters (consumer, identity);

CREATE INDEX idx_dead_letters_key ON {schema}.dead_letters (consumer, key_id) WHERE key_id IS NOT NULL;

CREATE INDEX idx_dead_letters_last ON {schema}.dead_letters (last_at);

CREATE INDEX idx_dead_letters_open ON {schema}.dead_letters (consumer)
    WHERE state = 0 AND (replayed_at IS NULL OR pg_catalog.starts_with(replay_outcome, 'failed'));

CREATE INDEX idx_dead_letters_due ON {schema}.dead_letters (consumer, state, due_at, id) WHERE state <> 0;

-- The first row of an ordering key is its head: of the rows that run, else of all, the one with the lowest id.
CREATE INDEX idx_dead_letters_sequence ON {schema}.dead_letters (consumer, ordering_key, (taken_at IS NULL), id)
    WHERE state <> 0 AND ordering_key IS NOT NULL;

-- Operators

-- Who did what to records, consumers and dead letters.
CREATE TABLE {schema}.audit (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT now(),
    who             text        COLLATE "C" NOT NULL,
    action          text        COLLATE "C" NOT NULL,
    consumer        int,
    idempotency_key text        COLLATE "C",
    details         text        COLLATE "C" NOT NULL DEFAULT '',
    -- Whose login wrote the line, beside the name that its writer gives.
    login           text        COLLATE "C" NOT NULL DEFAULT session_user
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
    -- Whether rows of any ordering key are not over. Claims read it, and ask what is ahead of their messages only while it is set. Such a
    -- row is written and ended under the lock of this one, and the mark is kept there.
    waits    boolean     NOT NULL DEFAULT false,
    CONSTRAINT controls_state CHECK (state IN ('running', 'paused', 'halted')),
    -- Claims sum the epochs of several consumers. A worker may write one, and must not make the sum overflow (S57).
    CONSTRAINT controls_epoch CHECK (epoch BETWEEN 0 AND 1099511627775)
);

-- Records that an operator forgot: they wait here, out of the way of every claim, until cleanup takes them or the operator
-- takes it back.
CREATE TABLE {schema}.forgotten (
    key_id          uuid        NOT NULL,
    processed_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    forgotten_at    timestamptz NOT NULL DEFAULT now(),
    -- One act of forgetting, by which it is taken back.
    batch           bigint      NOT NULL,
    consumer        int         NOT NULL,
    hash_id         int         NOT NULL,
    processed_by    int         NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    payload_hash    bytea       NOT NULL,
    CONSTRAINT forgotten_pkey PRIMARY KEY (batch, consumer, key_id)
);

CREATE INDEX idx_forgotten_at ON {schema}.forgotten (forgotten_at);

-- What an auditor may read: names instead of numbers, and neither payloads nor headers, which may hold personal data.
CREATE VIEW {schema}.audit_view AS
    SELECT a.id, a.at, a.who, a.action, c.tenant, c.name AS consumer_name, a.idempotency_key, a.details, a.login
    FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer;

CREATE VIEW {schema}.dead_letters_view AS
    SELECT d.id, c.tenant, c.name AS consumer_name, d.origin, d.last_origin, d.idempotency_key, d.payload_hash,
           h.rule AS hash_rule, d.reason, d.attempts, d.error, d.payload_bytes, d.has_payload, d.message_id,
           d.message_type, d.copies, d.first_at, d.last_at, d.published_at, d.state, d.due_at, d.due_by, d.taken_at,
           d.replayed_at, d.replay_outcome, d.fingerprint, d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
           d.loss_accepted_at, d.loss_accepted_by
    FROM {schema}.dead_letters AS d
    LEFT JOIN {schema}.consumers AS c ON c.id = d.consumer
    LEFT JOIN {schema}.payload_hashes AS h ON h.id = d.hash_id;

-- Gives a dead letter the payload that was over the limit when it was stored, with the rights of the table's owner: a worker may do this,
-- and replace no payload. Under a hash rule of some members alone, two copies with one hash differ in length, and the row counts the bytes
-- that it has. Where the hash is of the bytes themselves, they are
-- compared. An erased row, whose key is gone, gets no payload. Each payload that is given is a line of the trail, with the login by the server.
CREATE FUNCTION {schema}.keep_payload(dead_letter bigint, content bytea) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
WITH kept AS (
    UPDATE {schema}.dead_letters AS d SET payload = content, payload_bytes = octet_length(content)
    WHERE d.id = dead_letter AND d.payload IS NULL AND d.has_payload AND (d.key_id IS NULL OR d.idempotency_key IS NOT NULL)
        AND (sha256(content) = d.payload_hash
            OR EXISTS (SELECT FROM {schema}.payload_hashes AS h WHERE h.id = d.hash_id AND h.rule <> 'raw/1'))
    RETURNING d.id, d.consumer, d.idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT session_user, 'keep-payload', k.consumer, k.idempotency_key, format('dead letter %s: %s bytes', k.id, octet_length(content))
    FROM kept AS k
)
SELECT k.id FROM kept AS k
$idem$;

-- Rows that are due
--
-- A row runs again when an operator asks for it, or when the time of its later try has come. Of an ordering key one row is the head: it alone has state 1, and the rows behind it are
-- taken with it or become the head after it. So no two workers run rows of one key at a time, and a key's order is kept. Whoever changes
-- which row is the head holds the lock of the scope, which is its row in controls: claims read that row without a lock. These functions
-- have the rights of the table's owner, because a worker changes no state in another way, and only the login that took a row ends,
-- renews or gives back its lease. Their plans are made for a large table, and are not compiled, which takes longer than running them.

-- Locks these scopes, in the order that all callers lock in.
CREATE FUNCTION {schema}.lock_due(scopes int[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    INSERT INTO {schema}.controls (consumer)
    SELECT s.id FROM unnest(scopes) AS s (id) WHERE NOT EXISTS (SELECT FROM {schema}.controls AS k WHERE k.consumer = s.id)
    ORDER BY s.id ON CONFLICT (consumer) DO NOTHING;
    PERFORM FROM {schema}.controls AS k WHERE k.consumer = ANY (scopes) ORDER BY k.consumer FOR NO KEY UPDATE;
END
$idem$;

-- Makes the first row of each of these ordering keys its head. The caller holds the lock of the scopes.
CREATE FUNCTION {schema}.lead_due(scopes int[], keys bytea[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    UPDATE {schema}.dead_letters AS d SET state = 1 WHERE d.state = 2::int2 AND d.ctid = ANY (ARRAY(
        SELECT f.place FROM (SELECT DISTINCT u.scope, u.ordering_key FROM unnest(scopes, keys) AS u (scope, ordering_key)) AS k
        CROSS JOIN LATERAL (
            SELECT w.ctid AS place, w.state FROM {schema}.dead_letters AS w
            WHERE w.consumer = k.scope AND w.ordering_key >= k.ordering_key AND w.ordering_key <= k.ordering_key AND w.state <> 0::int2
            ORDER BY w.ordering_key, (w.taken_at IS NULL), w.id LIMIT 1) AS f
        WHERE f.state = 2::int2));
END
$idem$;

-- Takes the mark away of those of these scopes in which no row of an ordering key is left. The caller holds their lock.
CREATE FUNCTION {schema}.unmark_waits(scopes int[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    UPDATE {schema}.controls AS k SET waits = false WHERE k.consumer = ANY (scopes) AND k.waits
        AND coalesce((SELECT false FROM {schema}.dead_letters AS d
            WHERE d.consumer = k.consumer AND d.state <> 0::int2 AND d.ordering_key IS NOT NULL
            ORDER BY d.consumer, d.ordering_key, (d.taken_at IS NULL), d.id LIMIT 1), true);
END
$idem$;

-- The rows that are not over of each of these ordering keys, in their order: 0 there is none, 1 the first is due or runs, 2 it waits.
CREATE FUNCTION {schema}.rows_ahead(scopes int[], keys bytea[]) RETURNS int[]
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN ARRAY(
        SELECT coalesce((SELECT CASE WHEN w.taken_at IS NOT NULL OR w.due_at <= clock_timestamp() THEN 1 ELSE 2 END
            FROM {schema}.dead_letters AS w
            WHERE w.consumer = asked.scope AND w.ordering_key >= asked.ordering_key AND w.ordering_key <= asked.ordering_key
                AND w.state <> 0::int2
            ORDER BY w.ordering_key, (w.taken_at IS NULL), w.id LIMIT 1), 0)
        FROM unnest(scopes, keys) WITH ORDINALITY AS asked (scope, ordering_key, place) ORDER BY asked.place);
END
$idem$;

-- An operator who removes a row lets the next of its ordering key go. Rows that run are removed by end_due, which does it for many at once.
CREATE FUNCTION {schema}.let_next_go() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    PERFORM {schema}.lock_due(ARRAY[OLD.consumer]);
    PERFORM {schema}.lead_due(ARRAY[OLD.consumer], ARRAY[OLD.ordering_key]);
    PERFORM {schema}.unmark_waits(ARRAY[OLD.consumer]);
    RETURN NULL;
END
$idem$;

CREATE TRIGGER let_next_go AFTER DELETE ON {schema}.dead_letters
    FOR EACH ROW WHEN (OLD.state <> 0 AND OLD.ordering_key IS NOT NULL AND OLD.taken_at IS NULL)
    EXECUTE FUNCTION {schema}.let_next_go();

-- Makes dead letters due now that have their payload, and rows that wait for a later try and do not run, and returns their ids. Their
-- attempts are counted from the beginning, and the caches of committed keys are emptied.
CREATE FUNCTION {schema}.due_now(ids bigint[], asked_by text) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    due bigint[];
    scopes int[];
    busy_scopes int[];
    busy_keys bytea[];
BEGIN
    scopes := ARRAY(SELECT DISTINCT d.consumer FROM {schema}.dead_letters AS d WHERE d.id = ANY (ids) AND (d.state = 0::int2 OR d.due_by IS NULL AND d.taken_at IS NULL));
    PERFORM {schema}.lock_due(scopes);
    -- Ordering keys of which a row is due already. Their head gives way to an earlier row, unless it runs.
    SELECT array_agg(k.consumer), array_agg(k.ordering_key) FROM (
        SELECT DISTINCT d.consumer, d.ordering_key FROM {schema}.dead_letters AS d
        WHERE d.id = ANY (ids) AND (d.state = 0::int2 OR d.due_by IS NULL AND d.taken_at IS NULL) AND d.consumer = ANY (scopes) AND EXISTS (
            SELECT FROM {schema}.dead_letters AS w
            WHERE w.consumer = d.consumer AND w.ordering_key = d.ordering_key AND w.state <> 0::int2)) AS k
    INTO busy_scopes, busy_keys;
    UPDATE {schema}.dead_letters AS d SET state = 2 FROM unnest(busy_scopes, busy_keys) AS k (scope, ordering_key)
    WHERE d.consumer = k.scope AND d.ordering_key = k.ordering_key AND d.state = 1::int2 AND d.taken_at IS NULL;
    WITH chosen AS (
        SELECT d.id, CASE WHEN d.ordering_key IS NULL OR d.id = min(d.id) OVER (PARTITION BY d.consumer, d.ordering_key)
            AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS w
                WHERE w.consumer = d.consumer AND w.ordering_key = d.ordering_key AND w.state <> 0::int2) THEN 1 ELSE 2 END AS state
        FROM {schema}.dead_letters AS d
        WHERE d.id = ANY (ids) AND d.consumer = ANY (scopes) AND (d.state = 0::int2 OR d.due_by IS NULL AND d.taken_at IS NULL) AND (d.payload IS NOT NULL OR NOT d.has_payload)
    ), marked AS (
        UPDATE {schema}.dead_letters AS d SET state = chosen.state, due_at = now(), due_by = asked_by, replayed_at = NULL,
            replay_outcome = NULL
        FROM chosen WHERE d.id = chosen.id AND (d.state = 0::int2 OR d.due_by IS NULL AND d.taken_at IS NULL)
        RETURNING d.id, d.consumer, d.key_id, d.payload_hash, d.ordering_key
    ), recounted AS (
        UPDATE {schema}.message_attempts AS a SET attempts = 0 FROM marked AS m
        WHERE a.consumer = m.consumer AND a.key_id = m.key_id AND a.payload_hash = m.payload_hash
    ), emptied AS (
        UPDATE {schema}.controls AS c SET epoch = (c.epoch + 1) % 1099511627776,
            waits = c.waits OR EXISTS (SELECT FROM marked AS m WHERE m.consumer = c.consumer AND m.ordering_key IS NOT NULL)
        WHERE c.consumer IN (SELECT m.consumer FROM marked AS m)
    )
    SELECT array_agg(m.id ORDER BY m.id) FROM marked AS m INTO due;
    PERFORM {schema}.lead_due(busy_scopes, busy_keys);
    RETURN QUERY SELECT u.id FROM unnest(due) AS u (id);
END
$idem$;

-- Keeps a message as a row that is due after so many microseconds, 36 hours at most. A row of its key and payload that is not over stands
-- for it and stays as it is: a redelivery and a copy are no second row. Behind rows of its ordering key that are not over the row has state 2:
-- the lock keeps them from ending meanwhile. Returns the row, NULL where it ended in between, and whether it is
-- written. A worker's login may insert any row and ask for any replay, so this gives it no right that it lacks.
CREATE FUNCTION {schema}.put_aside(of_consumer int, from_origin text, of_key_id uuid, of_key text, of_hash bytea, of_hash_id int, why text,
        made int, with_error text, content bytea, content_bytes bigint, with_payload boolean, with_headers json, of_message_id text,
        of_type text, of_record_key bytea, of_ordering_key bytea, of_identity bytea, of_fingerprint text, after bigint)
    RETURNS TABLE (id bigint, is_written boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
DECLARE
    due timestamptz := clock_timestamp() + least(greatest(after, 0), 129600000000)::float8 * interval '1 microsecond';
    written bigint;
    head bigint;
BEGIN
    IF of_ordering_key IS NOT NULL THEN
        PERFORM {schema}.lock_due(ARRAY[of_consumer]);
        SELECT w.id FROM {schema}.dead_letters AS w
        WHERE w.consumer = of_consumer AND w.ordering_key >= of_ordering_key AND w.ordering_key <= of_ordering_key AND w.state <> 0::int2
        ORDER BY w.ordering_key, (w.taken_at IS NULL), w.id LIMIT 1 INTO head;
    END IF;
    PERFORM {schema}.keep_payload(d.id, content) FROM {schema}.dead_letters AS d
    WHERE d.consumer = of_consumer AND d.identity = of_identity AND d.payload IS NULL AND d.has_payload;
    INSERT INTO {schema}.dead_letters AS d (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts,
        error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key, ordering_key, identity, fingerprint, state,
        due_at)
    SELECT of_consumer, from_origin, from_origin, of_key_id, of_key, of_hash, of_hash_id, why, made, with_error, content, content_bytes,
        with_payload, with_headers, of_message_id, of_type, of_record_key, of_ordering_key, of_identity, of_fingerprint,
        CASE WHEN head IS NULL THEN 1 ELSE 2 END, due
    WHERE NOT EXISTS (SELECT FROM {schema}.dead_letters AS w WHERE w.consumer = of_consumer AND w.key_id = of_key_id
        AND w.payload_hash = of_hash AND w.state <> 0::int2)
    ON CONFLICT (consumer, identity) DO UPDATE SET state = excluded.state, ordering_key = of_ordering_key, due_at = due, due_by = NULL,
        reason = why, attempts = made,
        error = with_error, fingerprint = of_fingerprint, last_at = now(), replayed_at = NULL, replay_outcome = NULL,
        copies = least(d.copies, 9223372036854775806::int8) + (from_origin NOT IN (d.origin, d.last_origin))::int4::int8,
        last_origin = CASE WHEN from_origin = d.origin THEN d.last_origin ELSE from_origin END
        WHERE d.state = 0::int2 AND (d.payload IS NOT NULL OR NOT d.has_payload)
    RETURNING d.id INTO written;
    IF of_ordering_key IS NOT NULL THEN
        UPDATE {schema}.controls AS k SET waits = true WHERE k.consumer = of_consumer AND NOT k.waits;
    END IF;
    IF written < head THEN
        -- A dead letter that waits again is before its head.
        UPDATE {schema}.dead_letters AS d SET state = 2 WHERE d.id = head AND d.state = 1::int2 AND d.taken_at IS NULL;
        PERFORM {schema}.lead_due(ARRAY[of_consumer], ARRAY[of_ordering_key]);
    END IF;
    RETURN QUERY SELECT coalesce(written, (SELECT w.id FROM {schema}.dead_letters AS w WHERE w.consumer = of_consumer
        AND w.key_id = of_key_id AND w.payload_hash = of_hash AND w.state <> 0::int2 LIMIT 1)), written IS NOT NULL;
END
$idem$;

-- Whether a row of the consumer is due that no worker has. Workers ask every few seconds, mostly for nothing, so it locks and writes
-- nothing. A row behind another one whose scope has no head at all is found too: its head was erased, or deleted.
CREATE FUNCTION {schema}.any_due(of_name text, lease bigint) RETURNS boolean
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.consumers AS c CROSS JOIN LATERAL (
            SELECT FROM {schema}.dead_letters AS d
            WHERE d.consumer = c.id AND d.state = 1::int2 AND d.due_at <= now()
                AND (d.taken_at IS NULL OR d.taken_at < clock_timestamp() - lease::float8 * interval '1 microsecond')
            ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT 1) AS head WHERE c.name = of_name)
        OR EXISTS (SELECT FROM {schema}.consumers AS c CROSS JOIN LATERAL (
            SELECT d.state FROM {schema}.dead_letters AS d
            WHERE d.consumer = c.id AND d.state <> 0::int2 ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT 1) AS first
        WHERE c.name = of_name AND first.state = 2::int2);
END
$idem$;

-- Takes rows that are due, in the order in which they are to run: the heads, and behind each of them others of its ordering key while
-- there is room. No tenant's backlog hides another's: each scope with something due gets its share. One call takes all rows of a key that
-- run at a time, so their leases end together.
CREATE FUNCTION {schema}.take_due(of_name text, run int, rows_max bigint, bytes_max bigint, lease bigint)
    RETURNS TABLE (id bigint, consumer int, origin text, idempotency_key text, payload bytea, has_payload boolean, headers text,
        message_id text, message_type text, record_key bytea, ordering_key bytea, attempts int, replayed boolean, was_taken boolean)
    LANGUAGE plpgsql STRICT SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
DECLARE
    scopes int[];
    orphans int[];
    each_max bigint;
    dead timestamptz := clock_timestamp() - lease::float8 * interval '1 microsecond';
BEGIN
    orphans := ARRAY(SELECT c.id FROM {schema}.consumers AS c CROSS JOIN LATERAL (
            SELECT d.state FROM {schema}.dead_letters AS d
            WHERE d.consumer = c.id AND d.state <> 0::int2 ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT 1) AS first
        WHERE c.name = of_name AND first.state = 2::int2 LIMIT rows_max);
    IF orphans <> '{}' THEN
        PERFORM {schema}.lock_due(orphans);
        PERFORM {schema}.lead_due(array_agg(w.consumer), array_agg(w.ordering_key))
        FROM unnest(orphans) AS s (id) CROSS JOIN LATERAL (
            SELECT d.consumer, d.ordering_key FROM {schema}.dead_letters AS d
            WHERE d.consumer = s.id AND d.state = 2::int2 ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT rows_max) AS w;
    END IF;
    scopes := ARRAY(SELECT c.id FROM {schema}.consumers AS c CROSS JOIN LATERAL (
            SELECT d.due_at FROM {schema}.dead_letters AS d
            WHERE d.consumer = c.id AND d.state = 1::int2 AND d.due_at <= now() AND (d.taken_at IS NULL OR d.taken_at < dead)
            ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT 1) AS head
        WHERE c.name = of_name ORDER BY head.due_at, c.id LIMIT rows_max);
    each_max := rows_max / greatest(cardinality(scopes), 1);
    PERFORM {schema}.lock_due(scopes);
    RETURN QUERY
    WITH heads AS MATERIALIZED (
        SELECT h.place, h.id, h.scope, h.ordering_key, h.due_at FROM unnest(scopes) AS s (id) CROSS JOIN LATERAL (
            SELECT d.ctid AS place, d.id, d.consumer AS scope, d.ordering_key, d.due_at FROM {schema}.dead_letters AS d
            WHERE d.consumer = s.id AND d.state = 1::int2 AND d.due_at <= now() AND (d.taken_at IS NULL OR d.taken_at < dead)
            ORDER BY d.consumer, d.state, d.due_at, d.id LIMIT each_max FOR NO KEY UPDATE SKIP LOCKED) AS h
    ), found AS (
        SELECT h.place, h.due_at, h.id AS head, 0::bigint AS step FROM heads AS h
        UNION ALL
        SELECT f.place, h.due_at, h.id, f.step FROM heads AS h CROSS JOIN LATERAL (
            SELECT d.ctid AS place, row_number() OVER (ORDER BY d.ordering_key, (d.taken_at IS NULL), d.id) AS step
            FROM {schema}.dead_letters AS d
            WHERE d.consumer = h.scope AND d.ordering_key >= h.ordering_key AND d.ordering_key <= h.ordering_key AND d.state = 2::int2
                AND (d.taken_at IS NULL OR d.taken_at < dead)
            ORDER BY d.ordering_key, (d.taken_at IS NULL), d.id
            LIMIT (SELECT (rows_max - count(*)) / greatest(count(*), 1) FROM heads)) AS f
    ), measured AS MATERIALIZED (
        SELECT f.place, f.step, f.due_at, f.head, d.taken_at IS NOT NULL AS was_taken,
            coalesce(sum(CASE WHEN d.payload IS NULL THEN 0 ELSE d.payload_bytes END) OVER before_it, 0) AS bytes_before
        FROM found AS f JOIN {schema}.dead_letters AS d ON d.ctid = f.place
        WINDOW before_it AS (ORDER BY f.step, f.due_at, f.head ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), taken AS (
        UPDATE {schema}.dead_letters AS d SET taken_at = clock_timestamp(), taken_by = run, taken_login = session_user
        FROM measured AS m WHERE d.ctid = m.place AND m.bytes_before < bytes_max
        RETURNING d.id, d.consumer, d.origin, d.idempotency_key, d.payload, d.has_payload, d.headers::text AS headers, d.message_id,
            d.message_type, d.record_key, d.ordering_key, CASE WHEN d.due_by IS NULL THEN d.attempts ELSE 0 END AS attempts,
            d.due_by IS NOT NULL AS replayed, m.was_taken, m.step, m.due_at, m.head
    )
    SELECT t.id, t.consumer, t.origin, t.idempotency_key, t.payload, t.has_payload, t.headers, t.message_id, t.message_type,
        t.record_key, t.ordering_key, t.attempts, t.replayed, t.was_taken
    FROM taken AS t ORDER BY t.step, t.due_at, t.head;
END
$idem$;

-- Begins the leases of these rows again, of those that the run still has.
CREATE FUNCTION {schema}.renew_due(ids bigint[], run int) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    UPDATE {schema}.dead_letters AS d SET taken_at = clock_timestamp() FROM unnest(ids) AS e (id)
    WHERE d.id = e.id AND d.taken_by = run AND d.taken_login = session_user;
END
$idem$;

-- Gives rows back that did not run.
CREATE FUNCTION {schema}.release_due(ids bigint[], run int) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    scopes int[];
    keys bytea[];
BEGIN
    PERFORM {schema}.lock_due(ARRAY(SELECT DISTINCT d.consumer FROM unnest(ids) AS e (id) JOIN {schema}.dead_letters AS d ON d.id = e.id
        WHERE d.state <> 0::int2 AND d.ordering_key IS NOT NULL));
    WITH released AS (
        UPDATE {schema}.dead_letters AS d SET taken_at = NULL, taken_by = NULL, taken_login = NULL,
            state = CASE WHEN d.ordering_key IS NULL THEN 1 ELSE 2 END
        FROM unnest(ids) AS e (id) WHERE d.id = e.id AND d.taken_by = run AND d.taken_login = session_user
        RETURNING d.consumer, d.ordering_key
    )
    SELECT array_agg(r.consumer), array_agg(r.ordering_key) FROM released AS r WHERE r.ordering_key IS NOT NULL INTO scopes, keys;
    PERFORM {schema}.lead_due(scopes, keys);
END
$idem$;

-- Ends rows, each with its outcome, lets the next row of each ordering key go, and returns how many it has ended. A failure counts
-- only where the run still has the row: another run may be about to handle it. A row that was handled is over whoever has it now. One that
-- waited for a later try is removed then, and is a dead letter where it failed for good. Where after is not negative the row waits again, for
-- so many microseconds, and those that the run took with it in its ordering key are given back.
CREATE FUNCTION {schema}.end_due(ids bigint[], outcomes text[], run int, afters bigint[], reasons text[], made bigint[], errors text[],
        fingerprints text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    scopes int[];
    keys bytea[];
    again_scopes int[];
    again_keys bytea[];
    ended bigint;
BEGIN
    PERFORM {schema}.lock_due(ARRAY(SELECT DISTINCT d.consumer FROM unnest(ids) AS e (id) JOIN {schema}.dead_letters AS d ON d.id = e.id
        WHERE d.state <> 0::int2 AND d.ordering_key IS NOT NULL));
    WITH gone AS (
        DELETE FROM {schema}.dead_letters AS d USING unnest(ids, outcomes) AS e (id, outcome)
        WHERE d.id = e.id AND d.state <> 0::int2 AND d.taken_login = session_user AND d.due_by IS NULL
            AND e.outcome IN ('processed', 'duplicate')
        RETURNING d.consumer, d.ordering_key
    ), over AS (
        UPDATE {schema}.dead_letters AS d SET taken_at = NULL, taken_by = NULL, taken_login = NULL,
            state = CASE WHEN e.after < 0 THEN 0 WHEN d.ordering_key IS NULL THEN 1 ELSE 2 END,
            due_at = CASE WHEN e.after >= 0 THEN clock_timestamp() + least(e.after, 129600000000)::float8 * interval '1 microsecond' END,
            due_by = CASE WHEN e.after < 0 THEN d.due_by END,
            replayed_at = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL THEN now() END,
            replay_outcome = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL THEN e.outcome END,
            reason = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL THEN d.reason ELSE e.reason END,
            error = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL THEN d.error ELSE e.error END,
            attempts = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL OR e.made = 0 THEN d.attempts ELSE e.made::int END,
            fingerprint = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL OR e.fingerprint = '' THEN d.fingerprint ELSE e.fingerprint END,
            last_at = CASE WHEN e.after < 0 AND d.due_by IS NOT NULL THEN d.last_at ELSE now() END
        FROM unnest(ids, outcomes, afters, reasons, made, errors, fingerprints)
            AS e (id, outcome, after, reason, made, error, fingerprint)
        WHERE d.id = e.id AND d.state <> 0::int2 AND d.taken_login = session_user
            AND (d.taken_by = run AND e.outcome NOT IN ('processed', 'duplicate')
                OR e.outcome IN ('processed', 'duplicate') AND d.due_by IS NOT NULL)
        RETURNING d.consumer, d.ordering_key, d.key_id, d.payload_hash, d.state = 0::int2 AND d.due_by IS NULL AS is_dead,
            d.state <> 0::int2 AS waits_again
    ), recounted AS (
        UPDATE {schema}.message_attempts AS a SET attempts = 0 FROM over AS o
        WHERE o.is_dead AND a.consumer = o.consumer AND a.key_id = o.key_id AND a.payload_hash = o.payload_hash
    ), all_of_them AS (
        SELECT g.consumer, g.ordering_key, false AS waits_again FROM gone AS g
        UNION ALL SELECT o.consumer, o.ordering_key, o.waits_again FROM over AS o
    )
    SELECT count(*), array_agg(o.consumer) FILTER (WHERE o.ordering_key IS NOT NULL),
        array_agg(o.ordering_key) FILTER (WHERE o.ordering_key IS NOT NULL),
        array_agg(o.consumer) FILTER (WHERE o.ordering_key IS NOT NULL AND o.waits_again),
        array_agg(o.ordering_key) FILTER (WHERE o.ordering_key IS NOT NULL AND o.waits_again)
    FROM all_of_them AS o INTO ended, scopes, keys, again_scopes, again_keys;
    UPDATE {schema}.dead_letters AS d SET taken_at = NULL, taken_by = NULL, taken_login = NULL
    FROM unnest(again_scopes, again_keys) AS k (scope, ordering_key)
    WHERE d.consumer = k.scope AND d.ordering_key >= k.ordering_key AND d.ordering_key <= k.ordering_key AND d.state = 2::int2
        AND (d.taken_at IS NULL) = false AND d.taken_by = run AND d.taken_login = session_user;
    PERFORM {schema}.lead_due(scopes, keys);
    PERFORM {schema}.unmark_waits(scopes);
    RETURN ended;
END
$idem$;

-- Which server this is, and which life of it: after a failover, a restore or a restart the text is another, and workers
-- forget what they knew committed. Some hosted servers forbid or lack one of these, which is then unknown. The timeline is
-- that of the write-ahead log, because the control file learns of a promotion only with the next checkpoint.
CREATE FUNCTION {schema}.server_identity() RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    cluster text;
    timeline text;
BEGIN
    BEGIN
        SELECT c.system_identifier::text INTO cluster FROM pg_control_system() AS c;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    RETURN format('cluster %s, timeline %s, up since %s', coalesce(cluster, 'unknown'), coalesce(timeline, 'unknown'),
        extract(epoch FROM pg_postmaster_start_time()));
END
$idem$;

-- Events out

-- Where events go, by name. A relay has a destination for itself as long as its lease runs, by the database's clock.
CREATE TABLE {schema}.outbox_destinations (
    id            int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        COLLATE "C" NOT NULL,
    -- How the ids of its events are written: another form of an id is another key to its receivers.
    id_form       text        COLLATE "C" NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    relayed_by    text        COLLATE "C",
    relayed_until timestamptz,
    -- The login of the last relay, by the server. No other one may note what became of its events.
    relayed_login text        COLLATE "C",
    -- When the lease last ran out before it was renewed or taken over. Events that could go by then, and have no outcome, may have
    -- been sent.
    relay_lost_at timestamptz,
    -- How long its receivers recognise a copy, as the last relay had it.
    receiver_keeps interval,
    -- What it takes, as the last relay knew: NULL where none has said it, or knows how large a message may be.
    kind          text        COLLATE "C",
    message_bytes_max bigint,
    is_structured boolean     NOT NULL DEFAULT false,
    paused_at     timestamptz,
    -- No pending event of it has a lower number, or will have one: where a look for the next ones begins. So it is among the numbers
    -- of this server and sequence; others say nothing about it.
    pending_from  bigint      NOT NULL DEFAULT 0,
    numbers_of    text        COLLATE "C",
    CONSTRAINT outbox_destinations_name UNIQUE (name),
    -- A lease without an end would never run out (S57).
    CONSTRAINT outbox_destinations_lease CHECK ((relayed_by IS NULL) = (relayed_until IS NULL))
) WITH (fillfactor = 50);

-- In the order of publication, but not of the commits: a lower number may be committed later. It stands apart from the table,
-- because a unit draws its numbers in the order of its events and inserts them in the order of their keys.
CREATE SEQUENCE {schema}.outbox_numbers AS bigint;

-- The events that were committed and that no destination has confirmed yet. A published one is deleted: no mark, which would
-- be a second version of each row and an entry more in each index.
CREATE TABLE {schema}.outbox (
    key_id        uuid        NOT NULL,
    number        bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- Since when it may go, or from when on it will; NULL where that is created_at.
    not_before    timestamptz,
    first_sent_at timestamptz,
    destination   int         NOT NULL,
    consumer      int         NOT NULL,
    attempts      int         NOT NULL DEFAULT 0,
    -- 0 pending, 1 waiting for not_before, 2 failed, 3 behind one of these in its ordering key.
    state         smallint    NOT NULL DEFAULT 0,
    event_key     text        COLLATE "C" NOT NULL,
    event_type    text        COLLATE "C",
    content_type  text        COLLATE "C",
    error         text        COLLATE "C",
    event_hash    bytea       NOT NULL,
    ordering_key  bytea,
    headers       json,
    payload       bytea       NOT NULL,
    -- An event is one by all three: one key may go to two destinations, and two consumers may send the same. The column that differs
    -- most comes first, so that a place in the index is found by one comparison a step.
    CONSTRAINT outbox_pkey PRIMARY KEY (key_id, destination, consumer),
    -- A worker gives the number. Far beyond those that are drawn it would end the sequence once that is set behind its rows (S57).
    CONSTRAINT outbox_number CHECK (number BETWEEN 1 AND 4611686018427387903),
    CONSTRAINT outbox_state CHECK (state BETWEEN 0 AND 3)
) WITH (
    -- As many rows are deleted as are inserted.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

ALTER SEQUENCE {schema}.outbox_numbers OWNED BY {schema}.outbox.number;

-- Since when a copy of an event may be with its receivers; NULL where it certainly was never sent. A relay that died has noted
-- nothing about the events in its hands. It took them once they might go; those marked as failed or behind since were judged then.
CREATE FUNCTION {schema}.first_sent(state smallint, noted timestamptz, may_go_from timestamptz, relay_lost_at timestamptz)
    RETURNS timestamptz LANGUAGE sql IMMUTABLE
    AS $idem$
    SELECT coalesce(noted, CASE WHEN state OPERATOR(pg_catalog.<=) 1::pg_catalog.int2
        AND may_go_from OPERATOR(pg_catalog.<=) relay_lost_at THEN may_go_from END)
$idem$;

-- The indexes that relays read.
CREATE INDEX idx_outbox_pending ON {schema}.outbox (destination, number) WHERE state = 0;

CREATE INDEX idx_outbox_due ON {schema}.outbox (destination, not_before) WHERE state = 1;

-- The few events that do not go at once: by number, and by ordering key.
CREATE INDEX idx_outbox_held ON {schema}.outbox (destination, number) WHERE state <> 0;

CREATE INDEX idx_outbox_blocking ON {schema}.outbox (destination, ordering_key, number) WHERE state IN (1, 2);

CREATE INDEX idx_outbox_behind ON {schema}.outbox (destination, ordering_key, number) WHERE state = 3;

-- The functions that follow find each event by the index that is meant for it, whatever the statistics of the moment say. Where
-- the table was analysed while nothing in it was alive, as is usual of an outbox, the planner expects one row at most of any
-- index: it may take the primary key, and read all of it for each event that it looks for. So each look asks for the order that
-- its own index alone has, and sorting is off. Two equal bounds stand for an equality, which would make the order worth nothing.

-- The next events of a destination that may go, and those before them that stand behind others in their ordering key: these
-- come without their payload, to be marked. It is a function, because a plan that is cached while the table is tiny reads all
-- of it, and goes on to do so while the table grows under it. Compiling its plan takes several times as long as running it,
-- and by the plan's cost the server would do so at each look.
CREATE FUNCTION {schema}.next_events(of_destination int, events_max bigint, bytes_max bigint)
    RETURNS TABLE (number bigint, is_behind boolean, tenant text, consumer_name text, derives_as text, event_key text,
        ordering_key bytea, event_type text, content_type text, headers text, payload bytea, created_at bigint, attempts int,
        first_sent_ago bigint)
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
DECLARE
    -- Looks at this many, so that those behind others are found by the thousand.
    looked_at CONSTANT bigint := greatest(events_max, 1000);
    -- Published events are met again at each look for as long as an old snapshot may see them, unless they are passed by.
    pending_from CONSTANT bigint := coalesce((SELECT d.pending_from FROM {schema}.outbox_destinations AS d
        WHERE d.id = of_destination), 0);
    relay_lost_at CONSTANT timestamptz := (SELECT d.relay_lost_at FROM {schema}.outbox_destinations AS d
        WHERE d.id = of_destination);
BEGIN
    RETURN QUERY
    WITH ready AS (
        (SELECT o.ctid AS place, o.number, o.ordering_key, octet_length(o.payload) + coalesce(octet_length(o.headers::text), 0) AS bytes
        FROM {schema}.outbox AS o WHERE o.destination = of_destination AND o.state = 0 AND o.number >= pending_from
        ORDER BY o.number LIMIT looked_at)
        UNION ALL
        (SELECT o.ctid, o.number, o.ordering_key, octet_length(o.payload) + coalesce(octet_length(o.headers::text), 0)
        FROM {schema}.outbox AS o WHERE o.destination = of_destination AND o.state = 1 AND o.not_before <= clock_timestamp()
        ORDER BY o.not_before LIMIT looked_at)
    ), oldest AS MATERIALIZED (
        SELECT * FROM ready ORDER BY number, place LIMIT looked_at
    ), judged AS MATERIALIZED (
        SELECT l.*, l.ordering_key IS NOT NULL AND (
            (SELECT b.number FROM {schema}.outbox AS b
            WHERE b.destination = of_destination AND b.ordering_key >= l.ordering_key AND b.ordering_key <= l.ordering_key
                AND b.state IN (1, 2) AND b.number < l.number AND b.number NOT IN (SELECT other.number FROM oldest AS other)
            ORDER BY b.ordering_key, b.number LIMIT 1) IS NOT NULL
            OR (SELECT b.number FROM {schema}.outbox AS b
            WHERE b.destination = of_destination AND b.ordering_key >= l.ordering_key AND b.ordering_key <= l.ordering_key
                AND b.state = 3 AND b.number < l.number
            ORDER BY b.ordering_key, b.number LIMIT 1) IS NOT NULL) AS is_behind
        FROM oldest AS l
    ), measured AS (
        SELECT j.*, count(*) FILTER (WHERE NOT j.is_behind) OVER up_to_it AS events,
            sum(CASE WHEN j.is_behind THEN 0 ELSE j.bytes END) OVER up_to_it AS bytes_so_far
        FROM judged AS j WINDOW up_to_it AS (ORDER BY j.number, j.place)
    )
    SELECT m.number, m.is_behind, coalesce(c.tenant, ''), coalesce(c.name, ''), coalesce(c.derives_as, c.name, ''), o.event_key,
        o.ordering_key, o.event_type, o.content_type, o.headers::text, CASE WHEN NOT m.is_behind THEN o.payload END,
        (extract(epoch FROM o.created_at) * 1000000)::bigint, o.attempts,
        (extract(epoch FROM clock_timestamp() - {schema}.first_sent(o.state, o.first_sent_at,
            coalesce(o.not_before, o.created_at), relay_lost_at)) * 1000000)::bigint
    FROM measured AS m JOIN {schema}.outbox AS o ON o.ctid = m.place
    LEFT JOIN {schema}.consumers AS c ON c.id = o.consumer
    WHERE m.is_behind OR m.events <= events_max AND (m.bytes_so_far <= bytes_max OR m.events = 1)
    ORDER BY m.number, m.place;
END
$idem$;

-- The events that wait for a destination, of all consumers or of those of this name: not counted to the end, and the oldest first.
-- Every relay asks for each destination every few seconds: without an index of its own a look at one that is empty would read all
-- the others.
CREATE FUNCTION {schema}.count_events(of_destination int, of_consumer text, OUT pending bigint, OUT waiting bigint, OUT failed bigint,
        OUT behind bigint, OUT oldest timestamptz, OUT first_sent timestamptz, OUT due timestamptz)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    consumers CONSTANT int[] := ARRAY(SELECT c.id FROM {schema}.consumers AS c WHERE c.name = of_consumer);
    its {schema}.outbox_destinations;
BEGIN
    SELECT d.* FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination INTO its;
    SELECT count(*) FILTER (WHERE o.state = 0), count(*) FILTER (WHERE o.state = 1), count(*) FILTER (WHERE o.state = 2),
        count(*) FILTER (WHERE o.state = 3), min(o.created_at) FILTER (WHERE o.state IN (0, 1)),
        min({schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), its.relay_lost_at)),
        min(coalesce(o.not_before, o.created_at)) FILTER (WHERE o.state = 0 OR o.state = 1 AND o.not_before <= clock_timestamp())
    FROM (
        (SELECT p.state, p.consumer, p.created_at, p.not_before, p.first_sent_at FROM {schema}.outbox AS p
            WHERE p.destination = of_destination AND p.state = 0 AND p.number >= its.pending_from ORDER BY p.number LIMIT 100000)
        UNION ALL
        (SELECT h.state, h.consumer, h.created_at, h.not_before, h.first_sent_at FROM {schema}.outbox AS h
            WHERE h.destination = of_destination AND h.state <> 0 ORDER BY h.number LIMIT 100000)
    ) AS o
    WHERE of_consumer IS NULL OR o.consumer = ANY (consumers)
    INTO pending, waiting, failed, behind, oldest, first_sent, due;
END
$idem$;

-- Statements that change events find their places first: a join with the numbers would be turned round while the statistics are
-- those of a tiny table, and then takes seconds for two thousand events among some ten thousand. They have the destination's row
-- locked, so that no event has moved when it is met again by its place.

-- Takes or renews a lease, with the rights of the table's owner: a worker changes a destination in this way only. The name of a relay is
-- no proof, so a lease is renewed by the login that has it, and a change of the login is a line of the trail.
CREATE FUNCTION {schema}.lease_destination(of_destination int, relay text, lease_for bigint, keeps bigint, takes text, bytes_max bigint,
        structured boolean)
    RETURNS TABLE (mine boolean, paused boolean, remaining bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
WITH leased AS (
    UPDATE {schema}.outbox_destinations AS d
    SET relayed_by = relay, relayed_until = now.at + lease_for::float8 * interval '1 microsecond', relayed_login = session_user,
        relay_lost_at = CASE WHEN d.numbers_of <> now.numbers_of THEN now.at
            WHEN d.relayed_by <> relay OR d.relayed_until <= now.at THEN least(d.relayed_until, now.at)
            ELSE d.relay_lost_at END,
        receiver_keeps = keeps::float8 * interval '1 microsecond',
        kind = takes, message_bytes_max = bytes_max, is_structured = structured,
        pending_from = CASE WHEN d.numbers_of <> now.numbers_of THEN 0 ELSE d.pending_from END,
        numbers_of = now.numbers_of
    FROM (SELECT clock_timestamp() AS at, concat(split_part({schema}.server_identity(), ', up since', 1),
        ', sequence ', to_regclass('{schema}.outbox_numbers')::oid) AS numbers_of) AS now, {schema}.outbox_destinations AS before
    WHERE d.id = of_destination AND before.id = d.id AND CASE WHEN d.paused_at IS NULL
        THEN d.relayed_by IS NULL OR d.relayed_by = relay AND d.relayed_login = session_user
            OR d.relayed_until <= now.at OR d.relayed_until > now.at + interval '2 minutes'
        ELSE d.relayed_by = relay AND d.relayed_login = session_user AND d.relayed_until > now.at END
    RETURNING d.name, d.paused_at, before.relayed_login AS login_before
), noted AS (
    INSERT INTO {schema}.audit (who, action, details)
    SELECT relay, 'relay', format('%s is relayed by the login %s, before by %s', l.name, session_user, l.login_before)
    FROM leased AS l WHERE l.login_before <> session_user
)
SELECT EXISTS (SELECT FROM leased WHERE paused_at IS NULL), d.paused_at IS NOT NULL,
    greatest(extract(epoch FROM d.relayed_until - clock_timestamp()) * 1000000, 0)::bigint
FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination
$idem$;

-- Ends the lease that this login's relay has.
CREATE FUNCTION {schema}.release_destination(of_destination int, relay text) RETURNS int
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
UPDATE {schema}.outbox_destinations SET relayed_by = NULL, relayed_until = NULL
WHERE id = of_destination AND relayed_by = relay AND relayed_login = session_user
RETURNING id
$idem$;

-- Whether the caller may note what became of a destination's events: the login that relayed there last, or a member of the owner. To any
-- other one the functions that ask this do nothing, and lock nothing: a relay whose lease went to another login sends a copy, as
-- after a crash.
CREATE FUNCTION {schema}.relays(of_destination int) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $idem$
SELECT pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (SELECT FROM {schema}.outbox_destinations AS d
    WHERE d.id = of_destination AND d.relayed_login = session_user)
$idem$;

-- Marks events that stand behind others in their ordering key, so that they are not met again. A call that lets followers go has the
-- destination's row locked too: otherwise an event that is marked while the one before it is removed would wait for ever.
CREATE FUNCTION {schema}.mark_behind(of_destination int, numbers bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    marked bigint;
    relay_lost_at timestamptz;
BEGIN
    IF NOT {schema}.relays(of_destination) THEN
        RETURN 0;
    END IF;
    SELECT d.relay_lost_at FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination INTO relay_lost_at FOR NO KEY UPDATE;
    UPDATE {schema}.outbox AS o SET state = 3,
        first_sent_at = {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), relay_lost_at)
    WHERE o.ctid = ANY (ARRAY(SELECT found.place FROM unnest(numbers) AS m (number) CROSS JOIN LATERAL (
            (SELECT p.ctid AS place FROM {schema}.outbox AS p
            WHERE p.destination = of_destination AND p.number >= m.number AND p.number <= m.number AND p.state = 0
            ORDER BY p.number LIMIT 1)
            UNION ALL
            (SELECT w.ctid FROM {schema}.outbox AS w
            WHERE w.destination = of_destination AND w.number >= m.number AND w.number <= m.number AND w.state <> 0 AND w.state < 2
            ORDER BY w.number LIMIT 1)) AS found)) AND (
        o.number > (SELECT b.number FROM {schema}.outbox AS b
            WHERE b.destination = of_destination AND b.ordering_key >= o.ordering_key AND b.ordering_key <= o.ordering_key
                AND b.state IN (1, 2) ORDER BY b.ordering_key, b.number LIMIT 1)
        OR o.number > (SELECT b.number FROM {schema}.outbox AS b
            WHERE b.destination = of_destination AND b.ordering_key >= o.ordering_key AND b.ordering_key <= o.ordering_key
                AND b.state = 3 ORDER BY b.ordering_key, b.number LIMIT 1));
    GET DIAGNOSTICS marked = ROW_COUNT;
    RETURN marked;
END
$idem$;

-- Lets events of these ordering keys go that wait behind no other any more, in their order. Some ten thousand in all and a
-- thousand of a key at most, and one of each at least: each of them that is published lets the next ones go.
CREATE FUNCTION {schema}.let_followers_go(of_destination int, keys bytea[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    of_keys CONSTANT bytea[] := ARRAY(SELECT DISTINCT k.ordering_key FROM unnest(keys) AS k (ordering_key)
        WHERE k.ordering_key IS NOT NULL);
    of_each_max CONSTANT bigint := least(1000, 1 + 10000 / greatest(1, cardinality(of_keys)));
    first bigint;
BEGIN
    WITH gone AS (
        UPDATE {schema}.outbox AS o SET state = 0, not_before = clock_timestamp()
        WHERE o.ctid = ANY (ARRAY(
            SELECT free.place FROM unnest(of_keys) AS k (ordering_key)
            CROSS JOIN LATERAL (
                SELECT f.ctid AS place FROM {schema}.outbox AS f
                WHERE f.destination = of_destination AND f.ordering_key >= k.ordering_key AND f.ordering_key <= k.ordering_key
                    AND f.state = 3 AND f.number < coalesce((SELECT b.number FROM {schema}.outbox AS b
                        WHERE b.destination = of_destination AND b.ordering_key >= k.ordering_key
                            AND b.ordering_key <= k.ordering_key AND b.state IN (1, 2)
                        ORDER BY b.ordering_key, b.number LIMIT 1), 9223372036854775807)
                ORDER BY f.ordering_key, f.number LIMIT of_each_max) AS free))
        RETURNING o.number
    )
    SELECT min(g.number) FROM gone AS g INTO first;
    -- In the same transaction, so that no look passes one of them by.
    UPDATE {schema}.outbox_destinations AS d SET pending_from = first
    WHERE d.id = of_destination AND d.pending_from > first;
END
$idem$;

-- Notes the ends of events: those that were published are removed, the others are an array of objects with the number,
-- the key, the state, after how many microseconds, the error, whether it may have been sent, whether it counts, and the error of the
-- note of this try that is taken back, because nothing was sent: as long as its wait lasts, no other relay has the event. A number names
-- one event only as long as nothing is lost: a server that takes over without the last commits draws those numbers again. So an
-- event is settled, retried and skipped by its key too, by which its receivers know it.
CREATE FUNCTION {schema}.settle_events(of_destination int, published bigint[], keys text[], others json) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    ordering_keys bytea[];
    more bytea[];
    found_numbers bigint[];
    settled bigint := 0;
    one record;
    place tid;
    relay_lost_at timestamptz;
BEGIN
    IF NOT {schema}.relays(of_destination) THEN
        RETURN 0;
    END IF;
    SELECT d.relay_lost_at FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination INTO relay_lost_at FOR NO KEY UPDATE;
    -- One by one, and first among the pending ones, so that each is found by an index, however many wait.
    FOR one IN SELECT s.* FROM json_to_recordset(others)
        AS s (number bigint, key text, state smallint, after bigint, error text, may_be_sent boolean, counted boolean,
            takes_back text)
    LOOP
        SELECT f.ctid FROM {schema}.outbox AS f
        WHERE f.destination = of_destination AND f.number >= one.number AND f.number <= one.number
            AND f.event_key = one.key AND f.state = 0
        ORDER BY f.number LIMIT 1 INTO place;
        IF NOT FOUND THEN
            SELECT f.ctid FROM {schema}.outbox AS f
            WHERE f.destination = of_destination AND f.number >= one.number AND f.number <= one.number
                AND f.event_key = one.key AND f.state <> 0
            ORDER BY f.number LIMIT 1 INTO place;
        END IF;
        UPDATE {schema}.outbox AS o SET state = one.state, attempts = o.attempts + one.counted::int, error = one.error,
            not_before = CASE WHEN one.state = 1 THEN clock_timestamp() + one.after * interval '1 microsecond' END,
            first_sent_at = CASE WHEN o.state = 1 AND o.error = one.takes_back AND o.not_before > clock_timestamp() THEN NULL
                ELSE coalesce(
                    {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), relay_lost_at),
                    CASE WHEN one.may_be_sent THEN clock_timestamp() END) END
        WHERE o.ctid = place;
        settled := settled + FOUND::int;
    END LOOP;
    -- Two events have one number where a worker's login forges one (S57). Both looks take the one with the first place, as
    -- next_events does, and an event that waits is not removed in the place of a pending one.
    WITH gone AS (
        DELETE FROM {schema}.outbox AS o
        WHERE o.ctid = ANY (ARRAY(SELECT found.place FROM unnest(published, keys) AS p (number, event_key) CROSS JOIN LATERAL (
            SELECT f.ctid AS place FROM {schema}.outbox AS f
            WHERE f.destination = of_destination AND f.number >= p.number AND f.number <= p.number
                AND f.event_key = p.event_key AND f.state = 0
            ORDER BY f.number LIMIT 1) AS found))
        RETURNING o.ordering_key, o.number
    )
    SELECT coalesce(array_agg(g.ordering_key), '{}'), coalesce(array_agg(g.number), '{}') FROM gone AS g INTO ordering_keys, found_numbers;
    IF cardinality(ordering_keys) < cardinality(published) THEN
        WITH gone AS (
            DELETE FROM {schema}.outbox AS o
            WHERE o.ctid = ANY (ARRAY(SELECT found.place FROM unnest(published, keys) AS p (number, event_key) CROSS JOIN LATERAL (
                SELECT f.ctid AS place FROM {schema}.outbox AS f
                WHERE f.destination = of_destination AND f.number >= p.number AND f.number <= p.number
                    AND f.event_key = p.event_key AND f.state <> 0
                ORDER BY f.number LIMIT 1) AS found
                WHERE p.number <> ALL (found_numbers)))
            RETURNING o.ordering_key
        )
        SELECT coalesce(array_agg(g.ordering_key), '{}') FROM gone AS g INTO more;
        ordering_keys := ordering_keys || more;
    END IF;
    PERFORM {schema}.let_followers_go(of_destination, ordering_keys);
    RETURN settled + cardinality(ordering_keys);
END
$idem$;

-- Lets waiting and failed events go again, their attempts counted anew. Where stale ones are meant, the time for which receivers know a
-- copy begins anew, or the relay would set them aside again; that one may be out there stays known. The destinations' rows are locked
-- first, as wherever an event becomes pending again.
CREATE FUNCTION {schema}.retry_events(numbers bigint[], keys text[], with_stale boolean) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    of_destination int;
    relay_lost_at timestamptz;
    first bigint;
    here bigint;
    retried bigint := 0;
BEGIN
    FOR of_destination IN SELECT d.id FROM {schema}.outbox_destinations AS d
        WHERE EXISTS (SELECT FROM unnest(numbers, keys) AS r (number, event_key) CROSS JOIN LATERAL (
            SELECT FROM {schema}.outbox AS f
            WHERE f.destination = d.id AND f.number >= r.number AND f.number <= r.number
                AND f.event_key = r.event_key AND f.state IN (1, 2)
            ORDER BY f.number LIMIT 1) AS found)
        ORDER BY d.id
    LOOP
        SELECT d.relay_lost_at FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination INTO relay_lost_at FOR NO KEY UPDATE;
        WITH gone AS (
            UPDATE {schema}.outbox AS o SET state = 0, attempts = 0,
                not_before = CASE WHEN with_stale THEN clock_timestamp() ELSE least(o.not_before, clock_timestamp()) END,
                first_sent_at = CASE WHEN NOT with_stale THEN o.first_sent_at
                    WHEN {schema}.first_sent(o.state, o.first_sent_at, coalesce(o.not_before, o.created_at), relay_lost_at) IS NOT NULL
                    THEN clock_timestamp() END,
                error = CASE WHEN NOT with_stale OR o.error NOT LIKE 'stale: %' THEN o.error END
            WHERE o.ctid = ANY (ARRAY(SELECT found.place FROM unnest(numbers, keys) AS r (number, event_key) CROSS JOIN LATERAL (
                SELECT f.ctid AS place FROM {schema}.outbox AS f
                WHERE f.destination = of_destination AND f.number >= r.number AND f.number <= r.number
                    AND f.event_key = r.event_key AND f.state IN (1, 2)
                ORDER BY f.number LIMIT 1) AS found))
            RETURNING o.number
        )
        SELECT count(*), min(g.number) FROM gone AS g INTO here, first;
        UPDATE {schema}.outbox_destinations AS d SET pending_from = first
        WHERE d.id = of_destination AND d.pending_from > first;
        retried := retried + here;
    END LOOP;
    RETURN retried;
END
$idem$;

-- Lets the looks at a destination begin further on, past the published events. A number that is drawn may be committed long
-- after higher ones, so this is done in two calls: the first answers the last number that was drawn, and which transactions
-- write to the outbox then; a transaction has the lock of a writer before it draws a number. When the second finds none of these any
-- more, all numbers that they drew are committed or never will be. Both answer the parameters of the next call. The answer of
-- another server says nothing about the numbers and transactions of this one, and the call is a first one.
CREATE FUNCTION {schema}.raise_pending(of_destination int, before text, drawn bigint, OUT writers text, OUT last bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    of_outbox CONSTANT oid := '{schema}.outbox'::regclass;
    server CONSTANT text := {schema}.server_identity();
    writing text[];
    begins bigint;
    first bigint;
BEGIN
    IF NOT {schema}.relays(of_destination) THEN
        RETURN;
    END IF;
    -- Before the writers, so that each transaction that has drawn it or a lower one is among them.
    SELECT s.last_value - (NOT s.is_called)::int FROM {schema}.outbox_numbers AS s INTO last;
    -- A prepared transaction has no process, and is known by another name than before.
    SELECT coalesce(array_agg(CASE WHEN l.pid IS NULL THEN 'prepared' ELSE l.virtualtransaction END), '{}')
    FROM pg_locks AS l
    WHERE l.locktype = 'relation' AND l.relation = of_outbox AND l.mode = 'RowExclusiveLock' AND l.granted
        AND l.database = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database())
    INTO writing;
    writers := server || E'\n' || array_to_string(writing, ',');
    PERFORM FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination FOR NO KEY UPDATE;
    SELECT d.pending_from FROM {schema}.outbox_destinations AS d WHERE d.id = of_destination INTO begins;
    IF begins > last + 1 THEN
        -- The numbers begin anew, as after a restore without its sequences.
        UPDATE {schema}.outbox_destinations AS d SET pending_from = 0 WHERE d.id = of_destination;
        RETURN;
    END IF;
    -- Under another isolation level the next query would see an older snapshot than that of the writers.
    IF before IS NULL OR split_part(before, E'\n', 1) <> server OR current_setting('transaction_isolation') <> 'read committed'
        OR writing && (string_to_array(split_part(before, E'\n', 2), ',') || 'prepared'::text) THEN
        RETURN;
    END IF;
    SELECT o.number FROM {schema}.outbox AS o
    WHERE o.destination = of_destination AND o.state = 0 AND o.number >= begins ORDER BY o.number LIMIT 1 INTO first;
    first := least(first, drawn + 1, last + 1);
    UPDATE {schema}.outbox_destinations AS d SET pending_from = first
    WHERE d.id = of_destination AND d.pending_from < first;
END
$idem$;

-- Removes events unsent, and lets those go that waited behind them.
CREATE FUNCTION {schema}.skip_events(numbers bigint[], keys text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    of_destination int;
    skipped bigint := 0;
BEGIN
    FOR of_destination IN SELECT d.id FROM {schema}.outbox_destinations AS d ORDER BY d.id LOOP
        skipped := skipped + {schema}.settle_events(of_destination, numbers, keys, '[]');
    END LOOP;
    RETURN skipped;
END
$idem$;

-- Events of programs in other languages
--
-- A login in idem_writer publishes in its own transaction by one call, under the rules that a plain outbox of the stores has in Rust: the
-- same identity, limits, headers and hash, so that one and the same event is no conflict whichever of the two wrote it.

-- The first numbers that these names may have: those of `Interned::numbers` in idem-core (J63).
CREATE FUNCTION {schema}.interned_numbers(domain text, names text[]) RETURNS TABLE (id int, place bigint)
    LANGUAGE sql IMMUTABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $idem$
SELECT ('x' || left(encode(sha256(n.prefix || int8send(p.place)), 'hex'), 8))::bit(32)::int & 1073741823 | 1073741824, p.place
FROM (SELECT convert_to(domain, 'UTF8') || string_agg(int8send(octet_length(u.name)) || convert_to(u.name, 'UTF8'), ''::bytea ORDER BY u.place)
    FROM unnest(names) WITH ORDINALITY AS u (name, place)) AS n (prefix)
CROSS JOIN generate_series(0::bigint, 63) AS p (place)
$idem$;

-- Declares a destination, where no consumer has. It is an operator's act, because a wrong name would have events wait for a relay that
-- never comes.
CREATE FUNCTION {schema}.declare_destination(name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 500 OR name ~ ('[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || ']') THEN
        RAISE EXCEPTION USING
            ERRCODE = '22023',
            MESSAGE = 'the name of a destination has 1 to 500 bytes without control characters';
    END IF;
    INSERT INTO {schema}.outbox_destinations (id, name, id_form) OVERRIDING SYSTEM VALUE
    SELECT free.id, declare_destination.name, 'uuid8' FROM {schema}.interned_numbers('idem:destination:v1', ARRAY[name]) AS free
    WHERE NOT EXISTS (SELECT FROM {schema}.outbox_destinations AS other WHERE other.id = free.id) ORDER BY free.place LIMIT 1
    ON CONFLICT ON CONSTRAINT outbox_destinations_name DO NOTHING;
END
$idem$;

-- Writes an event in the caller's transaction, and answers whether it is new: not where the same event waits under its key already. The
-- writer, by whose name its keys are its own, is the login or a role that the login is a member of.
CREATE FUNCTION {schema}.publish(destination text, key text, payload bytea, event_type text DEFAULT NULL, content_type text DEFAULT NULL,
        ordering_key text DEFAULT NULL, headers jsonb DEFAULT NULL, writer text DEFAULT session_user) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    controls CONSTANT text := '[' || chr(1) || '-' || chr(31) || chr(127) || '-' || chr(159) || ']';
    problem text;
    its {schema}.outbox_destinations;
    scope int;
    bound text;
    parts bytea[];
    beside bigint;
    hash bytea;
    found_key text;
    found_hash bytea;
BEGIN
    problem := CASE
        WHEN (octet_length(key) BETWEEN 1 AND 255 AND key !~ controls) IS NOT TRUE
            THEN format('the key %L: it has 1 to 255 bytes without control characters', left(key, 100))
        WHEN payload IS NULL THEN 'the payload is NULL, and can be empty'
        WHEN octet_length(event_type) NOT BETWEEN 1 AND 255 OR event_type ~ controls
            THEN format('the event type %L: it has 1 to 255 bytes without control characters', left(event_type, 100))
        WHEN octet_length(content_type) NOT BETWEEN 1 AND 255 OR content_type ~ controls
            THEN format('the content type %L: it has 1 to 255 bytes without control characters', left(content_type, 100))
        WHEN octet_length(ordering_key) > 1024
            THEN format('the ordering key of %s bytes: it has at most 1,024, use a digest of a longer one', octet_length(ordering_key))
        WHEN jsonb_typeof(headers) <> 'object' THEN 'the headers: they are a JSON object of names and texts'
        WHEN (octet_length(writer) BETWEEN 1 AND 100 AND writer !~ controls) IS NOT TRUE
            THEN format('the writer %L: it has 1 to 100 bytes without control characters', left(writer, 100))
    END;
    IF problem IS NULL AND jsonb_typeof(headers) = 'object' THEN
        SELECT CASE
            WHEN h.name !~ '^[!-~]{1,255}$' THEN format('the header %L: a name has 1 to 255 visible characters of ASCII', left(h.name, 100))
            WHEN lower(h.name) ~ '^(idem|ce_|ce-|cloudevents)' THEN format('the header %L: names of idem and of CloudEvents are set by idem', h.name)
            ELSE format('the value of header %L: it is text without control characters, or null', h.name)
        END
        FROM jsonb_each(headers) AS h (name, value)
        WHERE h.name !~ '^[!-~]{1,255}$' OR lower(h.name) ~ '^(idem|ce_|ce-|cloudevents)' OR jsonb_typeof(h.value) NOT IN ('string', 'null')
            OR jsonb_typeof(h.value) = 'string' AND h.value #>> '{}' ~ controls
        LIMIT 1 INTO problem;
        SELECT array_agg(p.part ORDER BY h.place, p.step) FILTER (WHERE h.name NOT IN ('traceparent', 'tracestate')), sum(octet_length(p.part))
        FROM jsonb_each_text(headers) WITH ORDINALITY AS h (name, value, place)
        CROSS JOIN LATERAL (VALUES (1, convert_to(h.name, 'UTF8')), (2, convert_to(h.value, 'UTF8'))) AS p (step, part)
        INTO parts, beside;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'idem refused the event: ' || problem;
    END IF;
    IF writer <> session_user AND NOT EXISTS (
        SELECT FROM pg_roles AS r WHERE r.rolname = writer AND pg_has_role(session_user, r.oid, 'MEMBER')) THEN
        RAISE EXCEPTION USING
            ERRCODE = '42501',
            MESSAGE = format('the login %I may not publish as %I', session_user, writer),
            HINT = 'The writer of an event is the login itself, or a role that the login is a member of: make such a role and grant it.';
    END IF;

    SELECT d.* FROM {schema}.outbox_destinations AS d WHERE d.name = publish.destination INTO its;
    IF its.id IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = '22023',
            MESSAGE = format('destination %L is not declared', left(destination, 500)),
            HINT = 'Check its name, or have an operator declare it: SELECT {schema}.declare_destination(''…'').';
    END IF;
    IF octet_length(payload) > least(1000000, CASE WHEN its.relayed_until > clock_timestamp() THEN its.message_bytes_max END) THEN
        RAISE EXCEPTION USING
            ERRCODE = '54000',
            MESSAGE = format('the payload has %s bytes, and destination %L takes %s', octet_length(payload), destination,
                least(1000000, CASE WHEN its.relayed_until > clock_timestamp() THEN its.message_bytes_max END));
    ELSIF coalesce(beside, 0) + coalesce(octet_length(ordering_key), 0) > 4194304 THEN
        RAISE EXCEPTION USING
            ERRCODE = '54000',
            MESSAGE = 'headers and ordering key have more than 4 MiB: put what is large into the payload';
    END IF;

    FOR round IN 1..2 LOOP
        SELECT c.id, c.handler FROM {schema}.consumers AS c WHERE c.name = writer AND c.tenant = '' INTO scope, bound;
        EXIT WHEN scope IS NOT NULL;
        INSERT INTO {schema}.consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention) OVERRIDING SYSTEM VALUE
        SELECT free.id, '', writer, '', 'a plain outbox', '', '', interval '24 hours'
        FROM {schema}.interned_numbers('idem:scope:v1', ARRAY[writer, '']) AS free
        WHERE NOT EXISTS (SELECT FROM {schema}.consumers AS other WHERE other.id = free.id) ORDER BY free.place LIMIT 1
        ON CONFLICT ON CONSTRAINT consumers_name_tenant DO NOTHING;
    END LOOP;
    IF bound IS DISTINCT FROM 'a plain outbox' THEN
        RAISE EXCEPTION USING
            ERRCODE = '22023',
            MESSAGE = format('%L is the name of a consumer, and no writer can have it', writer),
            HINT = 'Make a role for the writer, grant it to the login, and give its name as writer.';
    END IF;

    parts := ARRAY[convert_to(ordering_key, 'UTF8'), convert_to(event_type, 'UTF8'), convert_to(content_type, 'UTF8')]
        || coalesce(parts, '{}') || ARRAY[convert_to('idemcause', 'UTF8'), convert_to(key, 'UTF8'), payload];
    -- A part that is not there differs from one that is empty.
    SELECT sha256(string_agg(coalesce(int8send(octet_length(p.part)) || p.part, decode('ffffffffffffffff', 'hex')), ''::bytea
        ORDER BY p.place)) FROM unnest(parts) WITH ORDINALITY AS p (part, place) INTO hash;
    -- A relay may remove the one that was in the way before it is read.
    FOR round IN 1..3 LOOP
        INSERT INTO {schema}.outbox (number, destination, consumer, key_id, event_key, ordering_key, event_type, content_type, headers,
            payload, event_hash)
        SELECT nextval('{schema}.outbox_numbers'), its.id, scope, {schema}.key_id(publish.key), publish.key,
            convert_to(publish.ordering_key, 'UTF8'), publish.event_type, publish.content_type,
            (SELECT json_agg(json_build_array(h.name, h.value) ORDER BY h.place) FROM (
                SELECT e.name, e.value, e.place FROM jsonb_each_text(publish.headers) WITH ORDINALITY AS e (name, value, place)
                UNION ALL SELECT 'idemcause', publish.key, 9223372036854775807) AS h),
            publish.payload, hash
        ON CONFLICT ON CONSTRAINT outbox_pkey DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        SELECT o.event_key, o.event_hash FROM {schema}.outbox AS o
        WHERE o.key_id = {schema}.key_id(publish.key) AND o.destination = its.id AND o.consumer = scope INTO found_key, found_hash;
        IF found_key = key AND found_hash = hash THEN
            RETURN false;
        END IF;
        EXIT WHEN found_key IS NOT NULL;
    END LOOP;
    RAISE EXCEPTION USING
        ERRCODE = '23505',
        MESSAGE = format('an event with the key %L and another content waits for destination %L', key, destination),
        HINT = 'One occurrence has one key and one content. Roll the transaction back.';
END
$idem$;

-- Results

-- The answers of operations, apart from the records, so that a record stays a narrow row.
CREATE TABLE {schema}.processed_results (
    key_id       uuid        NOT NULL,
    stored_at    timestamptz NOT NULL DEFAULT now(),
    consumer     int         NOT NULL,
    -- 0 an answer, 1 an error, which is the operation's outcome all the same; 2 more where body and headers were erased.
    kind         smallint    NOT NULL,
    -- Of an HTTP response.
    status       smallint,
    -- The number of the key that body and headers are sealed with; NULL where they are not.
    sealed_with  smallint,
    content_type text        COLLATE "C",
    headers      json,
    body         bytea       NOT NULL,
    -- Until when the result is kept, where that is before its record goes; NULL where it goes with the record, and behind its end.
    answer_until timestamptz,
    -- The part of the result that stays behind its end, beside the status: 64 bytes at most.
    reference    text        COLLATE "C",
    CONSTRAINT processed_results_pkey PRIMARY KEY (consumer, key_id),
    -- As of records: an answer beyond the bounds could not be read (S61).
    CONSTRAINT processed_results_readable CHECK (answer_until BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59+00')
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE INDEX idx_processed_results_answer_until ON {schema}.processed_results (answer_until) WHERE answer_until IS NOT NULL;

-- An answer changes only together with its record: a unit replaces one that has outlived the record before. The owner erases, and blanks
-- those whose time is over.
CREATE FUNCTION {schema}.refuse_other_answer() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    IF pg_has_role(current_user, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'MEMBER')
        OR EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = OLD.consumer AND p.key_id = OLD.key_id
            AND p.xmin = pg_current_xact_id_if_assigned()::xid) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = '42501',
        MESSAGE = 'the answer of an operation that is done cannot be changed',
        HINT = 'An operator may erase it (idem erase), or forget its key (idem forget).';
END
$idem$;

CREATE TRIGGER refuse_other_answer BEFORE UPDATE ON {schema}.processed_results
    FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_other_answer();

-- Reads the answers of some keys, each by the primary key: a plan that is cached while the table is tiny would read all of it until
-- it is analysed.
CREATE FUNCTION {schema}.read_results(consumers int[], key_ids uuid[]) RETURNS SETOF {schema}.processed_results
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN QUERY
    SELECT found.*
    FROM unnest(consumers, key_ids) AS asked (consumer, key_id)
    CROSS JOIN LATERAL (
        SELECT r.* FROM {schema}.processed_results AS r
        WHERE r.consumer = asked.consumer AND r.key_id = asked.key_id LIMIT 1
    ) AS found;
END
$idem$;

-- Messages in

-- In the order of receiving, but not of the commits: a lower number may be committed later.
CREATE SEQUENCE {schema}.inbox_numbers AS bigint;

-- Messages that were acknowledged to their broker and are not processed yet. Nothing marks a row as processed: the record of its key
-- says so, and the row is deleted after the record's commit. A row is inserted and deleted, never updated.
CREATE TABLE {schema}.inbox (
    number          bigint      NOT NULL DEFAULT nextval('{schema}.inbox_numbers'),
    received_at     timestamptz NOT NULL DEFAULT now(),
    -- When the broker took the message in, where it says so.
    sent_at         timestamptz,
    -- The scope of the consumer's name without a tenant. Processing finds the tenant in the message.
    consumer        int         NOT NULL,
    slot            smallint    NOT NULL,
    origin          text        COLLATE "C" NOT NULL,
    -- For people and the view, as far as the receiver found it. Processing finds the key in the message.
    idempotency_key text        COLLATE "C",
    message_id      text        COLLATE "C",
    message_type    text        COLLATE "C",
    -- Why the message cannot be parsed, where its source found that.
    problem         text        COLLATE "C",
    record_key      bytea,
    ordering_key    bytea,
    -- json keeps repeated names and any escape.
    headers         json,
    payload         bytea,
    CONSTRAINT inbox_pkey PRIMARY KEY (consumer, slot, number),
    CONSTRAINT inbox_number CHECK (number BETWEEN 1 AND 4611686018427387903)
) WITH (
    fillfactor = 100,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

ALTER SEQUENCE {schema}.inbox_numbers OWNED BY {schema}.inbox.number;

-- The slots of each inbox. A row's slot is a hash of its ordering key, and one worker at a time has a slot by a lease, so that one worker
-- at a time reads the rows of a key.
CREATE TABLE {schema}.inbox_slots (
    consumer     int         NOT NULL,
    slot         smallint    NOT NULL,
    -- Raised by each new holder.
    epoch        bigint      NOT NULL DEFAULT 0,
    held_by      text        COLLATE "C",
    held_until   timestamptz,
    -- The login of the holder, by the server. No other one may remove the slot's rows.
    held_login   text        COLLATE "C",
    -- The member that waits for it, which has at least two slots fewer.
    wanted_by    text        COLLATE "C",
    wanted_until timestamptz,
    CONSTRAINT inbox_slots_pkey PRIMARY KEY (consumer, slot),
    CONSTRAINT inbox_slots_slot CHECK (slot BETWEEN 0 AND 1023),
    -- A lease without an end would never run out.
    CONSTRAINT inbox_slots_lease CHECK ((held_by IS NULL) = (held_until IS NULL))
) WITH (fillfactor = 50);

-- Makes the slots of an inbox, unless it has some, and returns how many it has: their number never changes, because the order of a key
-- rests on it.
CREATE FUNCTION {schema}.open_inbox(of_consumer int, slots_wanted int) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    -- Two receivers may start at once, with different settings.
    PERFORM FROM {schema}.consumers AS c WHERE c.id = of_consumer FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '23503', MESSAGE = 'the consumer of this inbox is not registered';
    END IF;
    IF NOT EXISTS (SELECT FROM {schema}.inbox_slots AS s WHERE s.consumer = of_consumer) THEN
        INSERT INTO {schema}.inbox_slots (consumer, slot) SELECT of_consumer, n FROM generate_series(0, slots_wanted - 1) AS n;
    END IF;
    RETURN (SELECT count(*) FROM {schema}.inbox_slots AS s WHERE s.consumer = of_consumer);
END
$idem$;

-- Renews the leases of a holder, and gives it free slots where it takes more. Slots that another member waits for are not free. A member
-- that has at least two slots fewer than another one waits for a slot of the one with the most: one at a time, so that slots move one by
-- one. With the rights of the table's owner: a worker changes a slot in this way only. The name of a holder proves nothing, so a lease is
-- renewed by the login that has it.
CREATE FUNCTION {schema}.hold_slots(of_consumer int, holder text, lease_for bigint, takes boolean)
    RETURNS TABLE (slot int, epoch bigint, is_wanted boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET jit = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
DECLARE
    moment timestamptz;
    until timestamptz;
    mine bigint;
BEGIN
    -- All members lock in this order.
    PERFORM FROM {schema}.inbox_slots AS s WHERE s.consumer = of_consumer ORDER BY s.slot FOR NO KEY UPDATE;
    moment := clock_timestamp();
    until := moment + lease_for::float8 * interval '1 microsecond';
    UPDATE {schema}.inbox_slots AS s SET held_until = until
    WHERE s.consumer = of_consumer AND s.held_by = holder AND s.held_login = session_user;
    IF takes THEN
        -- A lease that ends in more than two minutes was given by a clock that was ahead.
        UPDATE {schema}.inbox_slots AS s
        SET held_by = holder, held_until = until, held_login = session_user, epoch = s.epoch + 1, wanted_by = NULL, wanted_until = NULL
        WHERE s.consumer = of_consumer AND (s.held_until IS NULL OR s.held_until <= moment OR s.held_until > moment + interval '2 minutes')
            AND (s.held_by IS DISTINCT FROM holder OR s.held_login <> session_user)
            AND (s.wanted_until IS NULL OR s.wanted_until <= moment OR s.wanted_by = holder);
        SELECT count(*) FROM {schema}.inbox_slots AS s
        WHERE s.consumer = of_consumer AND s.held_by = holder AND s.held_login = session_user INTO mine;
        UPDATE {schema}.inbox_slots AS s SET wanted_by = holder, wanted_until = moment + interval '5 seconds'
        WHERE s.consumer = of_consumer AND s.slot = coalesce(
            (SELECT w.slot FROM {schema}.inbox_slots AS w
            WHERE w.consumer = of_consumer AND w.wanted_by = holder AND w.wanted_until > moment
                AND (SELECT count(*) FROM {schema}.inbox_slots AS o WHERE o.consumer = of_consumer AND o.held_by = w.held_by) > mine + 1
            ORDER BY w.slot LIMIT 1),
            (SELECT w.slot FROM {schema}.inbox_slots AS w
            JOIN (SELECT o.held_by, count(*) AS slots FROM {schema}.inbox_slots AS o
                WHERE o.consumer = of_consumer AND o.held_until > moment GROUP BY o.held_by) AS members ON members.held_by = w.held_by
            WHERE w.consumer = of_consumer AND members.slots > mine + 1 AND w.held_by <> holder
                AND (w.wanted_until IS NULL OR w.wanted_until <= moment)
            ORDER BY members.slots DESC, w.slot LIMIT 1));
    END IF;
    RETURN QUERY SELECT s.slot::int, s.epoch, coalesce(s.wanted_by <> holder AND s.wanted_until > moment, false)
    FROM {schema}.inbox_slots AS s
    WHERE s.consumer = of_consumer AND s.held_by = holder AND s.held_login = session_user ORDER BY s.slot;
END
$idem$;

-- Ends leases of this holder.
CREATE FUNCTION {schema}.release_slots(of_consumer int, holder text, slots bigint[], epochs bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    released bigint;
BEGIN
    PERFORM FROM {schema}.inbox_slots AS s WHERE s.consumer = of_consumer ORDER BY s.slot FOR NO KEY UPDATE;
    UPDATE {schema}.inbox_slots AS s SET held_by = NULL, held_until = NULL, held_login = NULL
    FROM unnest(slots, epochs) AS m (slot, epoch)
    WHERE s.consumer = of_consumer AND s.slot = m.slot AND s.epoch = m.epoch AND s.held_by = holder AND s.held_login = session_user;
    GET DIAGNOSTICS released = ROW_COUNT;
    RETURN released;
END
$idem$;

-- The next rows of slots, each behind a number of its own, without those of a slot whose epoch is over. It is a function for the reasons
-- of next_events: a plan that is cached while the table is tiny reads all of it, and compiling a plan takes longer than running it.
-- Payloads are fetched for the rows alone that are returned.
CREATE FUNCTION {schema}.next_messages(of_consumer int, slots bigint[], epochs bigint[], cursors bigint[], but bigint[], each_max bigint,
        rows_max bigint, bytes_max bigint)
    RETURNS TABLE (slot int, number bigint, received_at bigint, sent_at bigint, origin text, message_id text, message_type text,
        problem text, record_key bytea, ordering_key bytea, headers text, payload bytea)
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT s.slot, m.cursor FROM unnest(slots, epochs, cursors) AS m (slot, epoch, cursor)
        CROSS JOIN LATERAL (SELECT s.slot FROM {schema}.inbox_slots AS s
            WHERE s.consumer = of_consumer AND s.slot = m.slot::int2 AND s.epoch = m.epoch AND s.held_by IS NOT NULL) AS s
    ), found AS MATERIALIZED (
        SELECT f.place, f.number, f.bytes FROM held AS h CROSS JOIN LATERAL (
            SELECT i.ctid AS place, i.number, coalesce(octet_length(i.payload), 0) + coalesce(octet_length(i.headers::text), 0) AS bytes
            FROM {schema}.inbox AS i
            WHERE i.consumer = of_consumer AND i.slot = h.slot AND i.number > h.cursor AND i.number <> ALL (but)
            ORDER BY i.consumer, i.slot, i.number LIMIT each_max) AS f
    ), measured AS (
        SELECT f.place, f.number, count(*) OVER up_to_it AS rows, sum(f.bytes) OVER up_to_it AS bytes_so_far
        FROM found AS f WINDOW up_to_it AS (ORDER BY f.number, f.place)
    )
    SELECT i.slot::int, i.number, (extract(epoch FROM i.received_at) * 1000000)::bigint, (extract(epoch FROM i.sent_at) * 1000000)::bigint,
        i.origin, i.message_id, i.message_type, i.problem, i.record_key, i.ordering_key, i.headers::text, i.payload
    FROM measured AS m JOIN {schema}.inbox AS i ON i.ctid = m.place
    WHERE m.rows <= rows_max AND (m.bytes_so_far <= bytes_max OR m.rows = 1)
    ORDER BY m.number, m.place;
END
$idem$;

-- Removes processed rows of slots that the caller's login holds under these epochs, and returns which of the slots those are. A number
-- names a row only as long as nothing is lost: a server that takes over without the last commits draws those numbers again. So a row is
-- named by the time of its transaction too.
CREATE FUNCTION {schema}.remove_messages(of_consumer int, holder text, slots bigint[], epochs bigint[], numbers bigint[], times bigint[])
    RETURNS TABLE (slot int, epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
DECLARE
    held bigint[];
BEGIN
    SELECT array_agg(s.slot::bigint) FROM (SELECT DISTINCT u.slot, u.epoch FROM unnest(slots, epochs) AS u (slot, epoch)) AS m
    CROSS JOIN LATERAL (SELECT h.slot FROM {schema}.inbox_slots AS h
        WHERE h.consumer = of_consumer AND h.slot = m.slot::int2 AND h.epoch = m.epoch AND h.held_by = holder
            AND h.held_login = session_user) AS s
    INTO held;
    DELETE FROM {schema}.inbox AS i WHERE i.ctid = ANY (ARRAY(
        SELECT f.place FROM unnest(slots, numbers, times) AS m (slot, number, time) CROSS JOIN LATERAL (
            SELECT r.ctid AS place FROM {schema}.inbox AS r
            WHERE r.consumer = of_consumer AND r.slot = m.slot::int2 AND r.number = m.number
                AND (extract(epoch FROM r.received_at) * 1000000)::bigint = m.time
            ORDER BY r.consumer, r.slot, r.number LIMIT 1) AS f
        WHERE m.slot = ANY (held)));
    RETURN QUERY SELECT DISTINCT u.slot::int, u.epoch FROM unnest(slots, epochs) AS u (slot, epoch) WHERE u.slot = ANY (held);
END
$idem$;

-- How many rows wait, without these, counted up to a number, the oldest of them, and how many slots no worker holds.
CREATE FUNCTION {schema}.count_messages(of_consumer int, but bigint[], enough bigint, OUT messages bigint, OUT oldest timestamptz,
        OUT free_slots bigint)
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_sort = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
    SET search_path = pg_catalog, pg_temp
    AS $idem$
#variable_conflict use_column
BEGIN
    SELECT count(*) FROM (SELECT FROM {schema}.inbox AS i WHERE i.consumer = of_consumer AND i.number <> ALL (but)
        ORDER BY i.consumer, i.slot, i.number LIMIT enough) AS f INTO messages;
    SELECT min(f.received_at) FROM {schema}.inbox_slots AS s CROSS JOIN LATERAL (
        SELECT i.received_at FROM {schema}.inbox AS i WHERE i.consumer = of_consumer AND i.slot = s.slot AND i.number <> ALL (but)
        ORDER BY i.consumer, i.slot, i.number LIMIT 1) AS f
    WHERE s.consumer = of_consumer INTO oldest;
    SELECT count(*) FROM {schema}.inbox_slots AS s
    WHERE s.consumer = of_consumer AND (s.held_until IS NULL OR s.held_until <= clock_timestamp()) INTO free_slots;
END
$idem$;

-- A payload as JSON; NULL where it is none, or none that the type can hold.
CREATE FUNCTION {schema}.as_json(payload bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    RETURN convert_from(payload, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$idem$;

-- The messages of the consumers that have an inbox, for people and their queries: those that wait, and those that are dead letters. A
-- processed one is in it until its row is removed, shortly after its commit. The time of its record is that of its effect.
CREATE VIEW {schema}.inbox_messages AS
    SELECT {schema}.key_id(coalesce(i.idempotency_key, i.origin)) AS id, left(coalesce(nullif(c.bound_to, ''), c.name), 100)::varchar(100) AS source,
        left(coalesce(i.message_type, ''), 100)::varchar(100) AS event_type, {schema}.as_json(i.payload) AS payload, i.received_at,
        (SELECT p.processed_at FROM {schema}.consumers AS t JOIN {schema}.processed_messages AS p
            ON p.consumer = t.id AND p.key_id = {schema}.key_id(i.idempotency_key)
            WHERE t.name = c.name ORDER BY p.processed_at LIMIT 1) AS processed_at,
        NULL::text COLLATE "C" AS error,
        coalesce((SELECT max(a.attempts) FROM {schema}.consumers AS t JOIN {schema}.message_attempts AS a
            ON a.consumer = t.id AND a.key_id = {schema}.key_id(i.idempotency_key) WHERE t.name = c.name), 0) AS retry_count
    FROM {schema}.inbox AS i JOIN {schema}.consumers AS c ON c.id = i.consumer
    UNION ALL
    SELECT coalesce(d.key_id, {schema}.key_id(d.origin)), left(coalesce(nullif(c.bound_to, ''), c.name), 100)::varchar(100),
        left(coalesce(d.message_type, ''), 100)::varchar(100), {schema}.as_json(d.payload), d.first_at, NULL::timestamptz, d.error, d.attempts
    FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
    WHERE d.replayed_at IS NULL AND EXISTS (SELECT FROM {schema}.consumers AS t JOIN {schema}.inbox_slots AS s ON s.consumer = t.id
        WHERE t.name = c.name);

-- Cleanup

-- Removes rows of a table that have expired, and no others, with the rights of its owner: a login for cleanup may run it,
-- and delete nothing by itself. Rows without an expiry of their own are kept for as long as is asked, in microseconds, and
-- at least for as long as stands here.
--
-- The election is part of it: of all cleaners of a schema, one at a time gets the lock, which ends with the transaction,
-- because a pooler in transaction mode loses a session's locks. The statement is planned anew each time: a plan that was
-- made while the table was tiny would go on to sort the whole table. A row's place cannot be given to another row
-- meanwhile, since the statement's snapshot still sees it; a row that was changed since is looked at again, and stays if it
-- is needed once more.
--
-- The answers that are kept beside the records go with them. An answer whose own time is over goes before its record: a row stays, so that a
-- repeat learns that the operation was done, with which status, and where its outcome can be looked up.
--
-- Rows that a worker's login may lock are passed over while another session has them locked, and so are records whose answers are: they
-- stay for the next turn, and are counted with the sessions that are known to hold them (C17).
CREATE FUNCTION {schema}.remove_expired(kind text, rows_max bigint, kept_for bigint, OUT elected boolean, OUT removed bigint,
        OUT held bigint, OUT holders text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    at_least CONSTANT interval := CASE kind WHEN 'units' THEN interval '1 minute' WHEN 'audit' THEN interval '30 days'
        WHEN 'worker_runs' THEN interval '30 days' ELSE interval '1 day' END;
    expired CONSTANT text := CASE kind
        WHEN 'processed_messages' THEN 't.expires_at <= now()'
        WHEN 'units' THEN 't.at < $2'
        WHEN 'message_attempts' THEN 't.last_at < $2'
        -- What awaits a replay stays, however old.
        -- A worker writes last_at, but cannot change first_at.
        WHEN 'dead_letters' THEN 't.last_at < $2 AND t.first_at < $2 AND t.state = 0'
        WHEN 'audit' THEN 't.at < $2'
        WHEN 'worker_runs' THEN 't.started_at < $2'
        WHEN 'forgotten' THEN 't.forgotten_at < $2'
        WHEN 'processed_results' THEN 't.answer_until <= now()'
    END;
    -- The oldest first, where an index has their order.
    ordered CONSTANT text := CASE kind
        WHEN 'processed_messages' THEN 'ORDER BY t.expires_at'
        WHEN 'units' THEN 'ORDER BY t.at'
        WHEN 'dead_letters' THEN 'ORDER BY t.last_at'
        WHEN 'audit' THEN 'ORDER BY t.at'
        WHEN 'forgotten' THEN 'ORDER BY t.forgotten_at'
        ELSE ''
    END;
    -- Starts of workers that nothing names any more. A worker may run for as long as it likes, so its age alone says
    -- nothing: records and units name the run until they are gone. Where some consumer keeps its records for ever, or beyond
    -- the age of the run, nothing is looked for, because that would read all records.
    unneeded CONSTANT text := CASE kind WHEN 'worker_runs' THEN $sql$
        AND NOT EXISTS (SELECT FROM {schema}.consumers AS c WHERE c.retention IS NULL OR t.started_at > now() - c.retention)
        AND NOT EXISTS (SELECT FROM {schema}.units AS u WHERE u.run = t.id)
        AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.taken_by = t.id)
        AND NOT EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.processed_by = t.id)$sql$ ELSE '' END;
    -- The answers that are kept beside the records go with them. Where none are, no record pays for looking.
    with_answers boolean := false;
    may_be_held boolean := kind IN ('message_attempts', 'dead_letters', 'processed_results');
    -- The subqueries are plain ones, which are never turned into a read of the whole table.
    free text := '';
    before CONSTANT timestamptz := now() - greatest(kept_for * interval '1 microsecond', at_least);
BEGIN
    IF expired IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('nothing in a table %L expires', kind);
    END IF;
    removed := 0;
    held := 0;
    -- A row that every migrated schema has, and that the owner alone may lock: an advisory lock is open to any login (S51).
    PERFORM FROM {schema}.migrations WHERE version = 1 FOR UPDATE SKIP LOCKED;
    elected := FOUND;
    IF elected AND kind = 'processed_results' THEN
        -- 2 says that it was erased, 4 that its time was over.
        UPDATE {schema}.processed_results AS r SET kind = r.kind | 6::smallint, content_type = NULL, headers = NULL, body = '',
            sealed_with = NULL, answer_until = NULL
        WHERE r.ctid = ANY (ARRAY(SELECT t.ctid FROM {schema}.processed_results AS t WHERE t.answer_until <= now()
            ORDER BY t.answer_until LIMIT rows_max FOR UPDATE SKIP LOCKED)) AND r.answer_until <= now();
        GET DIAGNOSTICS removed = ROW_COUNT;
    ELSIF elected THEN
        IF kind = 'processed_messages' THEN
            with_answers := EXISTS (SELECT FROM {schema}.processed_results);
        END IF;
        IF with_answers THEN
            may_be_held := true;
            free := $sql$ AND (coalesce((SELECT false FROM {schema}.processed_results AS r
                WHERE r.consumer = t.consumer AND r.key_id = t.key_id LIMIT 1), true)
                OR EXISTS (SELECT FROM {schema}.processed_results AS r
                WHERE r.consumer = t.consumer AND r.key_id = t.key_id FOR UPDATE SKIP LOCKED))$sql$;
        END IF;
        EXECUTE format('WITH gone AS (DELETE FROM {schema}.%I AS t WHERE t.ctid = ANY (ARRAY('
            'SELECT t.ctid FROM {schema}.%1$I AS t WHERE %2$s%3$s %4$s LIMIT $1%7$s)) AND %2$s RETURNING %5$s)%6$s '
            'SELECT count(*) FROM gone', kind, expired, unneeded || free, ordered,
            CASE WHEN with_answers THEN 't.consumer, t.key_id' ELSE '1' END,
            CASE WHEN with_answers THEN ', answers AS (DELETE FROM {schema}.processed_results AS r USING gone '
                'WHERE r.consumer = gone.consumer AND r.key_id = gone.key_id)' ELSE '' END,
            CASE WHEN may_be_held AND NOT with_answers THEN ' FOR UPDATE SKIP LOCKED' ELSE '' END)
            INTO removed USING rows_max, before;
    END IF;
    IF elected AND may_be_held AND removed < rows_max THEN
        -- What is still there is held.
        EXECUTE format('SELECT count(*), (SELECT string_agg(DISTINCT format(''process %%s (login %%s, application %%L)'', a.pid, a.usename,'
            ' a.application_name), '', '') FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid'
            ' WHERE l.locktype = ''transactionid'' AND l.granted AND l.transactionid = ANY (array_agg(left_over.holder)))'
            ' FROM (SELECT %3$s AS holder FROM {schema}.%1$I AS t WHERE %2$s LIMIT $1) AS left_over', kind, expired,
            CASE WHEN with_answers THEN '(SELECT r.xmax FROM {schema}.processed_results AS r'
                ' WHERE r.consumer = t.consumer AND r.key_id = t.key_id LIMIT 1)' ELSE 't.xmax' END)
            INTO held, holders USING rows_max, before;
    END IF;
END
$idem$;

-- Sequences that are behind the rows of their columns, as after a logical replication or a restore of the rows alone: the next
-- value is one that a row has already. It is STABLE, so that it sees no row that came after its look at a sequence. The numbers of
-- consumers, payload hashes and destinations from 2^30 on are drawn from names. An index serves each look, and finds nothing as a rule.
CREATE FUNCTION {schema}.sequences_behind()
    RETURNS TABLE (table_name text, sequence_name text, next_value bigint, highest bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    rows_from text;
    drawn text;
BEGIN
    FOR table_name, drawn, rows_from IN SELECT * FROM (VALUES
        ('audit', 'id', '{schema}.audit AS t WHERE t.id >= $1'),
        ('dead_letters', 'id', '{schema}.dead_letters AS t WHERE t.id >= $1'),
        ('worker_runs', 'id', '{schema}.worker_runs AS t WHERE t.id >= $1'),
        ('consumers', 'id', '{schema}.consumers AS t WHERE t.id >= $1 AND t.id < 1073741824'),
        ('payload_hashes', 'id', '{schema}.payload_hashes AS t WHERE t.id >= $1 AND t.id < 1073741824'),
        ('outbox_destinations', 'id', '{schema}.outbox_destinations AS t WHERE t.id >= $1 AND t.id < 1073741824'),
        ('outbox', 'number', '{schema}.outbox_destinations AS d CROSS JOIN LATERAL ('
            'SELECT max(o.number) FROM {schema}.outbox AS o WHERE o.destination = d.id AND o.state = 0 AND o.number >= $1 UNION ALL '
            'SELECT max(o.number) FROM {schema}.outbox AS o WHERE o.destination = d.id AND o.state <> 0 AND o.number >= $1) AS t (number)'),
        ('inbox', 'number', '{schema}.inbox_slots AS s CROSS JOIN LATERAL ('
            'SELECT max(i.number) FROM {schema}.inbox AS i WHERE i.consumer = s.consumer AND i.slot = s.slot AND i.number >= $1) AS t (number)')
    ) AS asked LOOP
        sequence_name := pg_get_serial_sequence('{schema}.' || table_name, drawn);
        EXECUTE 'SELECT s.last_value + s.is_called::int FROM ' || sequence_name || ' AS s' INTO next_value;
        EXECUTE format('SELECT max(t.%I) FROM ', drawn) || rows_from INTO highest USING next_value;
        IF highest IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$idem$;

-- PUBLIC may execute functions by default.
REVOKE ALL ON FUNCTION {schema}.keep_payload(bigint, bytea), {schema}.lock_due(int[]), {schema}.lead_due(int[], bytea[]),
    {schema}.due_now(bigint[], text), {schema}.any_due(text, bigint), {schema}.take_due(text, int, bigint, bigint, bigint),
    {schema}.renew_due(bigint[], int), {schema}.release_due(bigint[], int), {schema}.remove_expired(text, bigint, bigint),
    {schema}.put_aside(int, text, uuid, text, bytea, int, text, int, text, bytea, bigint, boolean, json, text, text, bytea, bytea, bytea, text, bigint),
    {schema}.unmark_waits(int[]), {schema}.rows_ahead(int[], bytea[]), {schema}.let_next_go(),
    {schema}.end_due(bigint[], text[], int, bigint[], text[], bigint[], text[], text[]),
    {schema}.lease_destination(int, text, bigint, bigint, text, bigint, boolean), {schema}.release_destination(int, text),
    {schema}.relays(int), {schema}.refuse_other_answer(), {schema}.refuse_other_first_name(), {schema}.next_events(int, bigint, bigint), {schema}.mark_behind(int,
    bigint[]), {schema}.let_followers_go(int, bytea[]), {schema}.settle_events(int, bigint[], text[], json),
    {schema}.retry_events(bigint[], text[], boolean), {schema}.raise_pending(int, text, bigint), {schema}.skip_events(bigint[],
    text[]), {schema}.read_results(int[], uuid[]), {schema}.first_sent(smallint, timestamptz, timestamptz, timestamptz),
    {schema}.count_events(int, text), {schema}.open_inbox(int, int), {schema}.hold_slots(int, text, bigint, boolean),
    {schema}.release_slots(int, text, bigint[], bigint[]), {schema}.next_messages(int, bigint[], bigint[], bigint[], bigint[], bigint, bigint,
    bigint), {schema}.remove_messages(int, text, bigint[], bigint[], bigint[], bigint[]), {schema}.count_messages(int, bigint[], bigint),
    {schema}.as_json(bytea), {schema}.sequences_behind() FROM PUBLIC;
