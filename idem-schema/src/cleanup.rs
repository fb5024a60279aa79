//! What cleanup on PostgreSQL needs beside the statements that remove: the election, the look at what is left, the note of
//! who has cleaned, and the same as a script for a scheduler of the database's own.

use std::time::Duration;

use crate::{migrations::Dialect, name::SchemaName};

/// The statements of cleanup in one schema. `µs` stands for an `int8` of microseconds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CleanupStatements {
    /// Elects: of all cleaners of a schema, one at a time gets the lock, which ends with the transaction, because a pooler
    /// in transaction mode loses a session's locks. No parameters. Result, one row: `elected bool`.
    pub elect: String,
    /// Starts of workers that nothing names any more. A worker may run for as long as it likes, so its age alone says
    /// nothing: records and units name the run until they are gone. Where some consumer keeps its records for ever, or
    /// beyond the age of the run, nothing is looked for, because that would read all records.
    ///
    /// Parameters: 1 older than µs, 2 how many at most `int8`. Result: `deleted int8`.
    pub delete_runs: String,
    /// How far behind cleanup is. No parameters. Result, one row: `lag` in µs, zero where nothing has expired, and the
    /// server's estimate `records int8`, -1 where it has none yet.
    pub backlog: String,
    /// How many rows would be removed. Parameters: how long are kept, in µs, 1 units, 2 attempts, 3 dead letters, 4 audit.
    /// Result, one row: `processed_messages`, `units`, `attempts`, `dead_letters`, `audit`, all `int8`.
    pub preview: String,
    /// Who has finished a cycle last. No parameters. Result, no row where nobody has: `who text`, `ago` in µs.
    pub last: String,
    /// Notes that a cycle is over. Parameters: 1 who `text`, 2 details `text`. No result.
    pub note: String,
    /// Whether this role may delete records. No parameters. Result, one row: `may bool`.
    pub may_delete: String,
}

impl CleanupStatements {
    /// The statements with the schema's quoted name in them.
    #[must_use]
    pub fn new(schema: &SchemaName) -> Self {
        let render = |template: &str| Dialect::Postgres.render(template, schema);
        Self {
            elect: render(ELECT),
            delete_runs: render(DELETE_RUNS),
            backlog: render(BACKLOG),
            preview: render(PREVIEW),
            last: render(LAST),
            note: render(NOTE),
            may_delete: render("SELECT has_table_privilege('{schema}.processed_messages', 'DELETE') AS may"),
        }
    }
}

const ELECT: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('idem:cleanup:{schema}', 0)) AS elected";

const DELETE_RUNS: &str = "\
WITH gone AS (
    DELETE FROM {schema}.worker_runs
    WHERE id = ANY (ARRAY(
        SELECT r.id FROM {schema}.worker_runs AS r
        WHERE r.started_at < now() - $1::int8 * interval '1 microsecond'
            AND NOT EXISTS (SELECT FROM {schema}.consumers AS c
                WHERE c.retention IS NULL OR r.started_at > now() - c.retention)
            AND NOT EXISTS (SELECT FROM {schema}.units AS u WHERE u.run = r.id)
            AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.replay_taken_by = r.id)
            AND NOT EXISTS (SELECT FROM {schema}.processed_messages AS p WHERE p.processed_by = r.id)
        ORDER BY r.id LIMIT $2::int8))
    RETURNING id
)
SELECT count(*) AS deleted FROM gone";

const BACKLOG: &str = "\
SELECT coalesce(greatest(extract(epoch FROM now() - nullif(oldest, 'infinity')) * 1000000, 0), 0)::int8 AS lag,
    (SELECT reltuples::int8 FROM pg_catalog.pg_class WHERE oid = '{schema}.processed_messages'::regclass) AS records
FROM (SELECT min(expires_at) AS oldest FROM {schema}.processed_messages) AS expiry";

const PREVIEW: &str = "\
SELECT (SELECT count(*) FROM {schema}.processed_messages WHERE expires_at <= now()) AS processed_messages,
    (SELECT count(*) FROM {schema}.units WHERE at < now() - $1::int8 * interval '1 microsecond') AS units,
    (SELECT count(*) FROM {schema}.attempts WHERE last_at < now() - $2::int8 * interval '1 microsecond') AS attempts,
    (SELECT count(*) FROM {schema}.dead_letters WHERE last_at < now() - $3::int8 * interval '1 microsecond'
        AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL)) AS dead_letters,
    (SELECT count(*) FROM {schema}.audit WHERE at < now() - $4::int8 * interval '1 microsecond') AS audit";

const LAST: &str = "\
SELECT who, (extract(epoch FROM now() - at) * 1000000)::int8 AS ago FROM {schema}.audit
WHERE action = 'cleanup' ORDER BY id DESC LIMIT 1";

const NOTE: &str = "INSERT INTO {schema}.audit (who, action, details) VALUES ($1::text, 'cleanup', $2::text)";

/// How long the rows are kept that have no expiry of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupScript {
    /// Rows a step.
    pub rows_max: u32,
    /// Units of work that have committed.
    pub units_kept: Duration,
    /// Counts of failed attempts.
    pub attempts_kept: Duration,
    /// Dead letters.
    pub dead_letters_kept: Duration,
    /// The audit trail.
    pub audit_kept: Duration,
}

impl CleanupScript {
    /// One cycle as a script for the database's own scheduler, such as `pg_cron`.
    ///
    /// It is one statement, which commits after each step: it must not run inside of a transaction. The role needs to be
    /// in `idem_cleanup`.
    #[must_use]
    pub fn render(&self, schema: &SchemaName) -> String {
        let texts = [
            ("{rows_max}", self.rows_max.to_string()),
            ("{units}", self.units_kept.as_secs().to_string()),
            ("{attempts}", self.attempts_kept.as_secs().to_string()),
            ("{dead_letters}", self.dead_letters_kept.as_secs().to_string()),
            ("{audit}", self.audit_kept.as_secs().to_string()),
        ];
        let script = Dialect::Postgres.render(include_str!("cleanup.sql"), schema);
        texts.iter().fold(script, |script, (name, value)| script.replace(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_every_statement_names_the_schema_quoted() {
        let statements = CleanupStatements::new(&SchemaName::new("select").unwrap());
        let CleanupStatements { elect, delete_runs, backlog, preview, last, note, may_delete } = &statements;
        for text in [elect, delete_runs, backlog, preview, last, note, may_delete] {
            assert!(text.contains("\"select\"") && !text.contains("{schema}") && !text.contains(';'), "{text}");
        }
    }

    /// S8: cleanup has no UPDATE, which row locks would need.
    #[test]
    fn s8_nothing_locks_rows() {
        let day = Duration::from_secs(86_400);
        let script = CleanupScript {
            rows_max: 10,
            units_kept: day,
            attempts_kept: day,
            dead_letters_kept: day,
            audit_kept: day,
        };
        let script = script.render(&SchemaName::default());
        let statements = CleanupStatements::new(&SchemaName::default());
        for text in [&script, &statements.delete_runs] {
            assert!(!text.contains("FOR UPDATE") && !text.contains("FOR KEY SHARE"), "{text}");
        }
        assert!(!script.contains('{'), "every place is filled: {script}");
    }
}
