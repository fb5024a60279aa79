-- Takes back what 0005 made.
DROP TRIGGER refuse_unsealed_commit ON {schema}.processed_messages;
ALTER TABLE {schema}.processed_messages DROP COLUMN alone;
