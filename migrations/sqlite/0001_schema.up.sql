-- The schema for SQLite 3.37 and later. Runs in one transaction.
-- {schema} stands for the plain name: SQLite has no schemas, so it is the prefix of every table and index.
-- Instants are microseconds since the Unix epoch by the clock of the process; the largest integer means for ever.
-- Text is compared as bytes, which is SQLite's default. Until 0.1.0 is tagged, every change is made here. After that, a change is a new
-- migration.

-- One row a processed key, inserted by the claim and never updated. It keeps its rowid: random keys then touch only the
-- narrow tree of the primary key, while rows are appended. Without it 80,000 messages wrote 1.9 GB instead of 0.8.
CREATE TABLE "{schema}_processed_messages" (
    consumer        INTEGER NOT NULL,
    key_id          BLOB    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    payload_hash    BLOB    NOT NULL,
    hash_id         INTEGER NOT NULL,
    processed_at    INTEGER NOT NULL,
    processed_by    INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_id),
    CHECK (length(payload_hash) = 32)
) STRICT;

CREATE INDEX "{schema}_idx_processed_messages_expires" ON "{schema}_processed_messages" (expires_at);

-- One row a unit of work that claimed something. The seal needs no trigger here: the store refuses an unsealed commit
-- in SQLite's own commit hook.
CREATE TABLE "{schema}_units" (
    run  INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    at   INTEGER NOT NULL
) STRICT;

CREATE INDEX "{schema}_idx_units_at" ON "{schema}_units" (at);

-- Who consumes, and what its name was bound to by its first start. AUTOINCREMENT, here and below: an id that was given
-- once must never mean something else.
CREATE TABLE "{schema}_consumers" (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant           TEXT    NOT NULL DEFAULT '',
    name             TEXT    NOT NULL,
    bound_to         TEXT    NOT NULL,
    handler          TEXT    NOT NULL,
    key_rules        TEXT    NOT NULL,
    hash_rules       TEXT    NOT NULL,
    -- Microseconds; NULL keeps records for ever.
    retention        INTEGER,
    first_started_at INTEGER NOT NULL,
    -- For how many microseconds the broker may deliver again, as the consumer's last start learned.
    redelivery_horizon INTEGER,
    -- The name from which the ids of events and of calls are derived, where the consumer was renamed since.
    derives_as       TEXT,
    UNIQUE (tenant, name)
) STRICT;

CREATE TABLE "{schema}_payload_hashes" (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    rule TEXT    NOT NULL UNIQUE
) STRICT;

CREATE TABLE "{schema}_worker_runs" (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    host       TEXT    NOT NULL,
    process    INTEGER NOT NULL,
    version    TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    consumer   INTEGER,
    seen_at    INTEGER,
    ended_at   INTEGER,
    standing   TEXT    NOT NULL DEFAULT '[]'
) STRICT;
CREATE INDEX "{schema}_idx_worker_runs_consumer" ON "{schema}_worker_runs" (consumer, id);

-- A count of attempts belongs to a message, which is a key and a payload: two payloads that fail under one key are two counts.
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

-- Messages that will not run again by themselves. A malformed message may have no key. The payload is NULL when the
-- message had none (has_payload is 0) or when it was over the limit (has_payload is 1). Headers are a JSON object.
--
-- A row stands for one content: identity is a digest that core computes, so another message at an origin that is used again
-- is another row.
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
    -- 0 it is dead, and an operator decides; 1 it runs at due_at; 2 it runs behind another row of its ordering key.
    state               INTEGER NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 2)),
    due_at              INTEGER,
    -- The operator who asked for the last replay. NULL in states 1 and 2: it waits for a later try.
    due_by              TEXT,
    -- The lease of a row that runs.
    taken_at            INTEGER,
    taken_by            INTEGER,
    replayed_at         INTEGER,
    replay_outcome      TEXT,
    ordering_key        BLOB,
    identity            BLOB,
    -- What it shares with those that failed alike, made of facts and no value: f1- and 16 hexadecimal digits.
    fingerprint         TEXT,
    -- An operator accepted that a payload which is neither kept nor published is lost.
    loss_accepted_at    INTEGER,
    loss_accepted_by    TEXT,
    CHECK ((state = 0) = (due_at IS NULL)),
    CHECK ((taken_at IS NULL) = (taken_by IS NULL) AND (taken_at IS NULL OR state <> 0))
) STRICT;

CREATE UNIQUE INDEX "{schema}_dead_letters_identity" ON "{schema}_dead_letters" (consumer, identity);
CREATE INDEX "{schema}_idx_dead_letters_key" ON "{schema}_dead_letters" (consumer, key_id) WHERE key_id IS NOT NULL;
CREATE INDEX "{schema}_idx_dead_letters_last" ON "{schema}_dead_letters" (last_at);
CREATE INDEX "{schema}_idx_dead_letters_open" ON "{schema}_dead_letters" (consumer)
    WHERE state = 0 AND (replayed_at IS NULL OR substr(replay_outcome, 1, 6) = 'failed');
CREATE INDEX "{schema}_idx_dead_letters_due" ON "{schema}_dead_letters" (consumer, state, due_at, id) WHERE state <> 0;
-- The first row of an ordering key is its head, as on PostgreSQL.
CREATE INDEX "{schema}_idx_dead_letters_sequence" ON "{schema}_dead_letters" (consumer, ordering_key, taken_at IS NULL, id)
    WHERE state <> 0 AND ordering_key IS NOT NULL;

