-- The seal without a search path of its own. Never edited once released: a change is a new migration.

-- A setting of a function's own is put in force and taken back at each call, and the server then looks its search path up
-- anew, which costs every unit more than the comparison does. Here every function, type and operator is named with its schema
-- instead, so that the caller's search_path decides nothing (S11). IS DISTINCT FROM, IN and CASE would look their operator up
-- there, so the seal is compared by =, and whatever is not true, NULL too, is refused.
CREATE OR REPLACE FUNCTION {schema}.refuse_unsealed_commit() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql
    AS $idem$
BEGIN
    -- The setting is NULL before its first use in a session and empty after it: neither equals a transaction id.
    IF pg_catalog.current_setting('idem.sealed', true) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.text THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ID001',
        MESSAGE = 'idem refused a COMMIT that it did not send',
        DETAIL = 'The transaction holds claimed keys whose messages may not have been handled; it was rolled back.',
        HINT = 'A handler must not end its transaction or set all constraints immediate: return Ok or an error instead.';
END
$idem$;
