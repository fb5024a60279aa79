//! Migrations through tokio-postgres, on a connection of their own.

use idem_core::StoreError;
use idem_sql::{Dialect, MigrateError, MigrationConnection, Migrator, Parameter, Row};
use tokio_postgres::Error;

use crate::{
    PostgresStore,
    driver::{decode, typed},
    error,
    link::Link,
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
        let options = &self.driver().options;
        let mut connection = Migrating(self.driver().connect_with(&options.connection).await?);
        let versions = Migrator::new(Dialect::Postgres, self.schema()).up(&mut connection).await;
        connection.0.close(options.settings.connect_timeout).await;
        versions
    }

    /// Runs statements that answer no rows, separated by semicolons, on a connection of its own: those that create an
    /// application's tables.
    ///
    /// # Errors
    /// [`StoreError`](idem_core::StoreError) where the server cannot be reached, or the driver's error. Statements outside
    /// of a transaction may have taken effect.
    ///
    /// # Cancel safety
    /// A dropped call closes the connection; the server may still do what it was sent.
    pub async fn run_script(&self, statements: &str) -> Result<(), idem_core::BoxError> {
        let options = &self.driver().options;
        let link = self.driver().connect_with(&options.connection).await?;
        let done = link.client.batch_execute(statements).await;
        link.close(options.settings.connect_timeout).await;
        Ok(done?)
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
        let options = &self.driver().options;
        let mut connection = Migrating(self.driver().connect_with(&options.connection).await?);
        let version = Migrator::new(Dialect::Postgres, self.schema()).down(&mut connection).await;
        connection.0.close(options.settings.connect_timeout).await;
        version
    }
}

struct Migrating(Link);

impl MigrationConnection for Migrating {
    type Error = Error;

    async fn batch(&mut self, text: &str) -> Result<(), Error> {
        self.0.client.batch_execute(text).await
    }

    async fn rows(&mut self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let parameters: Vec<_> = parameters.iter().map(typed).collect();
        decode(&self.0.client.query_typed(text, &parameters).await?)
    }

    fn store_error(doing: &'static str, error: Error) -> StoreError {
        error::store(doing, error)
    }

    fn sqlstate(error: &Error) -> Option<String> {
        error::sqlstate(error)
    }
}
