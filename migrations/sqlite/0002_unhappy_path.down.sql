-- Takes back what 0002 made, but no dead letter that the schema before it has no room for.

-- Dead letters
--
-- SQLite raises only from triggers and constraints, so a constraint's name carries the text.
CREATE TEMP TABLE "{schema}_refusal" (
    folded INTEGER NOT NULL
        CONSTRAINT "{schema}_dead_letters holds messages that the schema before this one takes for one: replay or drop all but one of each, and run this migration again"
        CHECK (folded = 0)
);
INSERT INTO "{schema}_refusal" SELECT
    EXISTS (SELECT 1 FROM "{schema}_dead_letters" GROUP BY consumer, origin HAVING count(*) > 1)
    OR EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE key_id IS NOT NULL
        GROUP BY consumer, key_id, ifnull(payload_hash, x''), reason HAVING count(*) > 1);
DROP TABLE "{schema}_refusal";

ALTER TABLE "{schema}_dead_letters" RENAME TO "{schema}_dead_letters_after";

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
    UNIQUE (consumer, origin)
) STRICT;

INSERT INTO "{schema}_dead_letters"
SELECT id, consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason, attempts, error, payload,
    payload_bytes, has_payload, headers, message_id, message_type, record_key, copies, first_at, last_at, published_at,
    replay_requested_at, replay_taken_at, replay_taken_by, replayed_at, replay_outcome
FROM "{schema}_dead_letters_after";

DELETE FROM sqlite_sequence WHERE name = '{schema}_dead_letters';
INSERT INTO sqlite_sequence (name, seq)
SELECT '{schema}_dead_letters', seq FROM sqlite_sequence WHERE name = '{schema}_dead_letters_after';

DROP TABLE "{schema}_dead_letters_after";

CREATE UNIQUE INDEX "{schema}_dead_letters_equal" ON "{schema}_dead_letters"
    (consumer, key_id, ifnull(payload_hash, x''), reason) WHERE key_id IS NOT NULL;
CREATE INDEX "{schema}_idx_dead_letters_last" ON "{schema}_dead_letters" (last_at);
CREATE INDEX "{schema}_idx_dead_letters_replay" ON "{schema}_dead_letters" (consumer, id)
    WHERE replay_requested_at IS NOT NULL AND replayed_at IS NULL;
