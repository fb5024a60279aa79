-- Drops the schema's tables and functions, but never what somebody still needs: without its records, every message that a broker delivers
-- again takes effect a second time. The locks come first, so that no worker inserts between the check and the drop.
LOCK TABLE {schema}.processed_messages, {schema}.forgotten, {schema}.outbox, {schema}.inbox, {schema}.dead_letters IN ACCESS EXCLUSIVE MODE;

DO $idem$
DECLARE
    held text;
    fix text;
BEGIN
    IF EXISTS (SELECT FROM {schema}.processed_messages) THEN
        held := 'processed_messages still holds records';
        fix := 'Stop every worker, make sure that the brokers hold nothing that was processed, and empty the table with TRUNCATE';
    ELSIF EXISTS (SELECT FROM {schema}.forgotten) THEN
        held := 'forgotten still holds records';
        fix := 'Take them back with idem forgotten restore, or empty the table with TRUNCATE';
    ELSIF EXISTS (SELECT FROM {schema}.outbox) THEN
        held := 'outbox holds events that were not published';
        fix := 'Let a relay publish them, or remove them with idem outbox skip';
    ELSIF EXISTS (SELECT FROM {schema}.inbox) THEN
        held := 'inbox holds messages that were acknowledged and not processed';
        fix := 'Let the workers of its consumer process them';
    ELSIF EXISTS (SELECT FROM {schema}.dead_letters WHERE replayed_at IS NULL) THEN
        held := 'dead_letters holds messages that were not handled';
        fix := 'Replay or drop them with idem dead-letters';
    END IF;
    IF held IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.' || held || ', so the schema is not dropped',
            HINT = fix || ', and run this migration again.';
    END IF;
END
$idem$;

DROP VIEW {schema}.inbox_messages;
DROP VIEW {schema}.dead_letters_view;
DROP VIEW {schema}.audit_view;
DROP FUNCTION {schema}.sequences_behind;
DROP FUNCTION {schema}.remove_expired;
DROP FUNCTION {schema}.as_json;
DROP FUNCTION {schema}.count_messages;
DROP FUNCTION {schema}.remove_messages;
DROP FUNCTION {schema}.next_messages;
DROP FUNCTION {schema}.release_slots;
DROP FUNCTION {schema}.hold_slots;
DROP FUNCTION {schema}.open_inbox;
DROP FUNCTION {schema}.read_results;
DROP FUNCTION {schema}.publish;
DROP FUNCTION {schema}.declare_destination;
DROP FUNCTION {schema}.interned_numbers;
DROP FUNCTION {schema}.skip_events;
DROP FUNCTION {schema}.raise_pending;
DROP FUNCTION {schema}.retry_events;
DROP FUNCTION {schema}.settle_events;
DROP FUNCTION {schema}.let_followers_go;
DROP FUNCTION {schema}.mark_behind;
DROP FUNCTION {schema}.relays;
DROP FUNCTION {schema}.release_destination;
DROP FUNCTION {schema}.lease_destination;
DROP FUNCTION {schema}.count_events;
DROP FUNCTION {schema}.next_events;
DROP FUNCTION {schema}.first_sent;
DROP FUNCTION {schema}.server_identity;
DROP FUNCTION {schema}.end_due;
DROP FUNCTION {schema}.put_aside;
DROP FUNCTION {schema}.release_due;
DROP FUNCTION {schema}.renew_due;
DROP FUNCTION {schema}.take_due;
DROP FUNCTION {schema}.any_due;
DROP FUNCTION {schema}.due_now;
DROP TRIGGER let_next_go ON {schema}.dead_letters;
DROP FUNCTION {schema}.let_next_go;
DROP FUNCTION {schema}.rows_ahead;
DROP FUNCTION {schema}.unmark_waits;
DROP FUNCTION {schema}.lead_due;
DROP FUNCTION {schema}.lock_due;
DROP FUNCTION {schema}.keep_payload;
DROP FUNCTION {schema}.read_records;
DROP FUNCTION {schema}.key_id;
DROP TABLE {schema}.processed_results;
DROP TABLE {schema}.inbox;
DROP TABLE {schema}.inbox_slots;
DROP TABLE {schema}.outbox;
DROP TABLE {schema}.outbox_destinations;
DROP TABLE {schema}.forgotten;
DROP TABLE {schema}.controls;
DROP TABLE {schema}.audit;
DROP TABLE {schema}.dead_letters;
DROP TABLE {schema}.message_attempts;
DROP TABLE {schema}.worker_runs;
DROP TABLE {schema}.payload_hashes;
DROP TABLE {schema}.consumers;
DROP TABLE {schema}.units;
DROP TABLE {schema}.processed_messages;
DROP FUNCTION {schema}.refuse_other_answer;
DROP FUNCTION {schema}.refuse_other_first_name;
DROP FUNCTION {schema}.refuse_unsealed_commit;
