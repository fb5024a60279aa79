//! The statements of cleanup: which rows have expired, and how they are removed, counted and noted.

use std::sync::Arc;

use idem_core::cleanup::{CleanupSettings, Expiring};

use crate::text::{dialect::Dialect, name::SchemaName};

/// The statements of cleanup in one schema. `µs` stands for an `int8` of microseconds.
#[derive(Debug)]
pub(crate) struct CleanupStatements {
    remove: [Arc<str>; Expiring::ALL.len()],
    count: [Arc<str>; Expiring::ALL.len()],
    /// How far behind cleanup is. No parameters. Result, one row: `lag` in µs, zero where nothing has expired.
    pub(crate) backlog: Arc<str>,
    /// The last to finish a cycle. No parameters. Result, no row where there was none: `who text`, `ago` in µs.
    pub(crate) last: Arc<str>,
    /// Notes a cycle, or a part of one. Parameters: 1 who `text`, 2 details `text`, 3 action `text`. No result.
    pub(crate) note: Arc<str>,
    /// The session that removes now. No parameters. Result, no row where there is none: `pid int4`, `login text`, `application text`,
    /// and `transaction text`, another one with each step.
    pub(crate) holder: Arc<str>,
    /// Whether this role may have the expired removed. No parameters. Result, one row: `may bool`.
    pub(crate) may_delete: Arc<str>,
}

impl CleanupStatements {
    /// The statements with the schema's quoted name in them.
    pub(crate) fn new(schema: &SchemaName) -> Self {
        let render = |template: &str| Arc::from(Dialect::Postgres.render(template, schema));
        Self {
            remove: Expiring::ALL.map(|kind| render(&of(REMOVE, kind))),
            count: Expiring::ALL.map(|kind| render(&of(COUNT, kind))),
            backlog: render(BACKLOG),
            last: render(LAST),
            holder: render(HOLDER),
            note: render("INSERT INTO {schema}.audit (who, action, details) VALUES ($1::text, $3::text, $2::text)"),
            may_delete: render(
                "SELECT pg_catalog.has_function_privilege('{schema}.remove_expired(text, bigint, bigint)', 'EXECUTE') AS may",
            ),
        }
    }

    /// Has rows of a kind removed, the oldest first where an index has their order, if this is the only cleaner at work.
    ///
    /// Parameters: 1 how many at most `int8`, 2 older than µs. Result, one row: `elected bool`, and `removed int8`; fewer
    /// than asked for mean that nothing is left, but for `held int8` that other sessions have locked: `holders text`, as far as is known.
    pub(crate) fn remove(&self, kind: Expiring) -> &Arc<str> {
        &self.remove[place(kind)]
    }

    /// Counts the rows that would be removed. Parameters: 1 none `int8`, 2 older than µs. Result, one row: `rows int8`.
    pub(crate) fn count(&self, kind: Expiring) -> &Arc<str> {
        &self.count[place(kind)]
    }
}

/// One cycle as a script for the database's own scheduler, such as `pg_cron`.
///
/// It is one statement, which commits after each step: it must not run inside of a transaction. The role needs to be in
/// `idem_cleanup`.
#[must_use]
pub fn cleanup_script(settings: &CleanupSettings, schema: &SchemaName) -> String {
    let removals = Expiring::ALL.map(|kind| {
        let kept = settings.kept(kind).unwrap_or_default().as_micros().to_string();
        format!("$sql${}$sql$", of(REMOVE, kind).replace("$2", &kept).replace("$1", &settings.rows_max.to_string()))
    });
    let script = include_str!("cleanup/script.sql").replace("{removals}", &removals.join(",\n"));
    let script = script.replace("{steps_max}", &settings.steps_max.to_string());
    Dialect::Postgres.render(&script.replace("{rows_max}", &settings.rows_max.to_string()), schema)
}

fn place(kind: Expiring) -> usize {
    Expiring::ALL.iter().position(|known| *known == kind).unwrap_or_default()
}

