//! One unit of work: `BEGIN IMMEDIATE`, claim, handlers, seal and commit.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};

use idem_core::{
    StoreError, Tx, failpoint,
    message::OrderingKey,
    outbox::{AppendError, Appended},
    results::KeptResult,
    store::{Ahead, Claim, ClaimError, Claimed, CommitError, Found, Recorded, ScopeId, UnitOfWork, UnitOptions, boxed},
};
use idem_sql::from_microseconds;
use sqlx::{AssertSqlSafe, Database, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{SqliteStore, claim, clock, codes, driver::Driver, error, session::SqliteSession};

/// sqlx's own counter of open transactions, so that a handler's nested `begin()` becomes a savepoint in the unit's
/// transaction.
type Manager = <sqlx::Sqlite as Database>::TransactionManager;

/// A running transaction on a [`SqliteSession`]. Dropping it interrupts what runs and closes the connection, which rolls back.
pub struct SqliteUnit {
    pub(super) driver: Arc<Driver>,
    pub(super) session: SqliteSession,
    options: UnitOptions,
    /// This process's turn to write; given up with the unit.
    turn: Option<OwnedSemaphorePermit>,
    /// When its records were processed, in µs since the Unix epoch.
    processed_at: Option<i64>,
    /// The write lock was not free, and the transaction began as a reader.
    reader: bool,
    /// Whether rows of any ordering key of the claimed consumers are not over.
    waits: bool,
}

impl fmt::Debug for SqliteUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteUnit")
            .field("reader", &self.reader)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl SqliteUnit {
    /// Begins with the write lock where it is free, which is nearly always. Otherwise as a reader: the claim waits for the
    /// lock, because the engine gives a claim the time for it.
    pub(super) async fn begin(
        driver: Arc<Driver>,
        session: SqliteSession,
        options: UnitOptions,
    ) -> Result<Self, StoreError> {
        let failed = |error| error::of_unit("beginning a transaction", error);
        let turn = driver.connections.turn_at_once();
        let mut unit = Self { driver, session, options, turn, processed_at: None, reader: false, waits: false };
        unit.session.guard.begin();
        if unit.turn.is_none() || !unit.take_write_lock(Duration::ZERO).await.map_err(failed)? {
            unit.turn = None;
            unit.reader = true;
            // A handler without a key runs on this transaction too. If it writes, it waits for the lock by itself.
            unit.set_busy(options.busy_timeout).await.map_err(failed)?;
            Manager::begin(unit.connection(), None).await.map_err(failed)?;
        }
        Ok(unit)
    }

    /// Begins with the write lock; `false` where another connection kept it for the whole wait.
    async fn take_write_lock(&mut self, wait: Duration) -> Result<bool, sqlx::Error> {
        self.set_busy(wait).await?;
        match Manager::begin(self.connection(), Some("BEGIN IMMEDIATE".into_sql_str())).await {
            Ok(()) => Ok(true),
            Err(error) if error::is_busy(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets how long SQLite waits for another connection's write, where it differs from what is set. It stays in force,
    /// and touches nothing once the lock is held.
    async fn set_busy(&mut self, wait: Duration) -> Result<(), sqlx::Error> {
        let milliseconds = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(i32::MAX as u64);
        if self.session.busy != Some(milliseconds) {
            self.session.busy = None;
            let pragma = format!("PRAGMA busy_timeout = {milliseconds}");
            sqlx::raw_sql(AssertSqlSafe(pragma)).execute(self.connection()).await?;
            self.session.busy = Some(milliseconds);
        }
        Ok(())
    }

    /// Turns a reader into a writer: waits for this process's turn and then for others, both within the busy timeout.
    async fn become_writer(&mut self) -> Result<(), ClaimError> {
        let failed = |error| error::of_unit("waiting for the write lock", error);
        let started = Instant::now();
        self.turn = self.driver.connections.turn(self.options.busy_timeout).await;
        if self.turn.is_none() {
            return Err(ClaimError::Held);
        }
        // A reader that has read cannot become a writer once another has written, so it begins anew.
        Manager::rollback(self.connection()).await.map_err(failed)?;
        self.session.guard.begin();
        let left = self.options.busy_timeout.saturating_sub(started.elapsed());
        if self.take_write_lock(left).await.map_err(failed)? {
            self.reader = false;
            return Ok(());
        }
        self.turn = None;
        Manager::begin(self.connection(), None).await.map_err(failed)?;
        Err(ClaimError::Held)
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.session.connection
    }

    fn depth(&self) -> usize {
        Manager::get_transaction_depth(&self.session.connection)
    }

    /// Rolls back everything that is open, savepoints included. Answers whether the connection can be used again.
    async fn undo(&mut self) -> Result<bool, sqlx::Error> {
        // Where SQLite or a handler has ended the transaction, sqlx still counts it, and its ROLLBACK finds nothing.
        let as_begun = self.session.guard.is_open();
        let mut answer = Ok(());
        for _ in 0..self.depth() {
            answer = answer.and(Manager::rollback(self.connection()).await);
        }
        self.session.guard.end();
        match answer {
            Ok(()) => Ok(as_begun),
            Err(error) if as_begun || matches!(error, sqlx::Error::WorkerCrashed) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Sends the COMMIT. The failpoint strikes when it is on its way and its answer has not been read.
    async fn send_commit(&mut self) -> Result<Result<(), sqlx::Error>, failpoint::Injected> {
        let mut commit = pin!(Manager::commit(self.connection()));
        let sent = poll_fn(|context| Poll::Ready(commit.as_mut().poll(context))).await;
        idem_core::failpoint!(COMMIT_SENT)?;
        Ok(match sent {
            Poll::Ready(answer) => answer,
            Poll::Pending => commit.await,
        })
    }

    /// The transaction is certainly not committed. The session is closed with the unit where SQLite or a handler has ended it.
    async fn refused(mut self, error: StoreError) -> (Option<SqliteSession>, Result<(), CommitError>) {
        // An error of the rollback changes nothing: closing the connection does the same.
        let _ = self.undo().await;
        (None, Err(CommitError::RolledBack(error)))
    }
}

impl UnitOfWork<SqliteStore> for SqliteUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        if self.reader {
            self.become_writer().await?;
        }
        let UnitOptions { run, lane, .. } = self.options;
        // All records of a unit have one time, as a server's transaction gives it.
        let now = *self.processed_at.get_or_insert_with(clock::now);
        let (answers, waits) =
            claim::claim(&mut self.session.connection, &self.driver.unit_statements, claims, (run, lane), now).await?;
        self.waits = waits;
        Ok(answers)
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        claim::read(&mut self.session.connection, &self.driver.unit_statements, claims).await
    }

    fn anything_waits(&self) -> bool {
        self.waits
    }

    async fn ahead(&mut self, keys: &[(ScopeId, OrderingKey)]) -> Result<Vec<Ahead>, StoreError> {
        claim::ahead(&mut self.session.connection, &self.driver.unit_statements, keys).await
    }

    fn tx(&mut self) -> Tx<'_, SqliteStore> {
        Tx::new(self.connection())
    }

    fn check(&self) -> Result<(), StoreError> {
        let problem = match self.depth() {
            _ if !self.session.guard.is_open() => {
                "a handler, or an error of SQLite, has ended the transaction".to_owned()
            }
            1 => return Ok(()),
            0 => "a handler has ended the transaction".to_owned(),
            depth => format!("a handler left {} nested transactions open", depth - 1),
        };
        Err(StoreError::Unsealed { problem, source: None })
    }

    async fn append(&mut self, appended: &Appended) -> Result<(), AppendError> {
        idem_sql::append(self, appended).await
    }

    fn processed_at(&self, _: &Claim) -> Option<SystemTime> {
        self.processed_at.map(from_microseconds)
    }

    async fn read_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        self.kept_results(claims).await
    }

    async fn look_up(&mut self, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        claim::look_up(&mut self.session.connection, &self.driver.unit_statements, claims).await
    }

    async fn commit(mut self) -> (Option<SqliteSession>, Result<(), CommitError>) {
        if let Err(error) = self.check() {
            return self.refused(error).await;
        }
        if !self.session.guard.seal() {
            let problem = "the transaction ended just before its commit".to_owned();
            return self.refused(StoreError::Unsealed { problem, source: None }).await;
        }
        let answer = match self.send_commit().await {
            Ok(answer) => answer,
            Err(injected) => return unknown(boxed(injected)),
        };
        // Only reading transactions are committed without SQLite asking.
        let committed = self.session.guard.committed() || self.reader;
        match answer {
            Ok(()) if committed && self.depth() == 0 => {
                self.session.guard.end();
                (Some(self.session), Ok(()))
            }
            Ok(()) => unknown("the commit went well, but a transaction is still open".into()),
            Err(error) if certainly_refused(&error) => self.refused(error::of_unit("committing", error)).await,
            // A disk that failed in mid-commit may hold all of it.
            Err(error) => unknown(boxed(error)),
        }
    }

    async fn rollback(mut self) -> Result<Option<SqliteSession>, StoreError> {
        let is_sound = self.undo().await.map_err(|error| error::of_unit("rolling back", error))?;
        Ok(is_sound.then_some(self.session))
    }

    async fn abandon(mut self) {
        self.session.guard.stop();
        // The connection is closed next, which rolls back what this could not.
        let _ = self.undo().await;
    }
}

/// The commit may be done or not, so nothing may be sent after it.
fn unknown(error: idem_core::BoxError) -> (Option<SqliteSession>, Result<(), CommitError>) {
    (None, Err(CommitError::Unknown(error)))
}

/// Whether SQLite refused a COMMIT before it wrote anything: another connection in the way, or a constraint that was
/// deferred to the end.
fn certainly_refused(error: &sqlx::Error) -> bool {
    matches!(error::code(error).map(codes::primary), Some(codes::BUSY | codes::CONSTRAINT))
}
