-- What becomes of messages that do not go well. Never edited once released: a change is a new migration.

-- Dead letters
--
-- A row stands for one content: identity is a digest that core computes, so another message at an origin that is used again
-- is another row. Rows of older releases have none, and nothing is folded into them but by an older release. SQLite cannot
-- drop a table's own UNIQUE, so the table is made anew; ids that were given once are not given again.
ALTER TABLE "{schema}_dead_letters" RENAME TO "{schema}_dead_letters_before";

CREATE TABLE "{schema}_dead_letters" (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer            INTEGER NOT NULL,
    origin              TEXT    NOT NULL,
    last_origin         TEXT    NOT NULL,
    key_id              BLOB,
    idempotency_key     TEXT,
    payload_hash        BLOB,
    hash_id             INTEGER,
    reason              TEXT    NOT NULL,
    attempts            INTEGER NOT NULL,
    error               TEXT    NOT NULL,
    payload             BLOB,
    payload_bytes       INTEGER NOT NULL,
    has_payload         INTEGER NOT NULL CHECK (has_payload IN (0, 1)),
    headers             TEXT,
    message_id          TEXT,
    message_type        TEXT,
    record_key          BLOB,
    copies              INTEGER NOT NULL DEFAULT 1,
    first_at            INTEGER NOT NULL,
    last_at             INTEGER NOT NULL,
    published_at        INTEGER,
    replay_requested_at INTEGER,
    replay_taken_at     INTEGER,
    replay_taken_by     INTEGER,
    replayed_at         INTEGER,
    replay_outcome      TEXT,
    identity            BLOB,
    -- What it shares with those that failed alike, made of facts and no value: f1- and 16 hexadecimal digits.
    fingerprint         TEXT,
    -- An operator accepted that a payload which is neither kept nor published is lost.
    loss_accepted_at    INTEGER,
    loss_accepted_by    TEXT
) STRICT;

INSERT INTO "{schema}_dead_letters"
SELECT id, consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts, error, payload,
    payload_bytes, has_payload, headers, message_id, message_type, record_key, copies, first_at, last_at, published_at,
    replay_requested_at, replay_taken_at, replay_taken_by, replayed_at, replay_outcome, NULL, NULL, NULL, NULL
FROM "{schema}_dead_letters_before";

DELETE FROM sqlite_sequence WHERE name = '{schema}_dead_letters';
INSERT INTO sqlite_sequence (name, seq)
SELECT '{schema}_dead_letters', seq FROM sqlite_sequence WHERE name = '{schema}_dead_letters_before';

DROP TABLE "{schema}_dead_letters_before";

CREATE UNIQUE INDEX "{schema}_dead_letters_identity" ON "{schema}_dead_letters" (consumer, identity);
CREATE INDEX "{schema}_idx_dead_letters_key" ON "{schema}_dead_letters" (consumer, key_id) WHERE key_id IS NOT NULL;
CREATE INDEX "{schema}_idx_dead_letters_last" ON "{schema}_dead_letters" (last_at);
CREATE INDEX "{schema}_idx_dead_letters_replay" ON "{schema}_dead_letters" (consumer, id)
    WHERE replay_requested_at IS NOT NULL AND replayed_at IS NULL;
