//! `idem import`: brings the rows of a hand-written table over.

use idem_core::{PayloadHash, PayloadHasher as _, Unhashed};

use crate::{
    command_line::Import,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Pages of the table a transaction: some ten thousand rows.
const PAGES: i64 = 256;

/// The table as the server knows it. Parameter: 1 its name. Result: its quoted name, and how many pages it has.
const TABLE: &str = "\
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int8 AS pages
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass($1::text)::oid AND c.relkind = 'r'";

/// The first of these columns that the table lacks. Parameters: 1 the table, 2 the columns.
const MISSING: &str = "\
SELECT asked.name FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS asked (name, place)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($1::text)::oid AND a.attname = asked.name::name AND a.attnum > 0 AND NOT a.attisdropped)
ORDER BY asked.place LIMIT 1";

/// Makes the consumer if it has never started, bound to nothing; the first start sets the rest. The run is the one that
/// the records name. Parameters: 1 consumer, 2 tenant, 3 rule, 4 table. Result: scope, rule and run.
const PREPARE: &str = "\
WITH scope AS (
    INSERT INTO {schema}.consumers (name, tenant, bound_to, handler, key_rules, hash_rules, retention)
    VALUES ($1::text, $2::text, '', '', '', '', interval '7 d')
    ON CONFLICT (name, tenant) DO UPDATE SET name = excluded.name RETURNING id
), rule AS (
    INSERT INTO {schema}.payload_hashes (rule) VALUES ($3::text)
    ON CONFLICT (rule) DO UPDATE SET rule = excluded.rule RETURNING id
), run AS (
    INSERT INTO {schema}.worker_runs (host, process, version) VALUES ('import', 0, $4::text) RETURNING id
)
SELECT scope.id::int8, rule.id::int8, run.id::int8 FROM scope, rule, run";

/// The rows on these pages that are to be brought over. Parameters: 1 from page, 2 to page, 3 the consumer's name in the
/// table or NULL for all.
const SLICE: &str = "\
SELECT t.{key}::text AS key, {processed}::timestamptz AS processed_at, {expires}::timestamptz AS expires_at,
    t.{key} IS NULL OR t.{key}::text ~ '[[:cntrl:]]' OR pg_catalog.octet_length(t.{key}::text) NOT BETWEEN 1 AND 255 AS refused
FROM {table} AS t
WHERE t.ctid >= pg_catalog.format('(%s,0)', $1::int8)::tid AND t.ctid < pg_catalog.format('(%s,0)', $2::int8)::tid
    AND ($3::text IS NULL OR {consumer}::text = $3::text)";

/// Rows that are there already stay, so that an interrupted run can be started again. Further parameters: 4 scope, 5 rule,
/// 6 run, 7 hash in hexadecimal digits. Result: how many were read, inserted, and have no valid key.
const COPY: &str = "\
WITH slice AS MATERIALIZED ({slice}), written AS (
    INSERT INTO {schema}.processed_messages
        (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, processed_at, expires_at)
    SELECT $4::int8::int4, {schema}.key_id(key), key, pg_catalog.decode($7::text, 'hex'), $5::int8::int4, $6::int8::int4, processed_at,
        coalesce(expires_at, 'infinity')
    FROM slice WHERE NOT refused ORDER BY 2
    ON CONFLICT (consumer, key_id) DO NOTHING RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM slice) AS read, (SELECT pg_catalog.count(*) FROM written) AS written,
    (SELECT pg_catalog.count(*) FROM slice WHERE refused) AS refused";

const COUNT: &str = "SELECT pg_catalog.count(*) AS read, 0::int8 AS written, pg_catalog.count(*) FILTER (WHERE refused) AS refused FROM ({slice}) AS slice";

const NOTE: &str = "\
WITH emptied AS (
    INSERT INTO {schema}.controls AS c (consumer, epoch) VALUES ($1::int8::int4, 1)
    ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1
)
INSERT INTO {schema}.audit (who, action, consumer, details) VALUES ($2::text, 'import', $1::int8::int4, $3::text)
RETURNING id";

/// The counts so far.
#[derive(Debug, Default)]
struct Counts {
    read: i64,
    written: i64,
    refused: i64,
}

