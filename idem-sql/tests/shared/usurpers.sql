-- Functions and operators in the schema {usurper} that have the names that idem's statements use, and the exact types of
-- their arguments: PostgreSQL prefers those to a function or operator of pg_catalog's that takes any type, or takes one
-- only after a cast, wherever their schema stands in the search_path. Each raises where it is called, and answers a type
-- that fits nowhere. {functions} and {operators} are the names.
DO $usurpers$
DECLARE
    -- Types of one group meet each other in a statement.
    groups CONSTANT text[] := ARRAY[
        'int2 int4 int8 float4 float8 numeric interval timestamptz', 'text name "char" varchar bpchar json int4 text[]',
        'oid xid regclass regnamespace int4', 'bool', 'bytea', 'uuid', 'tid', 'int2[]', 'int4[]', 'int8[]', 'uuid[]', 'bytea[]',
        'float4[]'];
    body CONSTANT text := 'LANGUAGE plpgsql AS $body$ BEGIN RAISE EXCEPTION ''a usurper was called''; END $body$';
    pair record;
    wanted text;
    named text;
BEGIN
    -- Not to fall for them itself.
    PERFORM set_config('search_path', 'pg_catalog', true);
    FOR pair IN
        SELECT DISTINCT l::regtype, r::regtype FROM unnest(groups) AS g, string_to_table(g, ' ') AS l, string_to_table(g, ' ') AS r
    LOOP
        EXECUTE format('CREATE FUNCTION {usurper}.usurper(%s, %s) RETURNS point %s', pair.l, pair.r, body);
        FOREACH wanted IN ARRAY ARRAY[{operators}] LOOP
            -- An exact match in pg_catalog cannot be taken over, because pg_catalog comes first.
            CONTINUE WHEN EXISTS (SELECT FROM pg_operator WHERE oprname = wanted AND oprleft = pair.l AND oprright = pair.r
                AND oprnamespace = 'pg_catalog'::regnamespace);
            EXECUTE format('CREATE OPERATOR {usurper}.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = {usurper}.usurper)',
                wanted, pair.l, pair.r);
        END LOOP;
    END LOOP;
    FOREACH wanted IN ARRAY ARRAY[{functions}] LOOP
        FOR named IN
            SELECT DISTINCT t FROM unnest(groups) AS g, string_to_table(g, ' ') AS t
            UNION
            -- Those without an argument, and those of several, exactly as in pg_catalog.
            SELECT oidvectortypes(proargtypes) FROM pg_proc
            WHERE proname = wanted AND pronamespace = 'pg_catalog'::regnamespace AND pronargs <> 1
                AND NOT EXISTS (SELECT FROM unnest(proargtypes) AS t JOIN pg_type ON pg_type.oid = t WHERE typtype = 'p')
        LOOP
            EXECUTE format('CREATE FUNCTION {usurper}.%I(%s) RETURNS point %s', wanted, named, body);
        END LOOP;
    END LOOP;
END
$usurpers$;
