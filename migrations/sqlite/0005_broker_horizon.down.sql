-- Takes back what 0005 made.
ALTER TABLE "{schema}_consumers" DROP COLUMN redelivery_horizon;
