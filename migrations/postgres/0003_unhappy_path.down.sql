-- Takes back what 0003 made, but no dead letter that the schema before it has no room for.

-- Dead letters
LOCK TABLE {schema}.dead_letters IN ACCESS EXCLUSIVE MODE;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM {schema}.dead_letters GROUP BY consumer, origin HAVING pg_catalog.count(*) > 1)
        OR EXISTS (SELECT FROM {schema}.dead_letters WHERE key_id IS NOT NULL
            GROUP BY consumer, key_id, COALESCE(payload_hash, ''::bytea), reason HAVING pg_catalog.count(*) > 1) THEN
        RAISE EXCEPTION USING
            ERRCODE = '55000',
            MESSAGE = '{schema}.dead_letters holds messages that the schema before this one takes for one',
            DETAIL = 'Different messages came from one origin, or equal ones were set aside by two releases; before, one row stood for each of them.',
            HINT = 'Replay or drop all but one of each with idem dead-letters, and run this migration again.';
    END IF;
END
$idem$;

-- A view cannot lose columns. Who read it is granted that again by the role script.
DROP VIEW {schema}.dead_letters_view;

DROP INDEX {schema}.idx_dead_letters_key;
DROP INDEX {schema}.dead_letters_equal;
DROP INDEX {schema}.dead_letters_origin;
DROP INDEX {schema}.dead_letters_identity;

ALTER TABLE {schema}.dead_letters
    DROP COLUMN loss_accepted_by,
    DROP COLUMN loss_accepted_at,
    DROP COLUMN fingerprint,
    DROP COLUMN identity,
    ADD CONSTRAINT dead_letters_origin UNIQUE (consumer, origin);

CREATE UNIQUE INDEX dead_letters_equal ON {schema}.dead_letters
    (consumer, key_id, COALESCE(payload_hash, ''::bytea), reason) WHERE key_id IS NOT NULL;

CREATE VIEW {schema}.dead_letters_view AS
    SELECT d.id, c.tenant, c.name AS consumer_name, d.origin, d.last_origin, d.idempotency_key, d.payload_hash,
           h.rule AS hash_rule, d.reason, d.attempts, d.error, d.payload_bytes, d.has_payload, d.message_id,
           d.message_type, d.copies, d.first_at, d.last_at, d.published_at, d.replay_requested_at, d.replay_taken_at,
           d.replayed_at, d.replay_outcome
    FROM {schema}.dead_letters AS d
    LEFT JOIN {schema}.consumers AS c ON c.id = d.consumer
    LEFT JOIN {schema}.payload_hashes AS h ON h.id = d.hash_id;
