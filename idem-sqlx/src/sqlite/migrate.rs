//! Migrations of a SQLite file, on the store's own connection for writing.

use idem_core::StoreError;
use idem_sql::{Dialect, MigrateError, MigrationConnection, MigrationError, Migrator, Parameter, Row};
use sqlx::AssertSqlSafe;

use super::{
    SqliteStore,
    connections::Borrowed,
    driver::{bound, decode},
    error,
};

impl SqliteStore {
    /// Makes idem's tables, or brings them to this build's version. Answers the versions that were applied, which is none
    /// where nothing was to do. Several processes may run it at once: each migration is applied once.
    ///
    /// # Errors
    /// [`MigrateError`]: [`StoreError::Unavailable`] in it where the write lock was not had within
    /// [`SqliteOptions::bookkeeping_timeout`](super::SqliteOptions::bookkeeping_timeout).
    ///
    /// # Cancel safety
    /// Cancel safe: the migration in hand is rolled back, and those before it stay.
    pub async fn migrate(&self) -> Result<Vec<u32>, MigrateError> {
        let mut connection = Migrating(self.driver().connections.write("migrating the schema").await?);
        let versions = Migrator::new(Dialect::Sqlite, &self.driver().options.schema).up(&mut connection).await?;
        connection.0.done();
        Ok(versions)
    }

    /// Takes the newest migration back and answers its version; `None` where there is none. For development, and for the
    /// way back from a failed release: it refuses while there are records, because without them every redelivery runs a
    /// second time.
    ///
    /// # Errors
    /// As for [`migrate`](Self::migrate), and [`MigrateError::Failed`] where there are records.
    ///
    /// # Cancel safety
    /// Cancel safe: it is rolled back.
    pub async fn migrate_down(&self) -> Result<Option<u32>, MigrateError> {
        let mut connection = Migrating(self.driver().connections.write("taking a migration back").await?);
        let version = Migrator::new(Dialect::Sqlite, &self.driver().options.schema).down(&mut connection).await?;
        connection.0.done();
        Ok(version)
    }
}

/// The connection for migrations; it is closed, and its work rolled back, unless [`Borrowed::done`] is called.
pub(super) struct Migrating<'c>(pub(super) Borrowed<'c>);

impl MigrationConnection for Migrating<'_> {
    type Error = sqlx::Error;

    async fn batch(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(self.0.connection()?).await.map(|_| ())
    }

    async fn rows(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        let statement = bound(sqlx::query(AssertSqlSafe(text)).persistent(false), parameters);
        decode(&statement.fetch_all(self.0.connection()?).await?)
    }

    fn store_error(doing: &'static str, error: sqlx::Error) -> StoreError {
        error::of_bookkeeping(doing, error)
    }
}

pub(super) fn refused(error: &MigrationError) -> StoreError {
    // Its text is problem and cure in one sentence.
    let text = error.to_string();
    let (problem, cure) = text.split_once(": ").unwrap_or((text.as_str(), ""));
    StoreError::Schema { problem: problem.to_owned(), cure: cure.to_owned() }
}

#[cfg(test)]
mod tests;
