//! Removes what has expired, each kind in a transaction of its own, so that units wait for one kind at most.

use idem_core::{Cleaned, CleanupStep, StoreError};

use super::{Sqlite, clock};

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
        let mut connection = self.connections.write("cleaning up").await?;
        let failed = connection.failed();
        let done = sqlx::query(sql).bind(before).bind(rows).execute(connection.get()?).await.map_err(failed)?;
        connection.done();
        Ok(done.rows_affected())
    }
}
