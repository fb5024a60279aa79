-- Takes back what 0007 made.
ALTER TABLE {schema}.consumers DROP COLUMN redelivery_horizon;
