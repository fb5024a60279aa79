-- Removes what 0002 made, but no record that could still be taken back.
LOCK TABLE {schema}.forgotten IN ACCESS EXCLUSIVE MODE;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM {schema}.forgotten) THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.forgotten still holds records, so it is not dropped',
            DETAIL = 'What was forgotten could not be taken back any more.',
            HINT = 'Take it back with idem forgotten restore, or empty the table with TRUNCATE, and run this migration again.';
    END IF;
END
$idem$;

DROP TABLE {schema}.forgotten;
