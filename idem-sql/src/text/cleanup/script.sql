-- One cycle of idem's cleanup, for a role in idem_cleanup. One statement that commits after each step, so it must not
-- run inside of a transaction. With pg_cron, every hour:
--     SELECT cron.schedule('idem cleanup', '17 * * * *', $cron$ … this statement … $cron$);
DO $idem$
DECLARE
    removals text[] := ARRAY[
{removals}];
    removal text;
    elected boolean;
    rows bigint;
    held bigint;
    holders text;
    -- What was removed since the last line of the trail.
    total bigint := 0;
    noted_at timestamptz := pg_catalog.clock_timestamp();
    cleaner text := pg_catalog.format('script, role %s', current_user);
BEGIN
    FOREACH removal IN ARRAY removals LOOP
        -- Rows that are left after this many steps wait for the next cycle.
        FOR step IN 1..{steps_max} LOOP
            EXECUTE removal INTO elected, rows, held, holders;
            IF held > 0 THEN
                RAISE WARNING '% expired rows are locked by others and stay for the next cycle: %', held, holders;
            END IF;
            total := total + coalesce(rows, 0);
            -- Ended between two steps, it leaves out a minute's rows at most.
            IF total > 0 AND (NOT elected OR pg_catalog.clock_timestamp() - noted_at >= interval '1 minute') THEN
                INSERT INTO {schema}.audit (who, action, details) VALUES (cleaner, 'cleanup-part', pg_catalog.format('%s rows', total));
                total := 0;
                noted_at := pg_catalog.clock_timestamp();
            END IF;
            -- Gives the lock of the cleaners back too.
            COMMIT;
            IF NOT elected THEN
                RAISE NOTICE 'another cleaner is at work';
                RETURN;
            END IF;
            EXIT WHEN rows < {rows_max};
        END LOOP;
    END LOOP;
    INSERT INTO {schema}.audit (who, action, details) VALUES (cleaner, 'cleanup', pg_catalog.format('%s rows', total));
END
$idem$;
