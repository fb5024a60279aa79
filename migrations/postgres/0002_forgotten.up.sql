-- Records that an operator forgot: they wait here, out of the way of every claim, until cleanup takes them or the operator
-- takes it back. Never edited once released: a change is a new migration.
CREATE TABLE {schema}.forgotten (
    key_id          uuid        NOT NULL,
    processed_at    timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    forgotten_at    timestamptz NOT NULL DEFAULT now(),
    -- One act of forgetting, by which it is taken back.
    batch           bigint      NOT NULL,
    consumer        int         NOT NULL,
    hash_id         int         NOT NULL,
    processed_by    int         NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    payload_hash    bytea       NOT NULL,
    CONSTRAINT forgotten_pkey PRIMARY KEY (batch, consumer, key_id)
);

CREATE INDEX idx_forgotten_at ON {schema}.forgotten (forgotten_at);
