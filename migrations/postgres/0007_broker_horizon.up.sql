-- For how long a consumer's broker may deliver again, as its last start heard. Never edited once released: a change is a new
-- migration.
ALTER TABLE {schema}.consumers ADD COLUMN redelivery_horizon interval;

DO $idem$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_worker') THEN
        GRANT UPDATE (redelivery_horizon) ON {schema}.consumers TO idem_worker;
    END IF;
END
$idem$;
