-- The record of every key, and the tables around it, for SQLite 3.37 and later. Runs in one transaction.
-- {schema} stands for the plain name: SQLite has no schemas, so it is the prefix of every table and index.
-- Instants are microseconds since the Unix epoch by the clock of the process; the largest integer means for ever.
-- Text is compared as bytes, which is SQLite's default. Never edited once released: a change is a new migration.

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
    PRIMARY KEY (consumer, key_id)
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
    started_at INTEGER NOT NULL
) STRICT;

CREATE TABLE "{schema}_attempts" (
    consumer        INTEGER NOT NULL,
    key_id          BLOB    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    payload_hash    BLOB    NOT NULL,
    attempts        INTEGER NOT NULL,
    last_error      TEXT,
    first_at        INTEGER NOT NULL,
    last_at         INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_id)
) STRICT, WITHOUT ROWID;

-- Messages that will not run again by themselves. A malformed message may have no key. The payload is NULL when the
-- message had none (has_payload is 0) or when it was over the limit (has_payload is 1). Headers are a JSON object.
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

-- Equal messages that failed for the same reason are one row with a count. NULLs differ from each other in a unique
-- index, so a message without a hash counts as one with an empty hash.
CREATE UNIQUE INDEX "{schema}_dead_letters_equal" ON "{schema}_dead_letters"
    (consumer, key_id, ifnull(payload_hash, x''), reason) WHERE key_id IS NOT NULL;
CREATE INDEX "{schema}_idx_dead_letters_last" ON "{schema}_dead_letters" (last_at);
CREATE INDEX "{schema}_idx_dead_letters_replay" ON "{schema}_dead_letters" (consumer, id)
    WHERE replay_requested_at IS NOT NULL AND replayed_at IS NULL;

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
