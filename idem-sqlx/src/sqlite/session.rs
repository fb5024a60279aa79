//! A session: one connection that is owned, guarded and never shared.

use std::fmt;

use idem_core::{StoreError, store::boxed};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::{SqliteStore, error, seal::OwnGuard};

/// A connection on which units of work run. Dropping it interrupts what runs on it and closes it.
///
/// Its commit and rollback hooks and its progress handler belong to idem: a handler must not replace them. Nor may it
/// `ATTACH` another database and write there: in WAL mode SQLite commits each file by itself.
pub struct SqliteSession {
    /// Before the connection: what runs is interrupted before it is closed.
    pub(super) guard: OwnGuard,
    pub(super) connection: SqliteConnection,
    /// The busy timeout in force, in milliseconds.
    pub(super) busy: Option<u64>,
}

impl fmt::Debug for SqliteSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteSession").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl SqliteSession {
    async fn new(mut connection: SqliteConnection) -> Result<Self, sqlx::Error> {
        let guard = OwnGuard::attach(&mut connection).await?;
        Ok(Self { guard, connection, busy: None })
    }

    /// The connection, with idem's hooks taken off; `None` where that fails.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call closes the connection.
    pub async fn into_connection(self) -> Option<SqliteConnection> {
        let Self { guard: _guard, mut connection, .. } = self;
        OwnGuard::detach(&mut connection).await.ok()?;
        Some(connection)
    }
}

impl SqliteStore {
    /// Makes a session of a connection of the application's, for [`DedupConsumer::process_on`]. It comes back by
    /// [`SqliteSession::into_connection`]. Its commit and rollback hooks and its progress handler are replaced, and its busy
    /// timeout changes.
    ///
    /// [`DedupConsumer::process_on`]: idem_core::DedupConsumer::process_on
    ///
    /// # Errors
    /// [`StoreError::Refused`] when it is in a transaction or has another file open than this store.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call closes the connection.
    pub async fn adopt(&self, mut connection: SqliteConnection) -> Result<SqliteSession, StoreError> {
        if connection.is_in_transaction() {
            return Err(StoreError::Refused {
                problem: "the connection is in a transaction".to_owned(),
                cure: "Commit or roll it back before handing the connection over".to_owned(),
            });
        }
        let doing = "taking a connection over";
        let failed = |error| error::of_bookkeeping(doing, error);
        let file: String = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(&mut connection)
            .await
            .map_err(failed)?;
        let ours = tokio::fs::canonicalize(&self.driver().options.path).await;
        let ours = ours.map_err(|error| StoreError::Unavailable { doing, source: boxed(error) })?;
        if tokio::fs::canonicalize(&file).await.ok().as_deref() != Some(ours.as_path()) {
            return Err(StoreError::Refused {
                problem: "the connection has another database open than the store".to_owned(),
                cure: "Hand over a connection to the file that holds idem's tables".to_owned(),
            });
        }
        SqliteSession::new(connection).await.map_err(failed)
    }

    pub(super) async fn open_session(&self) -> Result<SqliteSession, StoreError> {
        let connect = async { SqliteSession::new(self.driver().connections.options().connect().await?).await };
        connect.await.map_err(|error| error::of_bookkeeping("opening the database", error))
    }
}