-- A row that is removed lets the next of its ordering key go.
CREATE TRIGGER "{schema}_let_next_go" AFTER DELETE ON "{schema}_dead_letters" WHEN OLD.state <> 0 AND OLD.ordering_key IS NOT NULL BEGIN
    UPDATE "{schema}_dead_letters" SET state = 1 WHERE state = 2 AND id = (
        SELECT f.id FROM "{schema}_dead_letters" AS f WHERE f.consumer = OLD.consumer AND f.ordering_key = OLD.ordering_key
            AND f.state <> 0 AND f.ordering_key IS NOT NULL ORDER BY f.taken_at IS NULL, f.id LIMIT 1);
END;

CREATE TABLE "{schema}_audit" (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    at              INTEGER NOT NULL,
    who             TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    consumer        INTEGER,
    idempotency_key TEXT,
    details         TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX "{schema}_idx_audit_at" ON "{schema}_audit" (at);

CREATE TABLE "{schema}_controls" (
    consumer INTEGER PRIMARY KEY,
    state    TEXT    NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'halted')),
    "by"     TEXT    NOT NULL DEFAULT '',
    reason   TEXT    NOT NULL DEFAULT '',
    at       INTEGER NOT NULL,
    epoch    INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Records that an operator forgot: they wait here, out of the way of every claim, until cleanup takes them or the operator
-- takes it back.
CREATE TABLE "{schema}_forgotten" (
    -- One act of forgetting, by which it is taken back.
    batch           INTEGER NOT NULL,
    consumer        INTEGER NOT NULL,
    key_id          BLOB    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    payload_hash    BLOB    NOT NULL,
    hash_id         INTEGER NOT NULL,
    processed_at    INTEGER NOT NULL,
    processed_by    INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    forgotten_at    INTEGER NOT NULL,
    PRIMARY KEY (batch, consumer, key_id)
) STRICT;

CREATE INDEX "{schema}_idx_forgotten_at" ON "{schema}_forgotten" (forgotten_at);

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
    -- Until when the result is kept, where that is before its record goes; NULL where it goes with the record, and behind its end.
    answer_until INTEGER,
    -- The part of the result that stays behind its end, beside the status: 64 bytes at most.
    reference    TEXT,
    PRIMARY KEY (consumer, key_id)
) STRICT;

CREATE INDEX "{schema}_idx_processed_results_answer_until" ON "{schema}_processed_results" (answer_until)
    WHERE answer_until IS NOT NULL;

-- Messages that were acknowledged to their broker and are not processed yet. Nothing marks a row as processed: the record of its key
-- says so, and the row is deleted after the record's commit. AUTOINCREMENT, so that a number names one message forever.
CREATE TABLE "{schema}_inbox" (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The scope of the consumer's name without a tenant. Processing finds the tenant in the message.
    consumer        INTEGER NOT NULL,
    slot            INTEGER NOT NULL,
    received_at     INTEGER NOT NULL,
    -- When the broker took the message in, where it says so.
    sent_at         INTEGER,
    origin          TEXT    NOT NULL,
    -- For people and the view, as far as the receiver found it. Processing finds the key in the message.
    key_id          BLOB,
    idempotency_key TEXT,
    message_id      TEXT,
    message_type    TEXT,
    -- Why the message cannot be parsed, where its source found that.
    problem         TEXT,
    record_key      BLOB,
    ordering_key    BLOB,
    headers         TEXT,
    payload         BLOB
) STRICT;

CREATE INDEX "{schema}_idx_inbox_consumer" ON "{schema}_inbox" (consumer);

-- The slots of each inbox. A row's slot is a hash of its ordering key, and one worker at a time has a slot by a lease.
CREATE TABLE "{schema}_inbox_slots" (
    consumer     INTEGER NOT NULL,
    slot         INTEGER NOT NULL,
    -- Raised by each new holder.
    epoch        INTEGER NOT NULL DEFAULT 0,
    held_by      TEXT,
    held_until   INTEGER,
    -- The member that waits for it, which has at least two slots fewer.
    wanted_by    TEXT,
    wanted_until INTEGER,
    PRIMARY KEY (consumer, slot)
) STRICT;

-- The messages of the consumers that have an inbox, for people: those that wait, and those that are dead letters.
CREATE VIEW "{schema}_inbox_messages" AS
    SELECT i.key_id AS id, coalesce(nullif(c.bound_to, ''), c.name) AS source, ifnull(i.message_type, '') AS event_type,
        iif(json_valid(CAST(i.payload AS TEXT)), json(CAST(i.payload AS TEXT)), NULL) AS payload, i.received_at,
        (SELECT min(p.processed_at) FROM "{schema}_consumers" AS t JOIN "{schema}_processed_messages" AS p
            ON p.consumer = t.id AND p.key_id = i.key_id WHERE t.name = c.name) AS processed_at,
        NULL AS error,
        ifnull((SELECT max(a.attempts) FROM "{schema}_consumers" AS t JOIN "{schema}_message_attempts" AS a
            ON a.consumer = t.id AND a.key_id = i.key_id WHERE t.name = c.name), 0) AS retry_count
    FROM "{schema}_inbox" AS i JOIN "{schema}_consumers" AS c ON c.id = i.consumer
    UNION ALL
    SELECT d.key_id, coalesce(nullif(c.bound_to, ''), c.name), ifnull(d.message_type, ''),
        iif(json_valid(CAST(d.payload AS TEXT)), json(CAST(d.payload AS TEXT)), NULL), d.first_at, NULL, d.error, d.attempts
    FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
    WHERE d.replayed_at IS NULL AND EXISTS (SELECT 1 FROM "{schema}_consumers" AS t JOIN "{schema}_inbox_slots" AS s ON s.consumer = t.id
        WHERE t.name = c.name);
