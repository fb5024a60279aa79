//! Removes what has expired, each step a transaction of its own, so that units wait for one step at most.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    StoreError,
    cleanup::{Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
};
use idem_sql::Dialect;
use sqlx::{AssertSqlSafe, Row as _};

use super::{clock, driver::Driver};

const DOING: &str = "cleaning up";

const OLDEST: &str = r#"SELECT min(expires_at) FROM "{schema}_processed_messages""#;

const LAST: &str = r#"
SELECT who, at FROM "{schema}_audit" WHERE action = 'cleanup' ORDER BY id DESC LIMIT 1"#;

const NOTE: &str = r#"INSERT INTO "{schema}_audit" (at, who, action, details) VALUES (?1, ?2, ?3, ?4)"#;

/// Removes the answers of the records that are removed next.
const ANSWERS: &str = r#"
DELETE FROM "{schema}_processed_results" WHERE EXISTS (SELECT 1 FROM "{schema}_processed_results")
    AND (consumer, key_id) IN (SELECT consumer, key_id {older} LIMIT ?2)"#;

/// Empties the answers whose time is over.
const ENDED: &str = r#"
UPDATE "{schema}_processed_results" SET kind = kind | 6, content_type = NULL, headers = NULL, body = x'', sealed_with = NULL,
    answer_until = NULL"#;

/// The rows of a kind that are older than ?1, as the end of a SELECT.
fn older(kind: Expiring) -> String {
    let (column, and) = match kind {
        Expiring::Records => ("expires_at", ""),
        Expiring::Units | Expiring::Audit => ("at", ""),
        Expiring::Attempts => ("last_at", ""),
        // Dead letters that await a replay stay, however old.
        Expiring::DeadLetters => ("last_at", "AND state = 0"),
        Expiring::Runs => ("started_at", UNNAMED),
        Expiring::Forgotten => ("forgotten_at", ""),
        Expiring::Answers => ("answer_until", ""),
    };
    let table = kind.table();
    format!(r#"FROM "{{schema}}_{table}" AS t WHERE {column} < ?1 {and} ORDER BY {column}"#)
}

/// As on PostgreSQL: nothing is looked for where a consumer keeps its records beyond the age of the run.
const UNNAMED: &str = r#"
    AND NOT EXISTS (SELECT 1 FROM "{schema}_consumers"
        WHERE retention IS NULL OR t.started_at + retention > unixepoch() * 1000000)
    AND NOT EXISTS (SELECT 1 FROM "{schema}_units" WHERE run = t.id)
    AND NOT EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE taken_by = t.id)
    AND NOT EXISTS (SELECT 1 FROM "{schema}_processed_messages" WHERE processed_by = t.id)"#;

/// Before which instant rows of a kind have expired.
fn before(kind: Expiring, kept: Duration) -> i64 {
    let now = clock::now();
    match kind {
        // It counts until the very instant.
        Expiring::Records | Expiring::Answers => now.saturating_add(1),
        Expiring::Units
        | Expiring::Attempts
        | Expiring::DeadLetters
        | Expiring::Audit
        | Expiring::Runs
        | Expiring::Forgotten => now.saturating_sub(clock::micros(kept)),
    }
}

/// Cleanup of one file. It takes turns with units at the file's one write lock, which is its election too, and expiry is
/// by this process's clock.
#[derive(Debug)]
pub(super) struct SqliteCleaner(pub(super) Arc<Driver>);

impl SqliteCleaner {
    fn text(&self, template: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(Dialect::Sqlite.render(template, &self.0.options.schema))
    }
}

#[async_trait]
impl Cleaner for SqliteCleaner {
    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let kind = removal.kind;
        let older = older(kind);
        // The one table without a rowid.
        let id = if kind == Expiring::Attempts { "(consumer, key_id, payload_hash)" } else { "rowid" };
        let (ids, table) = (id.trim_matches(['(', ')']), kind.table());
        let act = match kind {
            // The note that it was there stays, so that it is not taken for an operation without an answer.
            Expiring::Answers => ENDED.to_owned(),
            Expiring::Records
            | Expiring::Units
            | Expiring::Attempts
            | Expiring::DeadLetters
            | Expiring::Audit
            | Expiring::Runs
            | Expiring::Forgotten => format!(r#"DELETE FROM "{{schema}}_{table}""#),
        };
        let template = format!("{act} WHERE {id} IN (SELECT {ids} {older} LIMIT ?2)");
        let mut connection = self.0.connections.write(DOING).await?;
        let failed = connection.failed();
        let before = before(kind, removal.kept);
        let rows_max = removal.rows_max;
        connection.begin().await?;
        if kind == Expiring::Records {
            // The answers go with their records; where none are, no record pays for looking.
            let answers = ANSWERS.replace("{older}", &older);
            let query = sqlx::query(self.text(&answers)).bind(before).bind(rows_max);
            query.execute(connection.get()?).await.map_err(&failed)?;
        }
        let query = sqlx::query(self.text(&template)).bind(before).bind(rows_max);
        let done = query.execute(connection.get()?).await.map_err(failed)?;
        connection.commit().await?;
        Ok(Removed::Rows(done.rows_affected()))
    }

    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        let mut connection = self.0.connections.read(DOING).await?;
        let mut counts = Vec::with_capacity(Expiring::ALL.len());
        for kind in Expiring::ALL {
            let older = older(kind);
            let failed = connection.failed();
            let query = sqlx::query_scalar(self.text(&format!("SELECT count(*) {older}")));
            let query = query.bind(before(kind, settings.kept(kind).unwrap_or_default()));
            let rows: i64 = query.fetch_one(connection.get()?).await.map_err(failed)?;
            counts.push((kind, rows.unsigned_abs()));
        }
        connection.done();
        Ok(counts)
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        let mut connection = self.0.connections.read(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.text(OLDEST));
        let row = query.fetch_one(connection.get()?).await.map_err(&failed)?;
        let oldest: Option<i64> = row.try_get(0).map_err(failed)?;
        connection.done();
        let lag = oldest.map_or(0, |oldest| clock::now().saturating_sub(oldest));
        Ok(Backlog { lag: Duration::from_micros(u64::try_from(lag).unwrap_or(0)) })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let mut connection = self.0.connections.read(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.text(LAST));
        let row = query.fetch_optional(connection.get()?).await.map_err(&failed)?;
        connection.done();
        let last = |row: sqlx::sqlite::SqliteRow| {
            let ago = clock::now().saturating_sub(row.try_get("at")?);
            let ago = Duration::from_micros(u64::try_from(ago).unwrap_or(0));
            Ok(LastCleanup { who: row.try_get("who")?, ago })
        };
        row.map(last).transpose().map_err(failed)
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        let who = format!("{}, process {}", idem_sql::host_name(), std::process::id());
        let mut connection = self.0.connections.write(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.text(NOTE)).bind(clock::now()).bind(who).bind(report.action());
        query.bind(report.to_string()).execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }
}
