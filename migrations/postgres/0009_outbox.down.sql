-- Reverts 0009. It refuses where that would lose what receivers and repeats are recognised by: an event that waits, because its
-- effect is committed; a former name, because the ids of events are derived from it; and an answer, because no release makes it anew.
-- A pause would be over by itself, and a form of ids that is not the default one is a decision of its destination.
LOCK TABLE {schema}.consumers, {schema}.outbox_destinations, {schema}.outbox, {schema}.processed_results IN ACCESS EXCLUSIVE MODE;

DO $idem$
DECLARE
    lost text;
    cure text;
BEGIN
    IF EXISTS (SELECT FROM {schema}.outbox) THEN
        lost := 'outbox holds events that were not published';
        cure := 'Let a relay publish them, or remove them with `idem outbox skip`';
    ELSIF EXISTS (SELECT FROM {schema}.consumers WHERE derives_as <> name) THEN
        lost := 'consumers holds the former names of renamed consumers, from which the ids of their events are derived';
        cure := 'Rename them back with `idem consumers rename`';
    ELSIF EXISTS (SELECT FROM {schema}.outbox_destinations WHERE paused_at IS NOT NULL) THEN
        lost := 'outbox_destinations holds the pauses of destinations';
        cure := 'End them with `idem outbox resume`';
    ELSIF EXISTS (SELECT FROM {schema}.outbox_destinations WHERE id_form <> 'uuid8') THEN
        lost := 'outbox_destinations holds forms of ids, by which receivers recognise copies';
    ELSIF EXISTS (SELECT FROM {schema}.processed_results) THEN
        lost := 'processed_results holds answers that repeats get';
        cure := 'Wait until cleanup has removed them with their records';
    END IF;
    IF lost IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.' || lost || ', so migration 9 is not taken back',
            HINT = coalesce(cure || ', and run this migration again; or leave', 'Leave')
                || ' the schema as it is: the release before runs on it.';
    END IF;
END
$idem$;

-- As 0004 made it.
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
    elected := pg_try_advisory_xact_lock(hashtextextended('idem:cleanup:{schema}', 0));
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

ALTER TABLE {schema}.consumers DROP COLUMN derives_as;
ALTER FUNCTION {schema}.read_records(int[], uuid[]) RESET plan_cache_mode;
DROP FUNCTION {schema}.read_results(int[], uuid[]);
DROP TABLE {schema}.processed_results;
DROP FUNCTION {schema}.skip_events(bigint[], text[]);
DROP FUNCTION {schema}.raise_pending(int, text, bigint);
DROP FUNCTION {schema}.retry_events(bigint[], text[], boolean);
DROP FUNCTION {schema}.settle_events(int, bigint[], text[], json);
DROP FUNCTION {schema}.let_followers_go(int, bytea[]);
DROP FUNCTION {schema}.mark_behind(int, bigint[]);
DROP FUNCTION {schema}.next_events(int, bigint, bigint);
DROP FUNCTION {schema}.count_events(int, text);
DROP FUNCTION {schema}.first_sent(smallint, timestamptz, timestamptz, timestamptz);
DROP TABLE {schema}.outbox;
DROP TABLE {schema}.outbox_destinations;
