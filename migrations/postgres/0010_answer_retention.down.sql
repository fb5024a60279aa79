-- Reverts 0010. It refuses while an answer has an end of its own or a reference: it would be kept for longer than was asked for,
-- or lose the place where its outcome can be looked up. Answers whose time was over stay without their bodies, and count as erased.
LOCK TABLE {schema}.processed_results IN ACCESS EXCLUSIVE MODE;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM {schema}.processed_results WHERE answer_until IS NOT NULL OR reference IS NOT NULL) THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.processed_results holds answers with an end or a reference of their own, so migration 10 is not taken back',
            HINT = 'Wait until cleanup has removed them with their records, and run this migration again; or leave the schema as it '
                'is: the release before runs on it.';
    END IF;
END
$idem$;

-- As 0009 made it.
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
    -- The answers that are kept beside the records go with them. Where none are, no record pays for looking.
    with_answers boolean := false;
BEGIN
    IF expired IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('nothing in a table %L expires', kind);
    END IF;
    removed := 0;
    -- A row that every migrated schema has, and that the owner alone may lock: an advisory lock is open to any login (S51).
    PERFORM FROM {schema}.migrations WHERE version = 1 FOR UPDATE SKIP LOCKED;
    elected := FOUND;
    IF elected THEN
        IF kind = 'processed_messages' THEN
            with_answers := EXISTS (SELECT FROM {schema}.processed_results);
        END IF;
        FOREACH name IN ARRAY tables LOOP
            EXECUTE format('WITH gone AS (DELETE FROM {schema}.%I AS t WHERE t.ctid = ANY (ARRAY('
                'SELECT t.ctid FROM {schema}.%1$I AS t WHERE %2$s%3$s %4$s LIMIT $1)) AND %2$s RETURNING %5$s)%6$s '
                'SELECT count(*) FROM gone', name, expired, unneeded, ordered,
                CASE WHEN with_answers THEN 't.consumer, t.key_id' ELSE '1' END,
                CASE WHEN with_answers THEN ', answers AS (DELETE FROM {schema}.processed_results AS r USING gone '
                    'WHERE r.consumer = gone.consumer AND r.key_id = gone.key_id)' ELSE '' END)
                INTO gone USING rows_max - removed, now() - greatest(kept_for * interval '1 microsecond', at_least);
            removed := removed + gone;
        END LOOP;
    END IF;
END
$idem$;

DROP FUNCTION {schema}.sequences_behind();
DROP INDEX {schema}.idx_processed_results_answer_until;
ALTER TABLE {schema}.processed_results DROP COLUMN reference;
ALTER TABLE {schema}.processed_results DROP COLUMN answer_until;
