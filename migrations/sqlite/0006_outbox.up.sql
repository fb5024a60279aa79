-- Messages out and answers kept. Never edited once released: a change is a new migration.

-- Where events go, by name. A relay has a destination for itself as long as its lease runs.
CREATE TABLE "{schema}_outbox_destinations" (
    id            INTEGER PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    id_form       TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    relayed_by    TEXT,
    relayed_until INTEGER,
    -- When the lease last ran out that another relay then took over. Events that could go by then, and have no outcome, may have
    -- been sent.
    relay_lost_at INTEGER,
    -- How long its receivers recognise a copy, as the last relay had it.
    receiver_keeps INTEGER,
    -- What it takes, as the last relay knew: NULL where none has said it, or knows how large a message may be.
    kind          TEXT,
    message_bytes_max INTEGER,
    is_structured INTEGER NOT NULL DEFAULT 0,
    paused_at     INTEGER
) STRICT;

-- The events that were committed and that no destination has confirmed yet; a published one is deleted. AUTOINCREMENT, so that
-- a number names one event for ever.
CREATE TABLE "{schema}_outbox" (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    destination   INTEGER NOT NULL,
    consumer      INTEGER NOT NULL,
    key_id        BLOB    NOT NULL,
    event_key     TEXT    NOT NULL,
    ordering_key  BLOB,
    event_type    TEXT,
    content_type  TEXT,
    headers       TEXT,
    payload       BLOB    NOT NULL,
    event_hash    BLOB    NOT NULL,
    -- 0 pending, 1 waiting for not_before, 2 failed, 3 behind one of these in its ordering key.
    state         INTEGER NOT NULL DEFAULT 0,
    attempts      INTEGER NOT NULL DEFAULT 0,
    -- Since when it may go, or from when on it will; NULL where that is created_at.
    not_before    INTEGER,
    first_sent_at INTEGER,
    error         TEXT,
    created_at    INTEGER NOT NULL,
    -- An event is one by all three: one key may go to two destinations, and two consumers may send the same.
    UNIQUE (destination, consumer, key_id)
) STRICT;

CREATE INDEX "{schema}_idx_outbox_pending" ON "{schema}_outbox" (destination, number) WHERE state = 0;
CREATE INDEX "{schema}_idx_outbox_due" ON "{schema}_outbox" (destination, not_before) WHERE state = 1;
CREATE INDEX "{schema}_idx_outbox_blocking" ON "{schema}_outbox" (destination, ordering_key, number) WHERE state IN (1, 2);
CREATE INDEX "{schema}_idx_outbox_behind" ON "{schema}_outbox" (destination, ordering_key, number) WHERE state = 3;

-- The answers of operations, apart from the records, so that a record stays a narrow row.
CREATE TABLE "{schema}_processed_results" (
    consumer     INTEGER NOT NULL,
    key_id       BLOB    NOT NULL,
    -- 0 an answer, 1 an error, which is the operation's outcome all the same; 2 more where body and headers were erased.
    kind         INTEGER NOT NULL,
    status       INTEGER,
    content_type TEXT,
    headers      TEXT,
    body         BLOB    NOT NULL,
    -- The number of the key that body and headers are sealed with; NULL where they are not.
    sealed_with  INTEGER,
    stored_at    INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_id)
) STRICT;

-- The name from which the ids of events and of calls are derived, where a consumer was renamed since.
ALTER TABLE "{schema}_consumers" ADD COLUMN derives_as TEXT;