/// A template with the table of a kind in it, and the condition of its expired rows, as the migration's `remove_expired` has
/// it.
fn of(template: &str, kind: Expiring) -> String {
    let older = |column: &str, at_least: &str| {
        format!(
            "{column} < pg_catalog.now() - greatest($2::int8::float8 * interval '1 microsecond', interval '{at_least}')"
        )
    };
    let expired = match kind {
        Expiring::Records => "expires_at <= pg_catalog.now()".to_owned(),
        Expiring::Units => older("at", "1 minute"),
        Expiring::Attempts => older("last_at", "1 day"),
        // Dead letters that await a replay stay, however old.
        Expiring::DeadLetters => older("last_at", "1 day") + " AND state = 0",
        Expiring::Audit => older("at", "30 days"),
        Expiring::Runs => older("started_at", "30 days"),
        Expiring::Forgotten => older("forgotten_at", "1 day"),
        Expiring::Answers => "answer_until <= pg_catalog.now()".to_owned(),
    };
    let unneeded = if kind == Expiring::Runs { UNNAMED } else { "" };
    let texts = [("{table}", kind.table()), ("{expired}", &*expired), ("{unneeded}", unneeded)];
    texts.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// The database's own function deletes: expired rows and nothing else, whichever role calls it. It elects one cleaner at a
/// time.
const REMOVE: &str = "\
SELECT elected, removed, held, holders FROM {schema}.remove_expired('{table}', $1::int8, $2::int8) AS step";

const COUNT: &str = "\
SELECT pg_catalog.count(*) AS rows FROM {schema}.{table} AS t WHERE {expired}{unneeded} AND $1::int8 IS NOT NULL AND $2::int8 IS NOT NULL";

/// Starts of workers that nothing names any more. A worker may run for as long as it likes, so its age alone says
/// nothing: records and units name the run until they are gone. Where some consumer keeps its records for ever, or beyond
/// the age of the run, nothing is looked for, because that would read all records.
const UNNAMED: &str = "
            AND NOT EXISTS (SELECT FROM {schema}.consumers AS c
                WHERE c.retention IS NULL OR t.started_at > pg_catalog.now() - c.retention)
            AND NOT EXISTS (SELECT FROM {schema}.units AS u WHERE u.run = t.id)
            AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.taken_by = t.id)
            AND NOT EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.processed_by = t.id)";

const BACKLOG: &str = "\
SELECT coalesce(greatest(extract(epoch FROM pg_catalog.now() - nullif(oldest, 'infinity')) * 1000000::numeric, 0), 0)::int8 AS lag
FROM (SELECT pg_catalog.min(expires_at) AS oldest FROM {schema}.processed_messages) AS expiry";

const LAST: &str = "\
SELECT who, (extract(epoch FROM pg_catalog.now() - at) * 1000000::numeric)::int8 AS ago FROM {schema}.audit
WHERE action = 'cleanup' ORDER BY id DESC LIMIT 1";

/// The row that `remove_expired` locks has the transaction that locks it, which `pg_locks` finds the session of.
const HOLDER: &str = "\
SELECT a.pid, coalesce(a.usename::text, '') AS login, coalesce(a.application_name, '') AS application, m.xmax::text AS transaction
FROM {schema}.migrations AS m
JOIN pg_catalog.pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = m.xmax AND l.granted
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE m.version = 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_every_statement_names_the_schema_quoted() {
        let statements = CleanupStatements::new(&SchemaName::new("select").unwrap());
        let CleanupStatements { remove, count, backlog, last, holder, note, may_delete } = &statements;
        for text in remove.iter().chain(count).chain([backlog, last, holder, note, may_delete]) {
            assert!(text.contains("\"select\"") && !text.contains('{') && !text.contains(';'), "{text}");
        }
    }

    /// S8: cleanup has no UPDATE, which row locks would need.
    #[test]
    fn s8_nothing_locks_rows() {
        let script = cleanup_script(&CleanupSettings::default(), &SchemaName::default());
        assert!(!script.contains("FOR UPDATE") && !script.contains("FOR KEY SHARE"), "{script}");
        assert!(
            !script.contains('{') && !script.contains("$1") && !script.contains("$2"),
            "every place is filled: {script}"
        );
    }
}
