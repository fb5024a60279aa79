-- One row a finding: its level, the problem, and the cure. No row if all is well. Parameter: 1 for how many seconds the
-- broker may deliver a message again, or NULL: then the value counts that the last start of each consumer's workers read.
SELECT 'error' AS level, pg_catalog.format('%s is off: a crash can lose or damage what was committed', name) AS finding,
    pg_catalog.format('Set %s = on in postgresql.conf', name) AS cure
FROM pg_catalog.unnest(ARRAY['fsync', 'full_page_writes']) AS name WHERE pg_catalog.current_setting(name) = 'off'
UNION ALL
SELECT 'warning', pg_catalog.format('synchronous_commit is %s: a crash or failover can lose a commit whose message is already acknowledged',
        pg_catalog.current_setting('synchronous_commit')),
    'Set synchronous_commit = on for the roles of the workers'
WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')
UNION ALL
SELECT 'warning', pg_catalog.format('default_transaction_isolation is %s; units run at READ COMMITTED all the same',
        pg_catalog.current_setting('default_transaction_isolation')),
    'Remove the setting from the roles of the workers'
WHERE pg_catalog.current_setting('default_transaction_isolation') <> 'read committed'
UNION ALL
-- The session's settings at its beginning, because this command has set limits of its own.
SELECT 'warning', pg_catalog.format('%s is %s ms for this login: handlers'' statements end after it, whatever the handler''s deadline', name,
        reset_val),
    pg_catalog.format('Remove %s from the roles of the workers, or keep it above --handler-deadline', name)
FROM pg_catalog.pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout') AND reset_val::int8 BETWEEN 1 AND 30000
UNION ALL
SELECT 'warning', pg_catalog.format('the role %s is missing, so rights cannot be kept apart', role),
    'Run: idem migrate print --roles | psql -1 "$DATABASE_URL"'
FROM pg_catalog.unnest(ARRAY['idem_worker', 'idem_writer', 'idem_cleanup', 'idem_migrator', 'idem_auditor']) AS role
WHERE pg_catalog.to_regrole(role) IS NULL
UNION ALL
SELECT 'error', pg_catalog.format('the role idem_worker may %s records, which permits their effects a second time', right_),
    'Run: idem migrate print --roles | psql -1 "$DATABASE_URL"'
FROM pg_catalog.unnest(ARRAY['DELETE', 'UPDATE', 'TRUNCATE']) AS right_
WHERE pg_catalog.to_regrole('idem_worker') IS NOT NULL
    AND pg_catalog.has_table_privilege('idem_worker', '{schema}.processed_messages', right_)
UNION ALL
SELECT 'warning', pg_catalog.format('cleanup is behind: a record that has expired at %s is still there', oldest),
    'Run idem cleanup, and look why the workers'' cleanup does not keep up: their log, and idem_cleanup_failed_cycles'
FROM (SELECT pg_catalog.min(expires_at) AS oldest FROM {schema}.processed_messages) AS records
WHERE oldest < pg_catalog.now() - interval '3 hours'
UNION ALL
SELECT 'warning', coalesce(pg_catalog.format('cleanup ran last at %s', last), 'cleanup has never run'),
    'Give a worker --cleanup-database-url with a login in idem_cleanup, or run idem cleanup every hour'
FROM (SELECT pg_catalog.max(at) AS last FROM {schema}.audit WHERE action = 'cleanup') AS cleanups
WHERE coalesce(last, '-infinity') < pg_catalog.now() - interval '1 day'
    AND EXISTS (SELECT FROM {schema}.consumers WHERE first_started_at < pg_catalog.now() - interval '1 day')
UNION ALL
SELECT 'notice', pg_catalog.format('the records of %s are kept for ever, so the table grows without end', name),
    'Give its workers --retention, longer than the broker may deliver a message again'
