//! Runs the migrations, by the contract of [`idem_schema::Migration`].

use idem_core::StoreError;
use idem_schema::{
    AppliedMigration, Dialect, Migration, MigrationError, MigrationStatements, POSTGRES_MIGRATIONS, begin_books,
    is_by_role, pending_migrations, version_to_revert,
};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::{Postgres, error};

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
        source: sqlx::Error,
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
            match self.step(POSTGRES_MIGRATIONS, Way::Up).await? {
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
        Ok(match self.step(POSTGRES_MIGRATIONS, Way::Down).await? {
            Step::Done(version) => Some(version),
            Step::Nothing => None,
        })
    }

    /// One migration in a transaction and on a connection of its own, which is closed afterwards however it ends.
    async fn step(&self, known: &'static [Migration], way: Way) -> Result<Step, MigratePostgresError> {
        let mut connection = self.connect_with(&self.shared.options.connection).await?;
        let begin =
            self.begin_on(&mut connection).await.map_err(|source| error::store("preparing the migration", source))?;
        let runner =
            Runner { statements: MigrationStatements::new(Dialect::Postgres, self.schema()), store: self, begin };
        let step = runner.run(&mut connection, known, way).await;
        let _ = sqlx::Connection::close(connection).await;
        step
    }
}

impl Postgres {
    /// How a transaction begins that may write, where the role is read only by default.
    async fn begin_on(&self, connection: &mut PgConnection) -> Result<&'static str, sqlx::Error> {
        let look = sqlx::raw_sql(AssertSqlSafe(&*self.sql().read_only_default)).fetch_one(connection).await?;
        // The simple protocol answers in texts.
        let (read_only, source): (String, String) = (look.try_get_unchecked(0)?, look.try_get_unchecked(1)?);
        Ok(begin_books(read_only == "t" && is_by_role(&source)))
    }
}

struct Runner<'s> {
    statements: MigrationStatements,
    store: &'s Postgres,
    begin: &'static str,
}

impl Runner<'_> {
    async fn run(
        &self,
        connection: &mut PgConnection,
        known: &'static [Migration],
        way: Way,
    ) -> Result<Step, MigratePostgresError> {
        let preparing = |source| error::store("preparing the migration", source);
        simple(connection, self.begin).await.map_err(preparing)?;
        if let Some(lock) = &self.statements.lock {
            simple(connection, lock).await.map_err(preparing)?;
        }
        let bootstrap = simple(connection, &self.statements.bootstrap).await;
        bootstrap.map_err(preparing)?;
        let applied = self.applied(connection).await.map_err(preparing)?;
        let migration = match way {
            Way::Up => pending_migrations(known, &applied)?.first(),
            Way::Down => version_to_revert(known, &applied)?,
        };
        let step = match migration {
            Some(migration) => {
                let failed =
                    |source| MigratePostgresError::Failed { version: migration.version, name: migration.name, source };
                self.change(connection, migration, way).await.map_err(failed)?;
                Step::Done(migration.version)
            }
            None => Step::Nothing,
        };
        simple(connection, "COMMIT").await.map_err(|source| error::store("committing the migration", source))?;
        Ok(step)
    }

    async fn applied(&self, connection: &mut PgConnection) -> Result<Vec<AppliedMigration>, sqlx::Error> {
        let query = sqlx::query(AssertSqlSafe(self.statements.applied.as_str())).persistent(false);
        let read = |row: &sqlx::postgres::PgRow| {
            Ok(AppliedMigration {
                version: u32::try_from(row.try_get::<i32, _>("version")?).unwrap_or(u32::MAX),
                name: row.try_get("name")?,
                checksum: row.try_get("checksum")?,
                oldest_worker: row.try_get("oldest_worker")?,
            })
        };
        query.fetch_all(connection).await?.iter().map(read).collect()
    }

    async fn change(&self, connection: &mut PgConnection, migration: &Migration, way: Way) -> Result<(), sqlx::Error> {
        let version = i32::try_from(migration.version).unwrap_or(i32::MAX);
        let statements = &self.statements;
        match way {
            Way::Up => {
                simple(connection, &migration.up(self.store.schema())).await?;
                let record = sqlx::query(AssertSqlSafe(statements.record.as_str())).persistent(false).bind(version);
                let record = record.bind(migration.name).bind(migration.checksum()).bind(migration.oldest_worker);
                record.execute(connection).await?;
            }
            Way::Down => {
                simple(connection, &migration.down(self.store.schema())).await?;
                let forget = sqlx::query(AssertSqlSafe(statements.forget.as_str())).persistent(false).bind(version);
                forget.execute(connection).await?;
            }
        }
        Ok(())
    }
}

/// Several statements in the simple protocol.
async fn simple(connection: &mut PgConnection, text: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.map(|_| ())
}
