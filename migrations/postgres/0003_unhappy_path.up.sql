-- What becomes of messages that do not go well. Never edited once released: a change is a new migration.

-- Dead letters
--
-- A row stands for one content: identity is a digest that core computes (with a key, of key, payload hash and reason;
-- without one, of the place, payload, headers, record key and type). So another message at an origin that is used again, as
-- Kafka does when a topic is created anew, is another row. Rows of older releases have none: NULLs differ from each other
-- in a unique index, so nothing is ever folded into such a row but by an older release.
ALTER TABLE {schema}.dead_letters
    ADD COLUMN identity         bytea,
    -- What it shares with those that failed alike, made of facts and no value: f1- and 16 hexadecimal digits.
    ADD COLUMN fingerprint      text        COLLATE "C",
    -- An operator accepted that a payload which is neither kept nor published is lost.
    ADD COLUMN loss_accepted_at timestamptz,
    ADD COLUMN loss_accepted_by text        COLLATE "C",
    DROP CONSTRAINT dead_letters_origin;

DROP INDEX {schema}.dead_letters_equal;

CREATE UNIQUE INDEX dead_letters_identity ON {schema}.dead_letters (consumer, identity);

-- Workers of the release before this one go on during a deploy. They write no identity, and fold by these two: without
-- them each retry of a publication would be another row. The next release's migration drops both.
CREATE UNIQUE INDEX dead_letters_origin ON {schema}.dead_letters (consumer, origin) WHERE identity IS NULL;
CREATE UNIQUE INDEX dead_letters_equal ON {schema}.dead_letters
    (consumer, key_id, COALESCE(payload_hash, ''::bytea), reason) WHERE key_id IS NOT NULL AND identity IS NULL;

-- What is known of one key, as people ask.
CREATE INDEX idx_dead_letters_key ON {schema}.dead_letters (consumer, key_id) WHERE key_id IS NOT NULL;

-- New columns come last, which lets the view be replaced and keep its owner and its rights.
CREATE OR REPLACE VIEW {schema}.dead_letters_view AS
    SELECT d.id, c.tenant, c.name AS consumer_name, d.origin, d.last_origin, d.idempotency_key, d.payload_hash,
           h.rule AS hash_rule, d.reason, d.attempts, d.error, d.payload_bytes, d.has_payload, d.message_id,
           d.message_type, d.copies, d.first_at, d.last_at, d.published_at, d.replay_requested_at, d.replay_taken_at,
           d.replayed_at, d.replay_outcome, d.fingerprint, d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept,
           d.loss_accepted_at, d.loss_accepted_by
    FROM {schema}.dead_letters AS d
    LEFT JOIN {schema}.consumers AS c ON c.id = d.consumer
    LEFT JOIN {schema}.payload_hashes AS h ON h.id = d.hash_id;
