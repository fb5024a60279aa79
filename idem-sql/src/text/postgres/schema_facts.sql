-- Types and conditions are written without quotes, which `quote_all_identifiers` puts around their names.
WITH relations AS MATERIALIZED (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence, c.relrowsecurity
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::text AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), records AS (
    SELECT * FROM relations WHERE name = 'processed_messages'
), indexes AS (
    SELECT pg_catalog.format('%s (%s) %s',
        CASE WHEN i.indisunique THEN 'unique' ELSE 'index' END,
        (SELECT pg_catalog.string_agg(coalesce(a.attname::text, 'expression'), ', ' ORDER BY k.place)
            FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
            LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
            WHERE k.place <= i.indnkeyatts),
        CASE WHEN i.indpred IS NOT NULL THEN 'partial' WHEN NOT i.indimmediate THEN 'deferrable'
            WHEN i.indisvalid AND i.indisready AND i.indislive THEN 'valid' ELSE 'invalid' END) AS described
    FROM pg_catalog.pg_index AS i JOIN records ON records.oid = i.indrelid
), triggers AS (
    SELECT relations.name AS table_name, t.tgname::text AS name, t.tgenabled, t.tgdeferrable, t.tginitdeferred, t.tgtype,
        CASE WHEN t.tgqual IS NULL THEN 'always'
            WHEN pg_catalog.strpos(pg_catalog.replace(pg_catalog.pg_get_triggerdef(t.oid, true), '"', ''), ' WHEN (new.alone) ') > 0 THEN 'alone'
            ELSE 'altered' END AS fires,
        f.proname::text AS function
    FROM pg_catalog.pg_trigger AS t
    JOIN relations ON relations.oid = t.tgrelid
    JOIN pg_catalog.pg_proc AS f ON f.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND relations.name IN ('processed_messages', 'units')
), functions AS (
    SELECT p.oid, p.proname::text || '(' || pg_catalog.replace(pg_catalog.oidvectortypes(p.proargtypes), '"', '') || ')' AS described
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = $1::text
)
SELECT
    EXISTS (SELECT FROM relations WHERE name = 'migrations') AS migrations_table,
    (SELECT CASE WHEN relkind = 'r' AND relpersistence = 'p' THEN 'table' WHEN relkind = 'p' THEN 'partitioned table'
        WHEN relkind = 'r' AND relpersistence = 'u' THEN 'unlogged table' ELSE 'no table' END FROM records) AS table_kind,
    ARRAY(SELECT pg_catalog.format('%s %s%s%s', a.attname, pg_catalog.replace(pg_catalog.format_type(a.atttypid, a.atttypmod), '"', ''),
            CASE WHEN a.attcollation <> 0::oid THEN pg_catalog.format(' collate %s', l.collname) END,
            CASE WHEN a.attnotnull THEN ' not null' END)
        FROM pg_catalog.pg_attribute AS a JOIN records ON records.oid = a.attrelid
        LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
        WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns,
    ARRAY(SELECT described FROM indexes ORDER BY described) AS indexes,
    -- A trigger is a bit field: 1 a row, 2 before, 4 insert, 64 instead.
    ARRAY(SELECT t.table_name || ' ' || CASE WHEN t.tgenabled NOT IN ('O', 'A') THEN 'disabled'
            WHEN NOT (t.tgdeferrable AND t.tginitdeferred) THEN 'not deferred'
            WHEN t.tgtype::int4 & 71 <> 5 OR t.function <> 'refuse_unsealed_commit'
                OR t.fires <> CASE t.table_name WHEN 'units' THEN 'always' ELSE 'alone' END THEN 'altered'
            ELSE 'enabled' END
        FROM triggers AS t WHERE t.name = 'refuse_unsealed_commit' ORDER BY t.table_name) AS seal_triggers,
    ARRAY(
        SELECT pg_catalog.format('trigger %s on %s', t.name, t.table_name) FROM triggers AS t
        WHERE t.name <> 'refuse_unsealed_commit'
        UNION ALL
        SELECT pg_catalog.format('rule %s on %s', w.rulename, r.name)
        FROM pg_catalog.pg_rewrite AS w JOIN relations AS r ON r.oid = w.ev_class
        WHERE r.name IN ('processed_messages', 'units')
        UNION ALL
        SELECT pg_catalog.format('row level security on %s', r.name) FROM relations AS r
        WHERE r.relrowsecurity AND r.name IN ('processed_messages', 'units')
        ORDER BY 1) AS suppressors,
    ARRAY(SELECT described FROM functions ORDER BY described) AS functions,
    ARRAY(
        SELECT pg_catalog.format('USAGE on schema %s', n.nspname) FROM pg_catalog.pg_namespace AS n
        WHERE n.nspname = $1::text AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
        UNION ALL
        SELECT pg_catalog.format('%s on %s', wanted.privilege, r.name)
        FROM (VALUES
            ('processed_messages', 'SELECT'), ('processed_messages', 'INSERT'), ('units', 'INSERT'),
            ('consumers', 'SELECT'), ('consumers', 'INSERT'), ('payload_hashes', 'SELECT'), ('payload_hashes', 'INSERT'),
            ('worker_runs', 'SELECT'), ('worker_runs', 'INSERT'), ('worker_runs', 'UPDATE'), ('message_attempts', 'SELECT'),
            ('message_attempts', 'INSERT'), ('message_attempts', 'UPDATE'), ('dead_letters', 'SELECT'), ('dead_letters', 'INSERT'), ('dead_letters', 'UPDATE'),
            ('controls', 'SELECT'), ('controls', 'INSERT'), ('controls', 'UPDATE'), ('audit', 'SELECT'), ('audit', 'INSERT'),
            ('outbox', 'SELECT'), ('outbox', 'INSERT'), ('outbox_destinations', 'SELECT'), ('outbox_destinations', 'INSERT'),
            ('inbox', 'SELECT'), ('inbox', 'INSERT'), ('inbox_slots', 'SELECT'),
            ('processed_results', 'SELECT'), ('processed_results', 'INSERT'),
            ('processed_results', 'UPDATE'), ('migrations', 'SELECT')
        ) AS wanted (name, privilege)
        JOIN relations AS r ON r.name = wanted.name
        -- Some rights are given for the columns that a worker writes.
        WHERE NOT pg_catalog.has_table_privilege(r.oid, wanted.privilege)
            AND NOT (wanted.name <> 'units' AND wanted.privilege IN ('INSERT', 'UPDATE')
                AND pg_catalog.has_any_column_privilege(r.oid, wanted.privilege))
        UNION ALL
        SELECT pg_catalog.format('USAGE on %s', c.relname) FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1::text AND c.relname IN ('outbox_numbers', 'inbox_numbers') AND c.relkind = 'S'
            AND NOT pg_catalog.has_sequence_privilege(c.oid, 'USAGE')
        UNION ALL
        SELECT pg_catalog.format('EXECUTE on %s', f.described) FROM functions AS f
        WHERE f.described IN ('key_id(text)', 'read_records(integer[], uuid[])', 'read_results(integer[], uuid[])', 'server_identity()',
                'rows_ahead(integer[], bytea[])', 'keep_payload(bigint, bytea)', 'due_now(bigint[], text)', 'any_due(text, bigint)',
                'take_due(text, integer, bigint, bigint, bigint)', 'renew_due(bigint[], integer)', 'release_due(bigint[], integer)',
                'put_aside(integer, text, uuid, text, bytea, integer, text, integer, text, bytea, bigint, boolean, json, text, '
                    'text, bytea, bytea, bytea, text, bigint)',
                'end_due(bigint[], text[], integer, bigint[], text[], bigint[], text[], text[])',
                'next_events(integer, bigint, bigint)', 'mark_behind(integer, bigint[])',
                'lease_destination(integer, text, bigint, bigint, text, bigint, boolean)', 'release_destination(integer, text)',
                'settle_events(integer, bigint[], text[], json)', 'raise_pending(integer, text, bigint)', 'count_events(integer, text)',
                'first_sent(smallint, timestamp with time zone, timestamp with time zone, timestamp with time zone)',
                'sequences_behind()', 'open_inbox(integer, integer)', 'hold_slots(integer, text, bigint, boolean)',
                'release_slots(integer, text, bigint[], bigint[])',
                'next_messages(integer, bigint[], bigint[], bigint[], bigint[], bigint, bigint, bigint)',
                'remove_messages(integer, text, bigint[], bigint[], bigint[], bigint[])', 'count_messages(integer, bigint[], bigint)')
            AND NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
    ) AS missing_privileges,
    pg_catalog.current_setting('session_replication_role') <> 'replica' AS triggers_fire
