-- A unit of one message carries its seal itself. Never edited once released: a change is a new migration.

-- Whether a record is the only one of its unit. Its unit then writes no row into `units`: what a handler's own COMMIT would
-- commit is refused by the record's own trigger. Records of batches fire none, since one row of `units` answers for all of
-- them. A default that is no expression rewrites no row.
ALTER TABLE {schema}.processed_messages ADD COLUMN alone boolean NOT NULL DEFAULT false;

CREATE CONSTRAINT TRIGGER refuse_unsealed_commit
    AFTER INSERT ON {schema}.processed_messages
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.alone) EXECUTE FUNCTION {schema}.refuse_unsealed_commit();

-- A setting of its own for each call cost a tenth of such a unit: the server looks its search path up anew. What is written
-- with its schema needs none.
CREATE OR REPLACE FUNCTION {schema}.refuse_unsealed_commit() RETURNS trigger
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
