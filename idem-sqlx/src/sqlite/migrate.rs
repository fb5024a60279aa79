//! Runs the migrations that idem-schema holds, as its contract says: each in one transaction with its own record.

use idem_core::StoreError;
use idem_schema::{
    AppliedMigration, Dialect, Migration, MigrationError, MigrationStatements, SQLITE_MIGRATIONS, pending_migrations,
    version_to_revert,
};
use sqlx::{AssertSqlSafe, Row};

use super::{Sqlite, clock, connections::Borrowed};

impl Sqlite {
    /// Makes idem's tables, or brings them to this build's version. Answers the versions that were applied, which is none
    /// where nothing was to do. Several processes may run it at once: each migration is applied once.
    ///
    /// # Errors
    /// [`StoreError::Schema`] where the schema is newer than this build or an applied migration was edited,
    /// [`StoreError::Unavailable`] where the write lock was not had within
    /// [`SqliteOptions::bookkeeping_timeout`](super::SqliteOptions::bookkeeping_timeout).
    ///
    /// # Cancel safety
    /// Cancel safe: the migration in hand is rolled back, and those before it stay.
    pub async fn migrate(&self) -> Result<Vec<u32>, StoreError> {
        self.migrate_to_newest(SQLITE_MIGRATIONS).await
    }

    /// Takes the newest migration back and answers its version; `None` where there is none. For development, and for the
    /// way back from a failed release: it refuses while there are records, because without them every redelivery runs a
    /// second time.
    ///
    /// # Errors
    /// As for [`migrate`](Self::migrate), and [`StoreError::Failed`] where there are records.
    ///
    /// # Cancel safety
    /// Cancel safe: it is rolled back.
    pub async fn revert_migration(&self) -> Result<Option<u32>, StoreError> {
        self.revert_newest(SQLITE_MIGRATIONS).await
    }

    pub(super) async fn migrate_to_newest(&self, known: &[Migration]) -> Result<Vec<u32>, StoreError> {
        let statements = MigrationStatements::new(Dialect::Sqlite, &self.options.schema);
        let mut done = Vec::new();
        loop {
            let mut connection = self.connections.write("migrating the schema").await?;
            connection.begin().await?;
            let failed = connection.failed();
            execute(&mut connection, statements.bootstrap.clone()).await?;
            let applied = applied(&mut connection, &statements).await?;
            let Some(next) = pending_migrations(known, &applied).map_err(|error| refused(&error))?.first() else {
                connection.commit().await?;
                return Ok(done);
            };
            execute(&mut connection, next.up(&self.options.schema)).await?;
            sqlx::query(AssertSqlSafe(statements.record.clone()))
                .bind(next.version)
                .bind(next.name)
                .bind(next.checksum())
                .bind(next.oldest_worker)
                .bind(clock::now())
                .execute(connection.get()?)
                .await
                .map_err(failed)?;
            connection.commit().await?;
            done.push(next.version);
        }
    }

    async fn revert_newest(&self, known: &[Migration]) -> Result<Option<u32>, StoreError> {
        let statements = MigrationStatements::new(Dialect::Sqlite, &self.options.schema);
        let mut connection = self.connections.write("taking a migration back").await?;
        connection.begin().await?;
        let failed = connection.failed();
        execute(&mut connection, statements.bootstrap.clone()).await?;
        let applied = applied(&mut connection, &statements).await?;
        let Some(newest) = version_to_revert(known, &applied).map_err(|error| refused(&error))? else {
            connection.commit().await?;
            return Ok(None);
        };
        execute(&mut connection, newest.down(&self.options.schema)).await?;
        let forget = sqlx::query(AssertSqlSafe(statements.forget)).bind(newest.version);
        forget.execute(connection.get()?).await.map_err(failed)?;
        connection.commit().await?;
        Ok(Some(newest.version))
    }
}

/// The texts hold several statements and no value but the checked name of the schema.
async fn execute(connection: &mut Borrowed<'_>, text: String) -> Result<(), StoreError> {
    let failed = connection.failed();
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection.get()?).await.map_err(failed)?;
    Ok(())
}

/// The migrations that were applied, oldest first.
pub(super) async fn applied(
    connection: &mut Borrowed<'_>,
    statements: &MigrationStatements,
) -> Result<Vec<AppliedMigration>, StoreError> {
    let failed = connection.failed();
    let select = sqlx::query(AssertSqlSafe(statements.applied.clone()));
    let rows = select.fetch_all(connection.get()?).await.map_err(&failed)?;
    let read = |row: &sqlx::sqlite::SqliteRow| {
        Ok(AppliedMigration {
            version: row.try_get("version")?,
            name: row.try_get("name")?,
            checksum: row.try_get("checksum")?,
            oldest_worker: row.try_get("oldest_worker")?,
        })
    };
    rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(failed)
}

pub(super) fn refused(error: &MigrationError) -> StoreError {
    // Its text is problem and cure in one sentence.
    let text = error.to_string();
    let (problem, cure) = text.split_once(": ").unwrap_or((text.as_str(), ""));
    StoreError::Schema { problem: problem.to_owned(), cure: cure.to_owned() }
}

#[cfg(test)]
mod tests;
