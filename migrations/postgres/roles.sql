-- The group roles of idem and what each may do (S8). Run it after every migration, in one transaction (psql -1), so that
-- no running worker meets the moment between revoke and grant, as a superuser or as a member of
-- idem_migrator that may create roles; running it again changes nothing. Then give your login roles one group each:
--     GRANT idem_worker TO orders_service;
-- Migrations of later releases run under SET ROLE idem_migrator, so that their tables have the owner of these.

DO $idem$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['idem_worker', 'idem_writer', 'idem_cleanup', 'idem_migrator', 'idem_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                -- Roles belong to the whole cluster: another database's script made it in the meantime.
                NULL;
            END;
        END IF;
    END LOOP;
END
$idem$;

-- No role has a right by default, and what an earlier run granted is taken back before it is granted again.
REVOKE ALL ON SCHEMA {schema} FROM PUBLIC, idem_worker, idem_writer, idem_cleanup, idem_auditor;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC, idem_worker, idem_writer, idem_cleanup, idem_auditor;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC, idem_worker, idem_writer, idem_cleanup, idem_auditor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC, idem_worker, idem_writer, idem_cleanup, idem_auditor;

-- ALTER and DROP belong to the owner alone, so the migrator has to own what it migrates.
ALTER SCHEMA {schema} OWNER TO idem_migrator;
ALTER TABLE {schema}.migrations OWNER TO idem_migrator;
ALTER TABLE {schema}.processed_messages OWNER TO idem_migrator;
ALTER TABLE {schema}.units OWNER TO idem_migrator;
ALTER TABLE {schema}.consumers OWNER TO idem_migrator;
ALTER TABLE {schema}.payload_hashes OWNER TO idem_migrator;
ALTER TABLE {schema}.worker_runs OWNER TO idem_migrator;
ALTER TABLE {schema}.message_attempts OWNER TO idem_migrator;
ALTER TABLE {schema}.dead_letters OWNER TO idem_migrator;
ALTER TABLE {schema}.audit OWNER TO idem_migrator;
ALTER TABLE {schema}.controls OWNER TO idem_migrator;
ALTER TABLE {schema}.forgotten OWNER TO idem_migrator;
ALTER TABLE {schema}.outbox_destinations OWNER TO idem_migrator;
ALTER TABLE {schema}.outbox OWNER TO idem_migrator;
ALTER TABLE {schema}.inbox OWNER TO idem_migrator;
ALTER TABLE {schema}.inbox_slots OWNER TO idem_migrator;
ALTER TABLE {schema}.processed_results OWNER TO idem_migrator;
ALTER VIEW {schema}.audit_view OWNER TO idem_migrator;
ALTER VIEW {schema}.dead_letters_view OWNER TO idem_migrator;
ALTER VIEW {schema}.inbox_messages OWNER TO idem_migrator;
ALTER FUNCTION {schema}.key_id(text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.read_records(int[], uuid[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.refuse_unsealed_commit() OWNER TO idem_migrator;
ALTER FUNCTION {schema}.server_identity() OWNER TO idem_migrator;
ALTER FUNCTION {schema}.remove_expired(text, bigint, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.keep_payload(bigint, bytea) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.lock_due(int[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.lead_due(int[], bytea[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.unmark_waits(int[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.rows_ahead(int[], bytea[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.let_next_go() OWNER TO idem_migrator;
ALTER FUNCTION {schema}.due_now(bigint[], text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.any_due(text, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.take_due(text, int, bigint, bigint, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.renew_due(bigint[], int) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.release_due(bigint[], int) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.put_aside(int, text, uuid, text, bytea, int, text, int, text, bytea, bigint, boolean, json, text, text, bytea, bytea, bytea, text, bigint)
    OWNER TO idem_migrator;
ALTER FUNCTION {schema}.end_due(bigint[], text[], int, bigint[], text[], bigint[], text[], text[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.lease_destination(int, text, bigint, bigint, text, bigint, boolean) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.release_destination(int, text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.relays(int) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.refuse_other_answer() OWNER TO idem_migrator;
ALTER FUNCTION {schema}.refuse_other_first_name() OWNER TO idem_migrator;
ALTER FUNCTION {schema}.next_events(int, bigint, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.first_sent(smallint, timestamptz, timestamptz, timestamptz) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.count_events(int, text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.mark_behind(int, bigint[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.let_followers_go(int, bytea[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.settle_events(int, bigint[], text[], json) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.retry_events(bigint[], text[], boolean) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.raise_pending(int, text, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.skip_events(bigint[], text[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.interned_numbers(text, text[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.declare_destination(text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.publish(text, text, bytea, text, text, text, jsonb, text) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.read_results(int[], uuid[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.open_inbox(int, int) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.hold_slots(int, text, bigint, boolean) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.release_slots(int, text, bigint[], bigint[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.next_messages(int, bigint[], bigint[], bigint[], bigint[], bigint, bigint, bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.remove_messages(int, text, bigint[], bigint[], bigint[], bigint[]) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.count_messages(int, bigint[], bigint) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.as_json(bytea) OWNER TO idem_migrator;
ALTER FUNCTION {schema}.sequences_behind() OWNER TO idem_migrator;

GRANT USAGE ON SCHEMA {schema} TO idem_worker, idem_writer, idem_cleanup, idem_auditor;

-- The worker. It can neither change nor delete a record: deleting one permits a second effect. No right to update is of a whole table, because
-- with one a login may also lock the table against everybody (LOCK TABLE); and no id that a sequence draws is a worker's to say.
GRANT SELECT, INSERT ON {schema}.units, {schema}.consumers, {schema}.payload_hashes TO idem_worker;
GRANT SELECT, INSERT (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash, alone)
    ON {schema}.processed_messages TO idem_worker;
GRANT SELECT, INSERT (host, process, version), UPDATE (consumer, seen_at, ended_at, standing) ON {schema}.worker_runs TO idem_worker;
-- Its lines of the trail carry its login and the server's time, which are not its to say.
GRANT SELECT, INSERT (who, action, consumer, idempotency_key, details) ON {schema}.audit TO idem_worker;
-- What a start says for the first time, and what it may change; what binds is only ever compared.
GRANT UPDATE (retention, redelivery_horizon, bound_to, handler, key_rules, hash_rules) ON {schema}.consumers TO idem_worker;
GRANT SELECT, INSERT, UPDATE (attempts, last_at) ON {schema}.message_attempts TO idem_worker;
GRANT SELECT, INSERT (consumer, state, by, reason, epoch), UPDATE (state, by, reason, at, epoch) ON {schema}.controls TO idem_worker;
-- What a dead letter is stays as it was inserted, its key and payload above all; how it went on is the worker's to say. Whether and when it
-- runs again, and who has it meanwhile, functions of the owner's write.
GRANT SELECT, INSERT (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts, error, payload,
    payload_bytes, has_payload, headers, message_id, message_type, record_key, ordering_key, identity, fingerprint)
    ON {schema}.dead_letters TO idem_worker;
GRANT UPDATE (last_origin, reason, attempts, error, fingerprint, copies, last_at, published_at, replayed_at,
    replay_outcome) ON {schema}.dead_letters TO idem_worker;
-- An event stays as it was inserted. How it went on, that it is removed when its destination has it, and who relays, functions of the
-- owner's do. Only members of the owner let events go again or remove them unsent.
GRANT SELECT, INSERT (number, destination, consumer, key_id, event_key, ordering_key, event_type, content_type, headers, payload, event_hash)
    ON {schema}.outbox TO idem_worker;
GRANT SELECT, INSERT (id, name, id_form) ON {schema}.outbox_destinations TO idem_worker;
GRANT USAGE ON SEQUENCE {schema}.outbox_numbers TO idem_worker;
-- A message in the inbox stays as it was inserted, and its number is the server's. Functions of the owner's lease slots and remove what is
-- processed.
GRANT SELECT, INSERT (consumer, slot, sent_at, origin, idempotency_key, message_id, message_type, problem, record_key, ordering_key, headers,
    payload) ON {schema}.inbox TO idem_worker;
GRANT SELECT ON {schema}.inbox_slots, {schema}.inbox_messages TO idem_worker;
GRANT USAGE ON SEQUENCE {schema}.inbox_numbers TO idem_worker;
-- An answer that outlived its record is replaced, and a trigger refuses to change any other.
GRANT SELECT, INSERT, UPDATE (kind, status, content_type, headers, body, sealed_with, stored_at, answer_until, reference)
    ON {schema}.processed_results TO idem_worker;
GRANT SELECT ON {schema}.migrations TO idem_worker;
GRANT EXECUTE ON FUNCTION {schema}.key_id(text), {schema}.read_records(int[], uuid[]), {schema}.server_identity(),
    {schema}.rows_ahead(int[], bytea[]), {schema}.keep_payload(bigint, bytea), {schema}.due_now(bigint[], text), {schema}.any_due(text, bigint),
    {schema}.take_due(text, int, bigint, bigint, bigint), {schema}.renew_due(bigint[], int), {schema}.release_due(bigint[], int),
    {schema}.put_aside(int, text, uuid, text, bytea, int, text, int, text, bytea, bigint, boolean, json, text, text, bytea, bytea, bytea, text, bigint),
    {schema}.end_due(bigint[], text[], int, bigint[], text[], bigint[], text[], text[]),
    {schema}.lease_destination(int, text, bigint, bigint, text, bigint, boolean),
    {schema}.release_destination(int, text), {schema}.next_events(int, bigint, bigint), {schema}.mark_behind(int, bigint[]),
    {schema}.settle_events(int, bigint[], text[], json), {schema}.raise_pending(int, text, bigint), {schema}.read_results(int[], uuid[]),
    {schema}.first_sent(smallint, timestamptz, timestamptz, timestamptz), {schema}.count_events(int, text), {schema}.sequences_behind(),
    {schema}.open_inbox(int, int), {schema}.hold_slots(int, text, bigint, boolean), {schema}.release_slots(int, text, bigint[], bigint[]),
    {schema}.next_messages(int, bigint[], bigint[], bigint[], bigint[], bigint, bigint, bigint),
    {schema}.remove_messages(int, text, bigint[], bigint[], bigint[], bigint[]), {schema}.count_messages(int, bigint[], bigint),
    {schema}.as_json(bytea) TO idem_worker;

-- The writer, a program in any language. It publishes events by a function of the owner's, and sees and changes nothing.
GRANT EXECUTE ON FUNCTION {schema}.publish(text, text, bytea, text, text, text, jsonb, text) TO idem_writer;

-- Cleanup. It may run what deletes the expired and nothing else, count it beforehand, and write that it did.
GRANT EXECUTE ON FUNCTION {schema}.remove_expired(text, bigint, bigint) TO idem_cleanup;
GRANT SELECT (expires_at, processed_by) ON {schema}.processed_messages TO idem_cleanup;
GRANT SELECT (last_at, state, taken_by) ON {schema}.dead_letters TO idem_cleanup;
GRANT SELECT (last_at) ON {schema}.message_attempts TO idem_cleanup;
GRANT SELECT (forgotten_at) ON {schema}.forgotten TO idem_cleanup;
GRANT SELECT (answer_until) ON {schema}.processed_results TO idem_cleanup;
GRANT SELECT (id, at, who, action) ON {schema}.audit TO idem_cleanup;
GRANT SELECT ON {schema}.units, {schema}.worker_runs, {schema}.consumers, {schema}.controls, {schema}.migrations
    TO idem_cleanup;
GRANT INSERT (who, action, details) ON {schema}.audit TO idem_cleanup;

-- The auditor. Only the views, which run with their owner's rights and show no payload.
GRANT SELECT ON {schema}.audit_view, {schema}.dead_letters_view TO idem_auditor;
GRANT EXECUTE ON FUNCTION {schema}.key_id(text) TO idem_auditor, idem_cleanup;
