-- What a count of attempts is of. Never edited once released: a change is a new migration.

-- Attempts
--
-- A count belongs to a message, which is a key and a payload: two payloads that fail under one key are two counts.

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

-- The table of one count a key stays for workers of the release before this one, which count there during a deploy. The
-- next release's migration drops it.
INSERT INTO {schema}.message_attempts (key_id, first_at, last_at, consumer, attempts, idempotency_key, payload_hash)
SELECT key_id, first_at, last_at, consumer, attempts, idempotency_key, payload_hash FROM {schema}.attempts;

-- Where the group roles are there already, their members go on before the script of the roles is run again. The table's owner
-- is that of the other tables, as whom cleanup and erasure run.
DO $idem$
BEGIN
    EXECUTE (SELECT pg_catalog.format('ALTER TABLE {schema}.message_attempts OWNER TO %I', r.rolname)
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_roles AS r ON r.oid = c.relowner
        WHERE c.oid = '{schema}.attempts'::pg_catalog.regclass);
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_worker') THEN
        GRANT SELECT, INSERT, UPDATE (attempts, last_at) ON {schema}.message_attempts TO idem_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_cleanup') THEN
        GRANT SELECT (last_at) ON {schema}.message_attempts TO idem_cleanup;
    END IF;
END
$idem$;

-- Cleanup
--
-- As before, with the new table, and what the release before still writes into the old one goes with it.
--
-- Removes rows of a table that have expired, and no others, with the rights of its owner: a login for cleanup may run it,
-- and delete nothing by itself. Rows without an expiry of their own are kept for as long as is asked, in microseconds, and
-- at least for as long as stands here.
--
-- The election is part of it: of all cleaners of a schema, one at a time gets the lock, which ends with the transaction,
-- because a pooler in transaction mode loses a session's locks. The statement is planned anew each time: a plan that was
-- made while the table was tiny would go on to sort the whole table. A row's place cannot be given to another row
-- meanwhile, since the statement's snapshot still sees it; a row that was changed since is looked at again, and stays if it
-- is needed once more.
CREATE OR REPLACE FUNCTION {schema}.remove_expired(kind text, rows_max bigint, kept_for bigint, OUT elected boolean, OUT removed bigint)
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
        WHEN 'message_attempts' THEN 't.last_at < $2'
        -- What awaits a replay stays, however old.
        WHEN 'dead_letters' THEN 't.last_at < $2 AND (t.replay_requested_at IS NULL OR t.replayed_at IS NOT NULL)'
        WHEN 'audit' THEN 't.at < $2'
        WHEN 'worker_runs' THEN 't.started_at < $2'
        WHEN 'forgotten' THEN 't.forgotten_at < $2'
    END;
    tables CONSTANT text[] := CASE kind WHEN 'message_attempts' THEN ARRAY['message_attempts', 'attempts'] ELSE ARRAY[kind] END;
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
    name text;
    gone bigint;
BEGIN
    IF expired IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('nothing in a table %L expires', kind);
    END IF;
    removed := 0;
    -- A row that every migrated schema has, and that the owner alone may lock: an advisory lock is open to any login (S51).
    PERFORM FROM {schema}.migrations WHERE version = 1 FOR UPDATE SKIP LOCKED;
    elected := FOUND;
    IF elected THEN
        FOREACH name IN ARRAY tables LOOP
            EXECUTE format('DELETE FROM {schema}.%I AS t WHERE t.ctid = ANY (ARRAY('
                'SELECT t.ctid FROM {schema}.%1$I AS t WHERE %2$s%3$s %4$s LIMIT $1)) AND %2$s', name, expired, unneeded, ordered)
                USING rows_max - removed, now() - greatest(kept_for * interval '1 microsecond', at_least);
            GET DIAGNOSTICS gone = ROW_COUNT;
            removed := removed + gone;
        END LOOP;
    END IF;
END
$idem$;
