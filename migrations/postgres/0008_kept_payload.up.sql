-- A dead letter without its payload takes that of a later copy, whatever its length. Never edited once released: a
-- change is a new migration.

-- As 0003 made it, without the demand that the copy be as long as the first: under a hash rule of some members alone, two
-- copies with one hash differ in length, and the row counts the bytes that it has. Where the hash is of the bytes themselves, they are
-- compared. An erased row, whose key is gone, gets no payload. Each payload that is given is a line of the trail, with the login by the server.
CREATE OR REPLACE FUNCTION {schema}.keep_payload(dead_letter bigint, content bytea) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
WITH kept AS (
    UPDATE {schema}.dead_letters AS d SET payload = content, payload_bytes = octet_length(content)
    WHERE d.id = dead_letter AND d.payload IS NULL AND d.has_payload AND (d.key_id IS NULL OR d.idempotency_key IS NOT NULL)
        AND (sha256(content) = d.payload_hash
            OR EXISTS (SELECT FROM {schema}.payload_hashes AS h WHERE h.id = d.hash_id AND h.rule <> 'raw/1'))
    RETURNING d.id, d.consumer, d.idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT session_user, 'keep-payload', k.consumer, k.idempotency_key, format('dead letter %s: %s bytes', k.id, octet_length(content))
    FROM kept AS k
)
SELECT k.id FROM kept AS k
$idem$;
