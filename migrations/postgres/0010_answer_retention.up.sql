-- Answers may be kept for a shorter time than the records of their keys; and sequences are compared with their rows. Never edited once released: a change is a new migration.

-- Until when the answer is kept, where that is before its record goes; NULL where it goes with the record, and behind its end.
ALTER TABLE {schema}.processed_results ADD COLUMN answer_until timestamptz;
-- The part of the answer that stays behind its end, beside the status: 64 bytes at most.
ALTER TABLE {schema}.processed_results ADD COLUMN reference text COLLATE "C";
CREATE INDEX idx_processed_results_answer_until ON {schema}.processed_results (answer_until) WHERE answer_until IS NOT NULL;

-- As 0009 made it, and answers go before their records where their time is over: a row stays, so that a repeat learns that the
-- operation was done, with which status, and where its outcome can be looked up.
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
        -- A worker writes last_at, but cannot change first_at.
        WHEN 'dead_letters' THEN 't.last_at < $2 AND t.first_at < $2 AND (t.replay_requested_at IS NULL OR t.replayed_at IS NOT NULL)'
        WHEN 'audit' THEN 't.at < $2'
        WHEN 'worker_runs' THEN 't.started_at < $2'
        WHEN 'forgotten' THEN 't.forgotten_at < $2'
        WHEN 'processed_results' THEN 't.answer_until <= now()'
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
    IF elected AND kind = 'processed_results' THEN
        -- 2 says to releases that know no more that it was erased, which is the same to them.
        UPDATE {schema}.processed_results AS r SET kind = r.kind | 6::smallint, content_type = NULL, headers = NULL, body = '',
            sealed_with = NULL, answer_until = NULL
        WHERE r.ctid = ANY (ARRAY(SELECT t.ctid FROM {schema}.processed_results AS t WHERE t.answer_until <= now()
            ORDER BY t.answer_until LIMIT rows_max)) AND r.answer_until <= now();
        GET DIAGNOSTICS removed = ROW_COUNT;
    ELSIF elected THEN
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
            'SELECT max(o.number) FROM {schema}.outbox AS o WHERE o.destination = d.id AND o.state <> 0 AND o.number >= $1) AS t (number)')
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

REVOKE ALL ON FUNCTION {schema}.sequences_behind() FROM PUBLIC;

-- Where the group roles are there already, workers and cleanup go on before their script is run again.
DO $idem$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_worker') THEN
        GRANT EXECUTE ON FUNCTION {schema}.sequences_behind() TO idem_worker;
        GRANT UPDATE (answer_until, reference) ON {schema}.processed_results TO idem_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_cleanup') THEN
        GRANT SELECT (answer_until) ON {schema}.processed_results TO idem_cleanup;
    END IF;
END
$idem$;
