-- What becomes of messages that do not go well. Never edited once released: a change is a new migration.

-- Dead letters
--
-- A row stands for one content: identity is a digest that core computes (with a key, of key, payload hash and reason;
-- without one, of the place, payload, headers, record key and type). So another message at an origin that is used again, as
-- Kafka does when a topic is created anew, is another row. Rows of older releases have none: NULLs differ from each other
-- in a unique index, so nothing is ever folded into such a row but by an older release.
ALTER TABLE {schema}.dead_letters
    ADD COLUMN identity         bytea,
    -- What it shares with those that failed alike, made of facts and no value: f1- and 16 hexadecimal digits.
    ADD COLUMN fingerprint      text        COLLATE "C",
    -- An operator accepted that a payload which is neither kept nor published is lost.
    ADD COLUMN loss_accepted_at timestamptz,
    ADD COLUMN loss_accepted_by text        COLLATE "C",
    DROP CONSTRAINT dead_letters_origin;

DROP INDEX {schema}.dead_letters_equal;

CREATE UNIQUE INDEX dead_letters_identity ON {schema}.dead_letters (consumer, identity);

-- Workers of the release before this one go on during a deploy. They write no identity, and fold by these two: without
-- them each retry of a publication would be another row. The next release's migration drops both.
CREATE UNIQUE INDEX dead_letters_origin ON {schema}.dead_letters (consumer, origin) WHERE identity IS NULL;
CREATE UNIQUE INDEX dead_letters_equal ON {schema}.dead_letters
    (consumer, key_id, COALESCE(payload_hash, ''::bytea), reason) WHERE key_id IS NOT NULL AND identity IS NULL;

-- What is known of one key, as people ask.
CREATE INDEX idx_dead_letters_key ON {schema}.dead_letters (consumer, key_id) WHERE key_id IS NOT NULL;

-- New columns come last, which lets the view be replaced and keep its owner and its rights.
CREATE OR REPLACE VIEW {schema}.dead_letters_view AS
    SELECT d.id, c.tenant, c.name AS consumer_name, d.origin, d.last_origin, d.idempotency_key, d.payload_hash,
           h.rule AS hash_rule, d.reason, d.attempts, d.error, d.payload_bytes, d.has_payload, d.message_id,
           d.message_type, d.copies, d.first_at, d.last_at, d.published_at, d.replay_requested_at, d.replay_taken_at,
           d.replayed_at, d.replay_outcome, d.fingerprint, d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
           d.loss_accepted_at, d.loss_accepted_by
    FROM {schema}.dead_letters AS d
    LEFT JOIN {schema}.consumers AS c ON c.id = d.consumer
    LEFT JOIN {schema}.payload_hashes AS h ON h.id = d.hash_id;

-- Gives a dead letter the payload that was over the limit when it was set aside, with the rights of the table's owner: a
-- worker may do this, and replace no payload.
CREATE FUNCTION {schema}.keep_payload(dead_letter bigint, content bytea) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
UPDATE {schema}.dead_letters SET payload = content
WHERE id = dead_letter AND payload IS NULL AND has_payload AND payload_bytes = octet_length(content) RETURNING id
$idem$;

REVOKE ALL ON FUNCTION {schema}.keep_payload(bigint, bytea) FROM PUBLIC;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_worker') THEN
        GRANT EXECUTE ON FUNCTION {schema}.keep_payload(bigint, bytea) TO idem_worker;
    END IF;
END
$idem$;

-- Rights
--
-- What can be taken over, forged or deleted by another role.

-- Reads the records of some keys, as before, with two differences. Its search_path is its own: without one, a role that may
-- create functions in a schema of the worker's search_path decided what `unnest` is. And what this very transaction has
-- inserted is not among the records: a claim that was made to deny its own rows would otherwise find them here, and take
-- new messages for duplicates of themselves. (After four thousand million transactions an old row may have the number of
-- this one: its claim is then repeated in another.)
CREATE OR REPLACE FUNCTION {schema}.read_records(consumers int[], key_ids uuid[])
    RETURNS SETOF {schema}.processed_messages
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
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

-- Whose login wrote a line of the trail, beside the name that its writer gives. It is empty for lines from before.
ALTER TABLE {schema}.audit ADD COLUMN login text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE {schema}.audit ALTER COLUMN login SET DEFAULT session_user;

CREATE OR REPLACE VIEW {schema}.audit_view AS
    SELECT a.id, a.at, a.who, a.action, c.tenant, c.name AS consumer_name, a.idempotency_key, a.details, a.login
    FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer;

-- Removes rows of a table that have expired, and no others, with the rights of its owner: a login for cleanup may run it,
-- and delete nothing by itself. Rows without an expiry of their own are kept for as long as is asked, in microseconds, and
-- at least for as long as stands here.
--
-- The election is part of it: of all cleaners of a schema, one at a time gets the lock, which ends with the transaction,
-- because a pooler in transaction mode loses a session's locks. The statement is planned anew each time: a plan that was
-- made while the table was tiny would go on to sort the whole table. A row's place cannot be given to another row
-- meanwhile, since the statement's snapshot still sees it; a row that was changed since is looked at again, and stays if it
-- is needed once more.
CREATE FUNCTION {schema}.remove_expired(kind text, rows_max bigint, kept_for bigint, OUT elected boolean, OUT removed bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
DECLARE
    at_least CONSTANT interval := CASE kind WHEN 'units' THEN interval '1 minute' WHEN 'audit' THEN interval '30 days'
        WHEN 'worker_runs' THEN interval '30 days' ELSE interval '1 day' END;
    expired CONSTANT text := CASE kind
        WHEN 'processed_messages' THEN 't.expires_at <= now()'
        WHEN 'units' THEN 't.at < $2'
        WHEN 'attempts' THEN 't.last_at < $2'
        -- What awaits a replay stays, however old.
        WHEN 'dead_letters' THEN 't.last_at < $2 AND (t.replay_requested_at IS NULL OR t.replayed_at IS NOT NULL)'
        WHEN 'audit' THEN 't.at < $2'
        WHEN 'worker_runs' THEN 't.started_at < $2'
        WHEN 'forgotten' THEN 't.forgotten_at < $2'
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
        AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.replay_taken_by = t.id)
        AND NOT EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.processed_by = t.id)$sql$ ELSE '' END;
BEGIN
    IF expired IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('nothing in a table %L expires', kind);
    END IF;
    removed := 0;
    -- A row that every migrated schema has, and that the owner alone may lock: an advisory lock is open to any login (S51).
    PERFORM FROM {schema}.migrations WHERE version = 1 FOR UPDATE SKIP LOCKED;
    elected := FOUND;
    IF elected THEN
        EXECUTE format('DELETE FROM {schema}.%I AS t WHERE t.ctid = ANY (ARRAY('
            'SELECT t.ctid FROM {schema}.%1$I AS t WHERE %2$s%3$s %4$s LIMIT $1)) AND %2$s', kind, expired, unneeded, ordered)
            USING rows_max, now() - greatest(kept_for * interval '1 microsecond', at_least);
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
END
$idem$;

-- Functions are everybody's by default. Where the group roles are there already, cleanup goes on before their script is run
-- again.
REVOKE ALL ON FUNCTION {schema}.remove_expired(text, bigint, bigint) FROM PUBLIC;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_cleanup') THEN
        GRANT EXECUTE ON FUNCTION {schema}.remove_expired(text, bigint, bigint) TO idem_cleanup;
    END IF;
END
$idem$;
