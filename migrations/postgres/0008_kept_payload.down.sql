-- Takes back what 0008 made: the function is again that of 0003.
CREATE OR REPLACE FUNCTION {schema}.keep_payload(dead_letter bigint, content bytea) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $idem$
UPDATE {schema}.dead_letters SET payload = content
WHERE id = dead_letter AND payload IS NULL AND has_payload AND payload_bytes = octet_length(content) RETURNING id
$idem$;
