-- Takes back what 0004 made. One count a key is left: of several payloads that of the one with the most attempts, because
-- that one may be what kills a process; and what a worker of the release before has counted later.
INSERT INTO {schema}.attempts AS a (key_id, first_at, last_at, consumer, attempts, idempotency_key, payload_hash)
SELECT DISTINCT ON (consumer, key_id) key_id, first_at, last_at, consumer, attempts, idempotency_key, payload_hash
FROM {schema}.message_attempts ORDER BY consumer, key_id, attempts DESC, last_at DESC
ON CONFLICT (consumer, key_id) DO UPDATE SET first_at = excluded.first_at, last_at = excluded.last_at,
    attempts = excluded.attempts, payload_hash = excluded.payload_hash
WHERE a.last_at <= excluded.last_at;

DROP TABLE {schema}.message_attempts;

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
