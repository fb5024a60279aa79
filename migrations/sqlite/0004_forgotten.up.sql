-- Records that an operator forgot: they wait here, out of the way of every claim, until cleanup takes them or the operator
-- takes it back. Never edited once released: a change is a new migration.
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
