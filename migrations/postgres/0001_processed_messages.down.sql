-- Removes everything that 0001 made, but never a record: whoever drops records lets every redelivery run a second time.
-- The lock comes first, so that no worker inserts between the check and the drop.
LOCK TABLE {schema}.processed_messages IN ACCESS EXCLUSIVE MODE;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM {schema}.processed_messages) THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.processed_messages still holds records, so it is not dropped',
            DETAIL = 'Without its records, every message that a broker delivers again takes effect a second time.',
            HINT = 'Stop every worker, make sure that the brokers hold nothing that was processed, empty the table with TRUNCATE, and run this migration again.';
    END IF;
END
$idem$;

DROP VIEW {schema}.dead_letters_view;
DROP VIEW {schema}.audit_view;
DROP TABLE {schema}.controls;
DROP TABLE {schema}.audit;
DROP TABLE {schema}.dead_letters;
DROP TABLE {schema}.attempts;
DROP TABLE {schema}.worker_runs;
DROP TABLE {schema}.payload_hashes;
DROP TABLE {schema}.consumers;
DROP TABLE {schema}.units;
DROP FUNCTION {schema}.refuse_unsealed_commit();
DROP FUNCTION {schema}.read_records(int[], uuid[]);
DROP TABLE {schema}.processed_messages;
DROP FUNCTION {schema}.key_id(text);
