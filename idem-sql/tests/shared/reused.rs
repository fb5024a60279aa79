//! Schemas that the cases of the suites use one after the other: to make one and to drop it costs the server far more than most cases
//! do in it. A case that is green leaves its schema empty for the next one; a red one's schema is kept for a look. The tests of
//! both stores on PostgreSQL include this file, and share the schemas.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use idem_conformance::postgres::EFFECTS;
use idem_sql::{POSTGRES_MIGRATIONS, SchemaName};

/// The tables that these schemas have, by which one of another build is distinguished from this build's.
fn made_of() -> String {
    let mut hasher = DefaultHasher::new();
    POSTGRES_MIGRATIONS.iter().for_each(|migration| migration.up_template.hash(&mut hasher));
    EFFECTS.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Makes the list of these schemas, where there is none yet. `relations` and `functions` are the contents of one, and `empty`
/// how it is emptied: to look for them each time costs the server more than to empty it.
pub(crate) const LIST: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(4713);
    CREATE TABLE IF NOT EXISTS public.reused_schemas (name text PRIMARY KEY, made_of text NOT NULL, relations oid[] NOT NULL,
        functions oid[] NOT NULL, definition text NOT NULL, empty text NOT NULL, is_free boolean NOT NULL);
    COMMIT";

/// Takes one that is free. Answers its name, if there is one.
pub(crate) fn take() -> String {
    format!(
        "UPDATE public.reused_schemas SET is_free = false WHERE name = (SELECT name FROM public.reused_schemas
            WHERE is_free AND made_of = '{}' ORDER BY name LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING name",
        made_of()
    )
}

/// Enters a schema that was just made, and is in use.
pub(crate) fn enter(schema: &SchemaName) -> String {
    let rows = EFFECTS.lines().filter(|line| line.trim_start().starts_with("INSERT")).collect::<String>();
    format!(
        "INSERT INTO public.reused_schemas
        SELECT n.nspname, '{made_of}', s.relations, s.functions, {DEFINITION}, s.empty, false
        FROM pg_namespace AS n, LATERAL (SELECT
            ARRAY(SELECT oid FROM pg_class WHERE relnamespace = n.oid) AS relations,
            ARRAY(SELECT oid FROM pg_proc WHERE pronamespace = n.oid) AS functions,
            (SELECT format('LOCK TABLE %s; ', string_agg(t.name, ', ' ORDER BY t.name))
                    || string_agg(format('DELETE FROM %s; ', t.name), '' ORDER BY t.name) FILTER (WHERE t.relname <> 'migrations')
                FROM (SELECT relname, oid::regclass::text AS name FROM pg_class WHERE relnamespace = n.oid AND relkind = 'r') AS t)
            || (SELECT format('SELECT %s; ', string_agg(format('setval(%s, %s, false)', seqrelid, seqstart), ', '))
                FROM pg_sequence JOIN pg_class AS c ON c.oid = seqrelid WHERE c.relnamespace = n.oid)
            || $${rows}$$ AS empty) AS s
        WHERE n.nspname = '{schema}'",
        made_of = made_of(),
    )
}

/// A digest of the definitions in a schema: a statement that changes it leaves another.
const DEFINITION: &str = "(
    SELECT md5(string_agg(o.version, ' ' ORDER BY o.version)) FROM (
        SELECT c.oid || '.' || c.xmin FROM pg_class AS c WHERE c.oid = ANY (s.relations)
        UNION ALL SELECT a.attrelid || '-' || a.attnum || '.' || a.xmin FROM pg_attribute AS a WHERE a.attrelid = ANY (s.relations)
        UNION ALL SELECT t.oid || '.' || t.xmin FROM pg_trigger AS t WHERE t.tgrelid = ANY (s.relations)
        UNION ALL SELECT c.oid || '.' || c.xmin FROM pg_constraint AS c WHERE c.conrelid = ANY (s.relations)
        UNION ALL SELECT p.oid || '.' || p.xmin FROM pg_proc AS p WHERE p.oid = ANY (s.functions)
        UNION ALL SELECT 'of ' || count(*) FROM pg_depend AS d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
    ) AS o (version))";

/// Empties a schema for the next test once no transaction uses it any more. Drops it where something in it is defined
/// otherwise than when it was made. The session's `search_path` is the schema.
pub(crate) fn give_back(schema: &SchemaName) -> String {
    format!(
        "DO $do$
        DECLARE
            own record;
        BEGIN
            SELECT s.empty, s.definition = {DEFINITION} AS is_whole
                FROM public.reused_schemas AS s JOIN pg_namespace AS n ON n.nspname = s.name WHERE s.name = '{schema}' INTO own;
            IF own.is_whole THEN
                LOOP
                    BEGIN
                        EXECUTE own.empty;
                        EXIT;
                    EXCEPTION WHEN deadlock_detected THEN
                        -- A look at the inbox outlives the call that began it.
                        RAISE LOG 'a test has left a transaction behind';
                    END;
                END LOOP;
                UPDATE public.reused_schemas SET is_free = true WHERE name = '{schema}';
            ELSE
                DROP SCHEMA {} CASCADE;
                DELETE FROM public.reused_schemas WHERE name = '{schema}';
            END IF;
        END $do$",
        schema.quoted(),
    )
}
