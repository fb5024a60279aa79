-- One cycle of idem's cleanup, for a role in idem_cleanup. One statement that commits after each step, so it must not
-- run inside of a transaction. With pg_cron, every hour:
--     SELECT cron.schedule('idem cleanup', '17 * * * *', $cron$ … this statement … $cron$);
DO $idem$
DECLARE
    removals text[] := ARRAY[
        $sql$ DELETE FROM {schema}.processed_messages WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.processed_messages WHERE expires_at <= now()
            ORDER BY expires_at LIMIT {rows_max})) AND expires_at <= now() $sql$,
        $sql$ DELETE FROM {schema}.units WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.units WHERE at < now() - interval '{units} s'
            ORDER BY at LIMIT {rows_max})) $sql$,
        $sql$ DELETE FROM {schema}.attempts WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.attempts WHERE last_at < now() - interval '{attempts} s'
            LIMIT {rows_max})) AND last_at < now() - interval '{attempts} s' $sql$,
        $sql$ DELETE FROM {schema}.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.dead_letters WHERE last_at < now() - interval '{dead_letters} s'
            AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL) ORDER BY last_at LIMIT {rows_max}))
            AND last_at < now() - interval '{dead_letters} s'
            AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL) $sql$,
        $sql$ DELETE FROM {schema}.audit WHERE id = ANY (ARRAY(
            SELECT id FROM {schema}.audit WHERE at < now() - interval '{audit} s'
            ORDER BY at LIMIT {rows_max})) $sql$];
    removal text;
    rows bigint;
    total bigint := 0;
BEGIN
    FOREACH removal IN ARRAY removals LOOP
        -- A thousand steps a table; what is left waits for the next cycle.
        FOR step IN 1..1000 LOOP
            IF NOT pg_try_advisory_xact_lock(hashtextextended('idem:cleanup:{schema}', 0)) THEN
                RAISE NOTICE 'another cleaner is at work';
                RETURN;
            END IF;
            EXECUTE removal;
            GET DIAGNOSTICS rows = ROW_COUNT;
            total := total + rows;
            -- Gives the lock back too.
            COMMIT;
            EXIT WHEN rows < {rows_max};
        END LOOP;
    END LOOP;
    INSERT INTO {schema}.audit (who, action, details)
        VALUES (format('script, role %s', current_user), 'cleanup', format('%s rows', total));
END
$idem$;