FROM {schema}.consumers WHERE retention IS NULL
UNION ALL
SELECT 'error', pg_catalog.format('the records of %s are kept for %s, and the broker may deliver a message again for %s: a late redelivery '
        'takes effect a second time', name, pg_catalog.justify_hours(retention), pg_catalog.justify_hours(horizon)),
    pg_catalog.format('Give its workers a --retention of more than that, and run idem retention set %s TIME --existing', name)
FROM (SELECT name, retention, coalesce($1::int8::float8 * interval '1 s', redelivery_horizon) AS horizon
    FROM {schema}.consumers) AS kept
WHERE retention <= horizon
UNION ALL
SELECT 'warning', pg_catalog.format('the last start of %s, at %s, said: %s', c.name, start.at, said),
    'Fix it at the broker or in the workers'' settings; their next start says whether it is gone'
FROM {schema}.consumers AS c {last_start} CROSS JOIN LATERAL pg_catalog.regexp_split_to_table(start.details, E'\n') AS said
WHERE said <> ''
UNION ALL
SELECT 'warning', pg_catalog.format('process %s (%s) has been in a transaction since %s: no row that is removed makes room until it ends',
        pid, application_name, xact_start),
    pg_catalog.format('Find out what it does; SELECT pg_terminate_backend(%s) ends it', pid)
FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() AND xact_start < pg_catalog.now() - interval '10 minutes'
    AND backend_type = 'client backend'
UNION ALL
SELECT 'warning', pg_catalog.format('%s holds %s dead rows beside %s live ones', relname, n_dead_tup, n_live_tup),
    pg_catalog.format('Look why autovacuum does not come, and run VACUUM {schema}.%I', relname)
FROM pg_catalog.pg_stat_all_tables
WHERE relid IN (SELECT oid FROM pg_catalog.pg_class WHERE relnamespace = '{schema}'::regnamespace::oid)
    AND n_dead_tup > 100000 AND n_dead_tup > n_live_tup / 2
UNION ALL
SELECT 'warning', pg_catalog.format('%s has not been frozen for %s transactions', relname, pg_catalog.age(relfrozenxid)),
    pg_catalog.format('Run VACUUM (FREEZE) {schema}.%I', relname)
FROM pg_catalog.pg_class
WHERE relnamespace = '{schema}'::regnamespace::oid AND relkind = 'r' AND pg_catalog.age(relfrozenxid) > 1000000000
UNION ALL
-- Statements of idem's name the server's own functions and operators. Handlers' and other programs' seldom do.
SELECT 'warning', pg_catalog.format('%s.%s has the name of %s of the server''s, and stands in the search_path of this login: a '
        'statement that does not say pg_catalog may call it instead', shadow.schema, shadow.name, shadow.kind),
    pg_catalog.format('Drop it or move it to a schema of its own, and run REVOKE CREATE ON SCHEMA %s FROM PUBLIC', shadow.schema)
FROM (
    SELECT n.nspname AS schema, p.oid::regprocedure::text AS name, 'a function' AS kind
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = ANY (pg_catalog.current_schemas(false)) AND n.nspname <> 'pg_catalog' AND EXISTS (
            SELECT FROM pg_catalog.pg_proc AS s WHERE s.proname = p.proname AND s.pronamespace = 'pg_catalog'::regnamespace::oid)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid = 'pg_catalog.pg_proc'::regclass::oid
            AND d.objid = p.oid AND d.deptype = 'e')
    UNION ALL
    SELECT n.nspname, o.oid::regoperator::text, 'an operator'
    FROM pg_catalog.pg_operator AS o JOIN pg_catalog.pg_namespace AS n ON n.oid = o.oprnamespace
    WHERE n.nspname = ANY (pg_catalog.current_schemas(false)) AND n.nspname <> 'pg_catalog' AND EXISTS (
            SELECT FROM pg_catalog.pg_operator AS s WHERE s.oprname = o.oprname AND s.oprnamespace = 'pg_catalog'::regnamespace::oid)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid = 'pg_catalog.pg_operator'::regclass::oid
            AND d.objid = o.oid AND d.deptype = 'e')
    ORDER BY 1, 2 LIMIT 20
) AS shadow
UNION ALL
SELECT 'warning', pg_catalog.format('the search_path of this login has %s before pg_catalog, so that its operators and functions come '
        'first', path.first),
    'Leave pg_catalog out of search_path: it is searched first then'
