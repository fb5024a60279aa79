-- Takes back what 0006 made: the function is again that of 0001, with a search path of its own.
CREATE OR REPLACE FUNCTION {schema}.refuse_unsealed_commit() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $idem$
BEGIN
    -- The setting is NULL before its first use in a session and empty after it: neither equals a transaction id.
    IF current_setting('idem.sealed', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ID001',
            MESSAGE = 'idem refused a COMMIT that it did not send',
            DETAIL = 'The transaction holds claimed keys whose messages may not have been handled; it was rolled back.',
            HINT = 'A handler must not end its transaction or set all constraints immediate: return Ok or an error instead.';
    END IF;
    RETURN NULL;
END
$idem$;
