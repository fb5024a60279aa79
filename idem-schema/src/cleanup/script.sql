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
    total bigint := 0;
BEGIN
    FOREACH removal IN ARRAY removals LOOP
        -- Rows that are left after this many steps wait for the next cycle.
        FOR step IN 1..{steps_max} LOOP
            EXECUTE removal INTO elected, rows;
            -- Gives the lock of the cleaners back too.
            COMMIT;
            IF NOT elected THEN
                RAISE NOTICE 'another cleaner is at work';
                RETURN;
            END IF;
            total := total + rows;
            EXIT WHEN rows < {rows_max};
        END LOOP;
    END LOOP;
    INSERT INTO {schema}.audit (who, action, details)
        VALUES (pg_catalog.format('script, role %s', current_user), 'cleanup', pg_catalog.format('%s rows', total));
END
$idem$;
