//! Runs the migrations, by the contract of [`idem_schema::Migration`].

use idem_core::StoreError;
use idem_schema::{
    AppliedMigration, Dialect, Migration, MigrationError, MigrationStatements, POSTGRES_MIGRATIONS, begin_books,
    is_by_role, pending_migrations, version_to_revert,
};
use tokio_postgres::{Client, Error, types::Type};

use crate::{Postgres, error};

/// Why migrations did not run. What was applied before stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigratePostgresError {
    /// The database is not one that this build may migrate.
    #[error(transparent)]
    Plan(#[from] MigrationError),
    /// The database failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A migration failed; its transaction was rolled back.
    #[error("migration {version} ({name}) failed and was rolled back")]
    Failed {
        /// Its version.
        version: u32,
        /// Its name.
        name: &'static str,
        /// The server's error.
        #[source]
        source: Error,
    },
}

/// What a step of the runner did.
enum Step {
    Done(u32),
    Nothing,
}

/// Up or down.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

impl Postgres {
    /// Brings the schema to this build's version, and answers the versions that it applied: none where there was nothing
    /// to do. Several may run at once; each migration is applied by one of them.
    ///
    /// The login needs the right to create a schema in the database, or to create in the schema that is there.
    ///
    /// # Errors
    /// [`MigratePostgresError`]; each migration is one transaction, so nothing is half done.
    ///
    /// # Cancel safety
    /// Cancel safe: the transaction that is under way ends with its connection.
    pub async fn migrate(&self) -> Result<Vec<u32>, MigratePostgresError> {
        let mut applied = Vec::new();
        // One transaction each, and one that finds nothing to do.
        for _ in 0..=POSTGRES_MIGRATIONS.len() {
            match self.step(Way::Up).await? {
                Step::Done(version) => applied.push(version),
                Step::Nothing => break,
            }
        }
        Ok(applied)
    }

    /// Takes the newest migration back, and answers its version; `None` where there is none. The first one is never taken
    /// back while `processed_messages` holds a record.
    ///
    /// # Errors
    /// As [`Postgres::migrate`].
    ///
    /// # Cancel safety
    /// Cancel safe, as [`Postgres::migrate`].
    pub async fn migrate_down(&self) -> Result<Option<u32>, MigratePostgresError> {
        Ok(match self.step(Way::Down).await? {
            Step::Done(version) => Some(version),
            Step::Nothing => None,
        })
    }

    /// One migration in a transaction and on a connection of its own, which is closed afterwards however it ends.
    async fn step(&self, way: Way) -> Result<Step, MigratePostgresError> {
        let options = &self.shared.options;
        let session = self.connect_with(&options.connection).await?;
        let step = self.step_on(&session.client, way).await;
        session.close(options.settings.connect_timeout).await;
        step
    }

    async fn step_on(&self, client: &Client, way: Way) -> Result<Step, MigratePostgresError> {
        let preparing = |source| error::store("preparing the migration", source);
        let statements = MigrationStatements::new(Dialect::Postgres, self.schema());
        let rows = client.query_typed(&self.sql().read_only_default, &[]).await.map_err(preparing)?;
        let is_by_role = |row: &tokio_postgres::Row| Ok(row.try_get(0)? && is_by_role(row.try_get(1)?));
        let is_read_only = rows.first().map_or(Ok(false), is_by_role).map_err(preparing)?;
        client.batch_execute(begin_books(is_read_only)).await.map_err(preparing)?;
        if let Some(lock) = &statements.lock {
            client.batch_execute(lock).await.map_err(preparing)?;
        }
        client.batch_execute(&statements.bootstrap).await.map_err(preparing)?;
        let applied = applied(client, &statements).await.map_err(preparing)?;
        let migration = match way {
            Way::Up => pending_migrations(POSTGRES_MIGRATIONS, &applied)?.first(),
            Way::Down => version_to_revert(POSTGRES_MIGRATIONS, &applied)?,
        };
        let step = match migration {
            Some(migration) => {
                let failed =
                    |source| MigratePostgresError::Failed { version: migration.version, name: migration.name, source };
                self.change(client, &statements, migration, way).await.map_err(failed)?;
                Step::Done(migration.version)
            }
            None => Step::Nothing,
        };
        // Everything before has answered without an error, so this transaction can be committed.
        client.batch_execute("COMMIT").await.map_err(|source| error::store("committing the migration", source))?;
        Ok(step)
    }

    async fn change(
        &self,
        client: &Client,
        statements: &MigrationStatements,
        migration: &Migration,
        way: Way,
    ) -> Result<(), Error> {
        let version = i32::try_from(migration.version).unwrap_or(i32::MAX);
        match way {
            Way::Up => {
                client.batch_execute(&migration.up(self.schema())).await?;
                let checksum = migration.checksum();
                client
                    .query_typed(
                        &statements.record,
                        &[
                            (&version, Type::INT4),
                            (&migration.name, Type::TEXT),
                            (&checksum, Type::TEXT),
                            (&migration.oldest_worker, Type::TEXT),
                        ],
                    )
                    .await?;
            }
            Way::Down => {
                client.batch_execute(&migration.down(self.schema())).await?;
                client.query_typed(&statements.forget, &[(&version, Type::INT4)]).await?;
            }
        }
        Ok(())
    }
}

async fn applied(client: &Client, statements: &MigrationStatements) -> Result<Vec<AppliedMigration>, Error> {
    let rows = client.query_typed(&statements.applied, &[]).await?;
    let read = |row: &tokio_postgres::Row| {
        Ok(AppliedMigration {
            version: u32::try_from(row.try_get::<_, i32>("version")?).unwrap_or(u32::MAX),
            name: row.try_get("name")?,
            checksum: row.try_get("checksum")?,
            oldest_worker: row.try_get("oldest_worker")?,
        })
    };
    rows.iter().map(read).collect()
}
