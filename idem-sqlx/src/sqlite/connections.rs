//! The store's own small connections, and the turn that units and bookkeeping take at the one write lock.

use std::{sync::Arc, time::Duration};

use idem_core::{StoreError, store::boxed};
use sqlx::{ConnectOptions, Database, SqlSafeStr, SqliteConnection, sqlite::SqliteConnectOptions};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

use super::{error, options::SqliteOptions};

type Manager = <sqlx::Sqlite as Database>::TransactionManager;

/// How often the change to WAL mode is tried: it needs the file for itself, and does not wait for it by itself.
const WAL_ATTEMPTS: u32 = 50;
const WAL_PAUSE: Duration = Duration::from_millis(100);

/// One connection that reads and one that writes, each opened when it is first needed. Two, so that a look at the
/// controls never waits behind a write, which waits for the session.
pub(super) struct Connections {
    options: SqliteConnectOptions,
    reader: Mutex<Option<SqliteConnection>>,
    writer: Mutex<Option<SqliteConnection>>,
    /// SQLite's own waiting is a poll without order, in which a busy session would starve bookkeeping. This queue is fair.
    turn: Arc<Semaphore>,
    timeout: Duration,
}

impl Connections {
    pub(super) fn new(options: &SqliteOptions) -> Self {
        Self {
            options: options.connect_options(),
            reader: Mutex::default(),
            writer: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
            timeout: options.bookkeeping_timeout,
        }
    }

    pub(super) fn options(&self) -> &SqliteConnectOptions {
        &self.options
    }

    /// This process's turn to write, if it is free and no other unit waits for it.
    pub(super) fn turn_at_once(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turn).try_acquire_owned().ok()
    }

    /// Waits for this process's turn to write; `None` when it did not come in time.
    pub(super) async fn turn(&self, timeout: Duration) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.turn).acquire_owned();
        tokio::time::timeout(timeout, turn).await.ok()?.ok()
    }

    /// The connection for reading.
    pub(super) async fn read(&self, doing: &'static str) -> Result<Borrowed<'_>, StoreError> {
        Borrowed::take(self, &self.reader, None, doing).await
    }

    /// The connection for writing, once it is this call's turn.
    pub(super) async fn write(&self, doing: &'static str) -> Result<Borrowed<'_>, StoreError> {
        let turn = self.turn(self.timeout).await.ok_or_else(|| self.too_late(doing))?;
        Borrowed::take(self, &self.writer, Some(turn), doing).await
    }

    fn too_late(&self, doing: &'static str) -> StoreError {
        let text = format!("a unit of work held SQLite's one write lock for more than {:?}", self.timeout);
        StoreError::Unavailable { doing, source: text.into() }
    }

    /// Puts the file into WAL mode, where it is not yet.
    pub(super) async fn use_wal(&self) -> Result<(), StoreError> {
        let doing = "opening the database";
        let mut connection = self.write(doing).await?;
        let mut mode = String::new();
        for _ in 0..WAL_ATTEMPTS {
            match sqlx::query_scalar("PRAGMA journal_mode = WAL").fetch_one(connection.get()?).await {
                Ok(answer) => {
                    mode = answer;
                    break;
                }
                Err(error) if error::is_busy(&error) => tokio::time::sleep(WAL_PAUSE).await,
                Err(error) => return Err(error::of_bookkeeping(doing, error)),
            }
        }
        connection.done();
        if mode.eq_ignore_ascii_case("wal") {
            return Ok(());
        }
        Err(StoreError::Refused {
            problem: format!("the file cannot be put into WAL mode: its journal mode is {mode:?}"),
            cure: "Put it on a local file system and close other programs that have it open".to_owned(),
        })
    }
}

/// A connection of the store's for the length of one call. Unless the call says that it is done, the connection is
/// closed: a dropped or failed call may have left anything on it.
pub(super) struct Borrowed<'c> {
    slot: MutexGuard<'c, Option<SqliteConnection>>,
    connection: Option<SqliteConnection>,
    doing: &'static str,
    _turn: Option<OwnedSemaphorePermit>,
}

impl<'c> Borrowed<'c> {
    async fn take(
        connections: &'c Connections,
        slot: &'c Mutex<Option<SqliteConnection>>,
        turn: Option<OwnedSemaphorePermit>,
        doing: &'static str,
    ) -> Result<Self, StoreError> {
        let mut slot = slot.lock().await;
        let connection = match slot.take() {
            Some(connection) => connection,
            None => connections.options.connect().await.map_err(|error| error::of_bookkeeping(doing, error))?,
        };
        Ok(Self { slot, connection: Some(connection), doing, _turn: turn })
    }

    /// The connection.
    pub(super) fn get(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        let doing = self.doing;
        self.connection().map_err(|error| StoreError::Unavailable { doing, source: boxed(error) })
    }

    /// The same, for what answers with the driver's own errors.
    pub(super) fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// An error of a statement on it.
    pub(super) fn failed(&self) -> impl Fn(sqlx::Error) -> StoreError + 'static {
        let doing = self.doing;
        move |error| error::of_bookkeeping(doing, error)
    }

    /// Begins a transaction that writes.
    pub(super) async fn begin(&mut self) -> Result<(), StoreError> {
        let failed = self.failed();
        Manager::begin(self.get()?, Some("BEGIN IMMEDIATE".into_sql_str())).await.map_err(failed)
    }

    /// Commits it, and ends the call.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        let failed = self.failed();
        Manager::commit(self.get()?).await.map_err(failed)?;
        self.done();
        Ok(())
    }

    /// The call is over and the connection as it was found.
    pub(super) fn done(mut self) {
        *self.slot = self.connection.take();
    }
}