pub(crate) async fn run(mut database: Database, import: &Import) -> Result<Report, Failure> {
    let consumer =
        idem_core::ConsumerName::new(&import.consumer).map_err(|error| Failure::refused(error.to_string()))?;
    let found = database.table(TABLE, &[Bind::Text(&import.from)]).await?;
    let Some(table) = found.rows().first() else {
        return Err(Failure::refused(format!(
            "there is no table {}: give a plain table, with its schema",
            import.from
        )));
    };
    check_columns(&mut database, import).await?;
    let slice = slice(import, table.text("name"));
    let pages = table.number("pages");
    let counted = pass(&mut database, &COUNT.replace("{slice}", &slice), pages, import, &[]).await?;
    let Counts { read, refused, .. } = counted;
    let told = format!("{read} rows of {} for {consumer}, {refused} of them without a valid key", import.from);
    if read == 0 || import.dry_run {
        return Ok(Report::said(format!("{told}. Nothing was imported.")));
    }
    confirm(&format!("This imports {told}"), import.yes.yes)?;
    let rule = Unhashed.rule();
    let binds =
        [Bind::Text(consumer.as_str()), Bind::Text(&import.tenant), Bind::Text(&rule), Bind::Text(&import.from)];
    let [scope, rule, run] = database.numbers(PREPARE, &binds).await?;
    let hash = PayloadHash::NONE.to_string();
    let binds = [Bind::Number(scope), Bind::Number(rule), Bind::Number(run), Bind::Text(&hash)];
    let done = pass(&mut database, &COPY.replace("{slice}", &slice), pages, import, &binds).await?;
    let there = done.read - done.written - done.refused;
    let said = format!("{} imported, {there} were there already, {} have no valid key", done.written, done.refused);
    let (by, details) = (database.by.clone(), format!("from {}: {said}", import.from));
    database.act(NOTE, &[Bind::Number(scope), Bind::Text(&by), Bind::Text(&details)]).await?;
    Ok(Report::said(format!(
        "{said}. They have no hash: a redelivery is a duplicate by its key alone, whatever its payload."
    )))
}

/// Refuses a column that is not there, with the flag that names it.
async fn check_columns(database: &mut Database, import: &Import) -> Result<(), Failure> {
    let flags = [
        ("--key-column", Some(&import.key_column)),
        ("--processed-column", Some(&import.processed_column)),
        ("--consumer-column", import.consumer_column.as_ref()),
        ("--expires-column", import.expires_column.as_ref()),
    ];
    let columns: Vec<String> = flags.iter().filter_map(|(_, column)| column.cloned()).collect();
    let missing = database.table(MISSING, &[Bind::Text(&import.from), Bind::Texts(&columns)]).await?;
    let Some(column) = missing.rows().first().map(|row| row.text("name")) else { return Ok(()) };
    let flag = flags.iter().find(|(_, named)| named.is_some_and(|named| named == column)).map_or("", |(flag, _)| flag);
    Err(Failure::refused(format!("the table {} has no column {column:?}: say another with {flag}", import.from)))
}

/// The statement that reads some pages of the table. Names of columns are quoted; values are bound.
fn slice(import: &Import, table: &str) -> String {
    let column = |name: &str| format!("t.\"{}\"", name.replace('"', "\"\""));
    let expires = import.expires_column.as_deref().map_or_else(|| "NULL".to_owned(), column);
    SLICE
        .replace("t.{key}", &column(&import.key_column))
        .replace("{consumer}", &import.consumer_column.as_deref().map_or_else(|| "$3::text".to_owned(), column))
        .replace("{processed}", &column(&import.processed_column))
        .replace("{expires}", &expires)
        .replace("{table}", table)
}

/// Goes through the table by its pages, which needs no index and looks at each once.
async fn pass(
    database: &mut Database,
    statement: &str,
    pages: i64,
    import: &Import,
    further: &[Bind<'_>],
) -> Result<Counts, Failure> {
    let named = import.consumer_column.as_ref().map(|_| import.named.as_deref().unwrap_or(&import.consumer));
    let mut counts = Counts::default();
    for from in (0..pages).step_by(usize::try_from(PAGES).unwrap_or(1)) {
        let mut binds = vec![Bind::Number(from), Bind::Number(from + PAGES), Bind::TextOr(named)];
        binds.extend(further);
        let [read, written, refused] = database.numbers(statement, &binds).await?;
        counts.read += read;
        counts.written += written;
        counts.refused += refused;
    }
    Ok(counts)
}
