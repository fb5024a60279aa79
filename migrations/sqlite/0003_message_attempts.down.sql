-- Takes back what 0003 made. One count a key is left: of several payloads that of the one with the most attempts, because
-- that one may be what kills a process; and what a process of the release before has counted later. SQLite takes the other
-- columns from the row that has the maximum.
INSERT INTO "{schema}_attempts" AS a (consumer, key_id, payload_hash, idempotency_key, attempts, first_at, last_at)
SELECT consumer, key_id, payload_hash, idempotency_key, max(attempts), first_at, last_at FROM "{schema}_message_attempts"
GROUP BY consumer, key_id
ON CONFLICT (consumer, key_id) DO UPDATE SET first_at = excluded.first_at, last_at = excluded.last_at,
    attempts = excluded.attempts, payload_hash = excluded.payload_hash
WHERE a.last_at <= excluded.last_at;

DROP TABLE "{schema}_message_attempts";
