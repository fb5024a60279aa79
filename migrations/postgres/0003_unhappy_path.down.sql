-- Removes what 0003 made.

-- Rights ---------------------------------------------------------------------------------------------------------------
DROP FUNCTION {schema}.remove_expired(text, bigint, bigint);
DROP FUNCTION {schema}.server_identity();

-- A view cannot lose a column, so it is made anew, and keeps who may read it.
DO $idem$
DECLARE
    auditor CONSTANT boolean := EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'idem_auditor')
        AND pg_catalog.has_table_privilege('idem_auditor', '{schema}.audit_view', 'SELECT');
BEGIN
    DROP VIEW {schema}.audit_view;
    CREATE VIEW {schema}.audit_view AS
        SELECT a.id, a.at, a.who, a.action, c.tenant, c.name AS consumer_name, a.idempotency_key, a.details
        FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer;
    IF auditor THEN
        GRANT SELECT ON {schema}.audit_view TO idem_auditor;
    END IF;
END
$idem$;

ALTER TABLE {schema}.audit DROP COLUMN login;

CREATE OR REPLACE FUNCTION {schema}.read_records(consumers int[], key_ids uuid[])
    RETURNS SETOF {schema}.processed_messages
    LANGUAGE plpgsql STABLE STRICT
    SET enable_seqscan = off
    AS $idem$
BEGIN
    RETURN QUERY
    SELECT found.*
    FROM unnest(consumers, key_ids) AS asked (consumer, key_id)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.processed_messages AS p
        WHERE p.consumer = asked.consumer AND p.key_id = asked.key_id
        LIMIT 1
    ) AS found;
END
$idem$;
-- End of rights --------------------------------------------------------------------------------------------------------
