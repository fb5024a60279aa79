//! Runs the migrations, through any driver.

use std::{error::Error, future::Future};

use idem_core::{BoxError, ErrorClass, StoreError};

use crate::{
    check::verify::SequenceBehind,
    run::{
        bookkeeping::sequences,
        driver::Parameter,
        role_default::RoleDefault,
        row::{Row, session},
    },
    text::{
        dialect::Dialect,
        migrations::{Migration, MigrationStatements, POSTGRES_MIGRATIONS, SQLITE_MIGRATIONS},
        name::SchemaName,
        plan::{AppliedMigration, MigrationError, pending_migrations, version_to_revert},
    },
};

/// Why migrations did not run. Those that were applied before stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
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
        /// The driver's error.
        source: BoxError,
    },
}

/// A connection that runs migrations, and nothing else meanwhile. Dropping it while a transaction is open must roll that
/// back.
pub trait MigrationConnection: Send {
    /// The driver's error.
    type Error: Error + Send + Sync + 'static;

    /// Runs a text of several statements and no parameter.
    fn batch(&mut self, text: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Runs one statement, and answers its rows.
    fn rows(
        &mut self,
        text: &str,
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, Self::Error>> + Send;

    /// The meaning of an error that is no migration's own.
    fn store_error(doing: &'static str, error: Self::Error) -> StoreError;

    /// The SQLSTATE that a server gave with an error.
    fn sqlstate(error: &Self::Error) -> Option<String> {
        let _ = error;
        None
    }
}

/// Another session has the lock of migrations, or that of the schema's making.
#[derive(Debug, thiserror::Error)]
#[error("{holder} holds the lock of the migrations of schema {schema}: wait until it has ended, or end it")]
struct LockHeldError {
    holder: String,
    schema: SchemaName,
}

/// How often the schema and its table of migrations are made, where another runner makes them at the same time.
const BOOTSTRAPS_MAX: usize = 10;

/// Whether another runner was first to make the schema or the table: both look before they make it.
const MADE_MEANWHILE: [&str; 3] = ["23505", "42P06", "42P07"];

/// A lock was not free in time.
const NOT_FREE: &str = "55P03";

const PREPARING: &str = "preparing the migration";

/// Brings a schema to the version of this build, or takes its newest migration back, by the contract of [`Migration`].
#[derive(Debug)]
pub struct Migrator<'s> {
    schema: &'s SchemaName,
    known: &'s [Migration],
    statements: MigrationStatements,
}

impl<'s> Migrator<'s> {
    /// Of one schema, with this build's migrations.
    #[must_use]
    pub fn new(dialect: Dialect, schema: &'s SchemaName) -> Self {
        let known = match dialect {
            Dialect::Postgres => POSTGRES_MIGRATIONS,
            Dialect::Sqlite => SQLITE_MIGRATIONS,
        };
        Self::with(dialect, schema, known)
    }

    /// Of one schema, with these migrations, oldest first: for tests of the effects of migrations.
    #[must_use]
    pub fn with(dialect: Dialect, schema: &'s SchemaName, known: &'s [Migration]) -> Self {
        Self { schema, known, statements: MigrationStatements::new(dialect, schema) }
    }

    /// Applies the pending migrations, and answers the versions that it applied: none where there was nothing to do.
    /// Several may run at once; each migration is applied by one of them.
    ///
    /// # Errors
    /// [`MigrateError`]; each migration is one transaction, so nothing is half done. Drop the connection after an error.
    ///
    /// # Cancel safety
    /// Cancel safe, if the connection is dropped with the call.
    pub async fn up<C: MigrationConnection>(&self, connection: &mut C) -> Result<Vec<u32>, MigrateError> {
        let mut versions = Vec::new();
        // One transaction each, and one that finds nothing to do.
        while let Some(version) = self.step(connection, Way::Up).await? {
            versions.push(version);
        }
        Ok(versions)
    }

    /// Takes the newest migration back, and answers its version; `None` where there is none. The first one is never taken
    /// back while `processed_messages` holds a record.
    ///
    /// # Errors
    /// As [`up`](Self::up).
    ///
    /// # Cancel safety
    /// As [`up`](Self::up).
    pub async fn down<C: MigrationConnection>(&self, connection: &mut C) -> Result<Option<u32>, MigrateError> {
        self.step(connection, Way::Down).await
    }

    /// The migrations that were applied, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] of the statement; the table of migrations must exist.
    pub async fn applied<C: MigrationConnection>(
        &self,
        connection: &mut C,
    ) -> Result<Vec<AppliedMigration>, StoreError> {
        let rows = connection.rows(&self.statements.applied, &[]).await;
        let rows = rows.map_err(|error| C::store_error("reading the applied migrations", error))?;
        let read = |row: &Row| {
            Ok(AppliedMigration {
                version: u32::try_from(row.get::<i32>("version")?).unwrap_or(u32::MAX),
                name: row.get("name")?,
                checksum: row.get("checksum")?,
                oldest_worker: row.get("oldest_worker")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// One migration in a transaction, with its row in the table of migrations.
    async fn step<C: MigrationConnection>(&self, connection: &mut C, way: Way) -> Result<Option<u32>, MigrateError> {
        let begin = self.begin(connection).await?;
        self.begin_with_lock(connection, begin).await?;
        let applied = self.applied(connection).await?;
        let migration = match way {
            Way::Up => pending_migrations(self.known, &applied)?.first(),
            Way::Down => version_to_revert(self.known, &applied)?,
        };
        if let Some(migration) = migration {
            let (version, name) = (migration.version, migration.name);
            let failed = |error| MigrateError::Failed { version, name, source: Box::new(error) };
            self.change(connection, migration, way).await.map_err(failed)?;
        } else if matches!(way, Way::Up) {
            self.catch_up(connection).await?;
        }
        // Everything before has answered without an error, so this transaction can be committed.
        connection.batch("COMMIT").await.map_err(|error| C::store_error("committing the migration", error))?;
        Ok(migration.map(|migration| migration.version))
    }

    /// Begins a transaction, makes the table of migrations where it is missing, and takes its lock.
    async fn begin_with_lock<C: MigrationConnection>(
        &self,
        connection: &mut C,
        begin: &str,
    ) -> Result<(), MigrateError> {
        let preparing = |error| C::store_error(PREPARING, error);
        let mut tries = 0;
        loop {
            tries += 1;
            connection.batch(begin).await.map_err(preparing)?;
            let mut done = connection.batch(&self.statements.bootstrap).await;
            if let (Ok(()), Some(lock)) = (&done, &self.statements.lock) {
                done = connection.batch(lock).await;
            }
            let Err(error) = done else { return Ok(()) };
            let code = C::sqlstate(&error);
            let is_made_meanwhile = code.as_deref().is_some_and(|code| MADE_MEANWHILE.contains(&code));
            if is_made_meanwhile && tries < BOOTSTRAPS_MAX {
                connection.batch("ROLLBACK").await.map_err(preparing)?;
            } else if code.as_deref() == Some(NOT_FREE) {
                return Err(self.held(connection).await.into());
            } else {
                return Err(preparing(error).into());
            }
        }
    }

    /// The lock was not free in time: the error names the session that has it.
    async fn held<C: MigrationConnection>(&self, connection: &mut C) -> StoreError {
        let holder = async {
            connection.batch("ROLLBACK").await.ok()?;
            let rows = connection.rows(self.statements.holder.as_deref()?, &[]).await.ok()?;
            session(rows.first()?).ok()
        };
        let holder = holder.await.unwrap_or_else(|| "another session".to_owned());
        StoreError::failed(PREPARING, ErrorClass::Infrastructure, LockHeldError { holder, schema: self.schema.clone() })
    }

    /// Sets sequences forward that are behind their rows, as after a restore of the rows alone.
    async fn catch_up<C: MigrationConnection>(&self, connection: &mut C) -> Result<(), StoreError> {
        // Migrations of a test's own, or those of a newer release, may make no such function.
        let is_whole = self.known.len() == POSTGRES_MIGRATIONS.len();
        let Some(text) = self.statements.catch_up.as_deref().filter(|_| is_whole) else { return Ok(()) };
        let rows = connection.rows(text, &[]).await;
        for row in rows.map_err(|error| C::store_error("comparing sequences with their rows", error))? {
            let SequenceBehind { sequence, next, highest, .. } = sequences::read(&row)?;
            tracing::warn!(sequence, next, highest, "a sequence was behind its rows, and was set forward");
        }
        Ok(())
    }

    /// How a transaction begins that may write, also where the role is read only by default.
    async fn begin<C: MigrationConnection>(&self, connection: &mut C) -> Result<&'static str, StoreError> {
        let Some(fence) = &self.statements.fence else { return Ok("BEGIN IMMEDIATE") };
        let rows = connection.rows(fence, &[]).await.map_err(|error| C::store_error("looking for a fence", error))?;
        let role_default = RoleDefault::default();
        role_default.note(&rows)?;
        Ok(role_default.begin())
    }

    async fn change<C: MigrationConnection>(
        &self,
        connection: &mut C,
        migration: &Migration,
        way: Way,
    ) -> Result<(), C::Error> {
        let version = i32::try_from(migration.version).unwrap_or(i32::MAX).into();
        match way {
            Way::Up => {
                connection.batch(&migration.up(self.schema)).await?;
                let checksum = migration.checksum();
                let record = [version, migration.name.into(), checksum.as_str().into(), migration.oldest_worker.into()];
                connection.rows(&self.statements.record, &record).await?;
            }
            Way::Down => {
                connection.batch(&migration.down(self.schema)).await?;
                connection.rows(&self.statements.forget, &[version]).await?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Up,
    Down,
}
