-- For how many microseconds a consumer's broker may deliver again, as its last start heard. Never edited once released: a
-- change is a new migration.
ALTER TABLE "{schema}_consumers" ADD COLUMN redelivery_horizon INTEGER;
