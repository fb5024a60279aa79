//! Migrations through sqlx, on a connection of their own.

use idem_core::StoreError;
use idem_sql::{Dialect, MigrateError, MigrationConnection, Migrator, Parameter, Row};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{
    PostgresStore,
    driver::{bound, decode},
    error,
};

impl PostgresStore {
    /// Brings the schema to this build's version, and answers the versions that it applied: none where there was nothing
    /// to do. Several may run at once; each migration is applied by one of them.
    ///
    /// The login needs the right to create a schema in the database, or to create in the schema that is there.
    ///
    /// # Errors
    /// [`MigrateError`]; each migration is one transaction, so nothing is half done.
    ///
    /// # Cancel safety
    /// Cancel safe: the transaction that is under way ends with its connection.
    pub async fn migrate(&self) -> Result<Vec<u32>, MigrateError> {
        let mut connection = Migrating(self.driver().connect_with(&self.driver().options.connection).await?);
        let versions = Migrator::new(Dialect::Postgres, self.schema()).up(&mut connection).await;
        let _ = sqlx::Connection::close(connection.0).await;
        versions
    }

    /// Takes the newest migration back, and answers its version; `None` where there is none. The first one is never taken
    /// back while `processed_messages` holds a record.
    ///
    /// # Errors
    /// As [`PostgresStore::migrate`].
    ///
    /// # Cancel safety
    /// Cancel safe, as [`PostgresStore::migrate`].
    pub async fn migrate_down(&self) -> Result<Option<u32>, MigrateError> {
        let mut connection = Migrating(self.driver().connect_with(&self.driver().options.connection).await?);
        let version = Migrator::new(Dialect::Postgres, self.schema()).down(&mut connection).await;
        let _ = sqlx::Connection::close(connection.0).await;
        version
    }
}

struct Migrating(PgConnection);

impl MigrationConnection for Migrating {
    type Error = sqlx::Error;

    async fn batch(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.0).await.map(|_| ())
    }

    async fn rows(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        let statement = bound(sqlx::query(AssertSqlSafe(text)).persistent(false), parameters);
        decode(&statement.fetch_all(&mut self.0).await?)
    }

    fn store_error(doing: &'static str, error: sqlx::Error) -> StoreError {
        error::store(doing, error)
    }

    fn sqlstate(error: &sqlx::Error) -> Option<String> {
        error::sqlstate(error)
    }
}
