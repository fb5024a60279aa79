-- A unit of one message carries its seal itself. Never edited once released: a change is a new migration.

-- Whether a record is the only one of its unit. Its unit then writes no row into `units`: what a handler's own COMMIT would
-- commit is refused by the record's own trigger. Records of batches fire none, since one row of `units` answers for all of
-- them. A default that is no expression rewrites no row.
ALTER TABLE {schema}.processed_messages ADD COLUMN alone boolean NOT NULL DEFAULT false;

CREATE CONSTRAINT TRIGGER refuse_unsealed_commit
    AFTER INSERT ON {schema}.processed_messages
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.alone) EXECUTE FUNCTION {schema}.refuse_unsealed_commit();
