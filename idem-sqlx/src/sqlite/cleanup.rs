//! Removes what has expired, each kind in a transaction of its own, so that units wait for one kind at most.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    Backlog, Cleaned, Cleaner, CleanupReport, CleanupStep, Expiring, LastCleanup, Removal, Removed, StoreError,
};
use idem_schema::Dialect;
use sqlx::{AssertSqlSafe, Row as _};

use super::{Sqlite, clock};

const DOING: &str = "cleaning up";

const DELETE_AUDIT: &str = r#"
DELETE FROM "{schema}_audit" WHERE id IN (
    SELECT id FROM "{schema}_audit" WHERE at < ?1 ORDER BY at LIMIT ?2)"#;

/// As on PostgreSQL: nothing is looked for where a consumer keeps its records beyond the age of the run.
const DELETE_RUNS: &str = r#"
DELETE FROM "{schema}_worker_runs" WHERE id IN (
    SELECT r.id FROM "{schema}_worker_runs" AS r
    WHERE r.started_at < ?1
        AND NOT EXISTS (SELECT 1 FROM "{schema}_consumers" WHERE retention IS NULL OR r.started_at + retention > unixepoch() * 1000000)
        AND NOT EXISTS (SELECT 1 FROM "{schema}_units" WHERE run = r.id)
        AND NOT EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE replay_taken_by = r.id)
        AND NOT EXISTS (SELECT 1 FROM "{schema}_processed_messages" WHERE processed_by = r.id)
    ORDER BY r.id LIMIT ?2)"#;

const OLDEST: &str = r#"SELECT min(expires_at) FROM "{schema}_processed_messages""#;

const LAST: &str = r#"
SELECT who, at FROM "{schema}_audit" WHERE action = 'cleanup' ORDER BY id DESC LIMIT 1"#;

const NOTE: &str = r#"INSERT INTO "{schema}_audit" (at, who, action, details) VALUES (?1, ?2, 'cleanup', ?3)"#;

impl Sqlite {
    pub(super) async fn clean_up(&self, step: CleanupStep) -> Result<Cleaned, StoreError> {
        let now = clock::now();
        let before = |kept| now.saturating_sub(clock::micros(kept));
        let statements = &self.statements;
        let rows = i64::from(step.rows_max);
        let records = self.delete(statements.delete_expired(), now, rows).await?;
        let units = self.delete(statements.delete_units(), before(step.units_kept), rows).await?;
        let failed_before = before(step.failures_kept);
        let attempts = self.delete(statements.delete_attempts(), failed_before, rows).await?;
        let dead_letters = self.delete(statements.delete_dead_letters(), failed_before, rows).await?;
        Ok(Cleaned { records, others: units + attempts + dead_letters })
    }

    async fn delete(&self, sql: impl sqlx::SqlSafeStr, before: i64, rows: i64) -> Result<u64, StoreError> {
        let mut connection = self.connections.write(DOING).await?;
        let failed = connection.failed();
        let done = sqlx::query(sql).bind(before).bind(rows).execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(done.rows_affected())
    }

    fn text(&self, template: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(Dialect::Sqlite.render(template, &self.options.schema))
    }
}

/// Cleanup of one file: what [`Cleanup`](idem_core::Cleanup) runs on.
///
/// It takes turns with units at the file's one write lock, which is its election too, and expiry is by this process's clock.
#[derive(Debug)]
pub struct SqliteCleaner(Arc<Sqlite>);

impl SqliteCleaner {
    /// Cleanup of this store's tables.
    #[must_use]
    pub fn new(store: Arc<Sqlite>) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Cleaner for SqliteCleaner {
    async fn may_delete(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let store = &*self.0;
        let now = clock::now();
        let before = now.saturating_sub(clock::micros(removal.kept));
        let rows = i64::from(removal.rows_max);
        let statements = &store.statements;
        let deleted = match removal.kind {
            Expiring::Records => store.delete(statements.delete_expired(), now, rows).await?,
            Expiring::Units => store.delete(statements.delete_units(), before, rows).await?,
            Expiring::Attempts => store.delete(statements.delete_attempts(), before, rows).await?,
            Expiring::DeadLetters => store.delete(statements.delete_dead_letters(), before, rows).await?,
            Expiring::Audit => store.delete(store.text(DELETE_AUDIT), before, rows).await?,
            Expiring::Runs => store.delete(store.text(DELETE_RUNS), before, rows).await?,
        };
        Ok(Removed::Rows(deleted))
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        let mut connection = self.0.connections.read(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.0.text(OLDEST));
        let row = query.fetch_one(connection.get()?).await.map_err(&failed)?;
        let oldest: Option<i64> = row.try_get(0).map_err(failed)?;
        connection.done();
        let lag = oldest.map_or(0, |oldest| clock::now().saturating_sub(oldest));
        Ok(Backlog { lag: Duration::from_micros(u64::try_from(lag).unwrap_or(0)), records: None })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let mut connection = self.0.connections.read(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.0.text(LAST));
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
        let who = format!("{}, process {}", idem_schema::host_name(), std::process::id());
        let mut connection = self.0.connections.write(DOING).await?;
        let failed = connection.failed();
        let query = sqlx::query(self.0.text(NOTE)).bind(clock::now()).bind(who).bind(report.to_string());
        query.execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(())
    }

    async fn rest(&mut self) {}
}