FROM (SELECT (pg_catalog.current_schemas(false))[1]::text AS first) AS path
WHERE 'pg_catalog' = ANY (pg_catalog.current_schemas(false)) AND path.first <> 'pg_catalog'
UNION ALL
SELECT 'warning', pg_catalog.format('schema %s stands in the search_path of this login, and everybody may create in it', n.nspname),
    pg_catalog.format('Run REVOKE CREATE ON SCHEMA %I FROM PUBLIC', n.nspname)
FROM pg_catalog.pg_namespace AS n
WHERE n.nspname = ANY (pg_catalog.current_schemas(false)) AND EXISTS (
    SELECT FROM pg_catalog.aclexplode(n.nspacl) AS a WHERE a.grantee = 0::oid AND a.privilege_type = 'CREATE')
UNION ALL
SELECT 'warning', pg_catalog.format('the table of dead letters takes %s', pg_catalog.pg_size_pretty(size.bytes)),
    '`idem dead-letters groups` counts them by failure: replay or drop them. Workers keep no more of each consumer than '
        '--dead-letters-bytes-max, and hold what comes after'
FROM (SELECT pg_catalog.pg_total_relation_size('{schema}.dead_letters'::regclass) AS bytes) AS size WHERE size.bytes > 1073741824::int8
UNION ALL
SELECT 'notice', pg_catalog.format('tables that a handler or --create-tables makes without naming a schema come into idem''s own schema, '
        'because the login has its name'),
    'Name the schema in statements, or set search_path for the login'
WHERE pg_catalog.current_schema() = '{plain}'
UNION ALL
SELECT 'error', pg_catalog.format('the role idem_cleanup may delete from %s, also what has not expired', kept.relname),
    'Run: idem migrate print --roles | psql -1 "$DATABASE_URL"'
FROM pg_catalog.pg_class AS kept
WHERE kept.relnamespace = '{schema}'::regnamespace::oid AND kept.relkind = 'r' AND pg_catalog.to_regrole('idem_cleanup') IS NOT NULL
    AND pg_catalog.has_table_privilege(pg_catalog.to_regrole('idem_cleanup')::oid, kept.oid, 'DELETE')
UNION ALL
-- The other sequences keep a worker from starting, which is told before.
SELECT 'warning', pg_catalog.format('the sequence %s gives %s next, and the table %s has rows up to %s: events may overtake older ones, or an '
        'import fails', b.sequence_name, b.next_value, b.table_name, b.highest),
    pg_catalog.format('Run idem migrate up, or SELECT pg_catalog.setval(%L, %s)', b.sequence_name, b.highest)
FROM {schema}.sequences_behind() AS b
UNION ALL
SELECT 'warning', pg_catalog.format('the index %s on %s is not valid: a CREATE INDEX or REINDEX CONCURRENTLY was cancelled, or still runs. Of '
        'two transactions that insert one key at once, the later one runs again', i.relname, t.relname),
    CASE WHEN i.relname::text ~ '_cc(new|old)[0-9]*$'::text THEN
        pg_catalog.format('Once none runs (pg_stat_progress_create_index), run DROP INDEX CONCURRENTLY {schema}.%I', i.relname)
    ELSE pg_catalog.format('Once none runs (pg_stat_progress_create_index), run REINDEX INDEX CONCURRENTLY {schema}.%I', i.relname) END
FROM pg_catalog.pg_index AS x JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid JOIN pg_catalog.pg_class AS t ON t.oid = x.indrelid
WHERE t.relnamespace = '{schema}'::regnamespace::oid AND NOT (x.indisvalid AND x.indisready AND x.indislive)
