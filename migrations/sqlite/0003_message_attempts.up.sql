-- A count of attempts belongs to a message, which is a key and a payload: two payloads that fail under one key are two counts.
-- Never edited once released: a change is a new migration.

CREATE TABLE "{schema}_message_attempts" (
    consumer        INTEGER NOT NULL,
    key_id          BLOB    NOT NULL,
    payload_hash    BLOB    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    first_at        INTEGER NOT NULL,
    last_at         INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_id, payload_hash)
) STRICT, WITHOUT ROWID;

-- The table of one count a key stays, empty, for a process of the release before this one, which counts there. The next
-- release's migration drops it.
INSERT INTO "{schema}_message_attempts" (consumer, key_id, payload_hash, idempotency_key, attempts, first_at, last_at)
SELECT consumer, key_id, payload_hash, idempotency_key, attempts, first_at, last_at FROM "{schema}_attempts";

DELETE FROM "{schema}_attempts";
