//! The connection that a handler writes through.

use std::collections::BTreeMap;

use idem_core::{
    Bytes, ErrorClass,
    hash::PayloadHash,
    outbox::{EventNumber, NewEvent},
    results::NewResult,
};

use super::{
    Defect, Operation, Shared,
    fault::Met,
    outbox::EventKey,
    state::{RecordKey, Rows, UnitId, Write, apply_to},
};

/// Why a statement on a [`MemoryStore`](super::MemoryStore) failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The table has a row of this key already. The transaction is spoilt, as PostgreSQL does it.
    #[error("table {table:?} has a row {key:?} already")]
    NotUnique {
        /// The table.
        table: String,
        /// The row's key.
        key: String,
    },
    /// An earlier statement of this transaction failed, so nothing but a rollback is taken any more.
    #[error("the transaction is aborted; statements are ignored until its end")]
    Aborted,
    /// The transaction is over, because the handler ended it.
    #[error("there is no transaction")]
    NoTransaction,
    /// A COMMIT that idem did not send was refused.
    #[error("idem refused a COMMIT that it did not send")]
    Unsealed,
    /// A deferred constraint refused the commit.
    #[error("a deferred constraint refused the commit")]
    Deferred,
    /// No nested transaction is open.
    #[error("no nested transaction is open")]
    NotNested,
    /// The connection is gone.
    #[error("the connection is lost")]
    ConnectionLost,
    /// The table of records is not there.
    #[error("the table of records is missing")]
    NoTable,
    /// Two units waited for each other.
    #[error("deadlock detected")]
    Deadlock,
    /// A fault that a test injected.
    #[error("injected: {0}")]
    Injected(ErrorClass),
}

impl MemoryError {
    /// The class, by which the engine decides what to do about it.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotUnique { .. } | Self::Deferred => ErrorClass::Permanent,
            Self::Aborted | Self::NoTransaction | Self::Unsealed | Self::NotNested => ErrorClass::Transient,
            Self::ConnectionLost | Self::NoTable => ErrorClass::Infrastructure,
            Self::Deadlock => ErrorClass::RunUnitAgain,
            Self::Injected(class) => *class,
        }
    }

    /// The text without the values of the statement (S4).
    pub(super) fn without_values(&self) -> String {
        match self {
            Self::NotUnique { .. } => "a unique key of a table was broken".to_owned(),
            Self::Aborted
            | Self::NoTransaction
            | Self::Unsealed
            | Self::Deferred
            | Self::NotNested
            | Self::ConnectionLost
            | Self::NoTable
            | Self::Deadlock
            | Self::Injected(_) => self.to_string(),
        }
    }
}

/// The uncommitted work of a transaction.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: UnitId,
    pub(super) claimed: Vec<RecordKey>,
    /// Payloads whose attempts the commit forgets, in a store with a single writer.
    pub(super) forgets: Vec<(RecordKey, PayloadHash)>,
    pub(super) writes: Vec<Write>,
    pub(super) events: Vec<(EventNumber, EventKey, NewEvent)>,
    pub(super) results: Vec<NewResult>,
    /// How many writes there were when each open nested transaction began.
    pub(super) nested: Vec<usize>,
    pub(super) status: Status,
    pub(super) breaks_deferred: bool,
    pub(super) lost: bool,
    /// In which of the server's eras it began.
    pub(super) era: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Open,
    /// A statement failed.
    Aborted,
    /// A handler ended the transaction.
    Ended,
}

/// The connection of a [`MemoryStore`](super::MemoryStore), as a handler has it: tables of rows with a key and a value.
///
/// Every method is one statement. Any error but [`MemoryError::NotNested`] spoils the transaction.
///
/// # Cancel safety
/// A dropped call has happened or not, and the transaction can go on.
#[derive(Debug)]
pub struct MemoryConnection<'t> {
    pub(super) shared: &'t Shared,
    pub(super) pending: &'t mut Pending,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl MemoryConnection<'_> {
    /// Writes a row, in place of one with the same key.
    ///
    /// # Errors
    /// [`MemoryError`] where the transaction or the connection is spoilt.
    pub async fn put(&mut self, table: &str, key: &str, value: impl Into<Bytes>) -> Result<(), MemoryError> {
        self.statement().await?;
        self.write(Write::Put { table: table.to_owned(), key: key.to_owned(), value: value.into() });
        self.shared.answered().await;
        Ok(())
    }

    /// Adds a row, beside others with the same key.
    ///
    /// # Errors
    /// [`MemoryError`] where the transaction or the connection is spoilt.
    pub async fn append(&mut self, table: &str, key: &str, value: impl Into<Bytes>) -> Result<(), MemoryError> {
        self.statement().await?;
        self.write(Write::Append { table: table.to_owned(), key: key.to_owned(), value: value.into() });
        self.shared.answered().await;
        Ok(())
    }

    /// Adds a row whose key must be new in its table.
    ///
    /// # Errors
    /// [`MemoryError::NotUnique`] where it is not; the transaction is then spoilt.
    pub async fn insert(&mut self, table: &str, key: &str, value: impl Into<Bytes>) -> Result<(), MemoryError> {
        if self.get(table, key).await?.is_some() {
            self.pending.status = Status::Aborted;
            return Err(MemoryError::NotUnique { table: table.to_owned(), key: key.to_owned() });
        }
        self.write(Write::Append { table: table.to_owned(), key: key.to_owned(), value: value.into() });
        Ok(())
    }

    /// The rows of a table as this transaction sees them: the committed ones, and its own writes.
    ///
    /// # Errors
    /// [`MemoryError`] where the transaction or the connection is spoilt.
    pub async fn rows(&mut self, table: &str) -> Result<Vec<(String, Bytes)>, MemoryError> {
        self.statement().await?;
        let committed: Rows = self.shared.state().tables.get(table).cloned().unwrap_or_default();
        let mut tables = BTreeMap::from([(table.to_owned(), committed)]);
        self.pending.writes.iter().for_each(|write| apply_to(&mut tables, write));
        Ok(tables.remove(table).unwrap_or_default())
    }

    /// The value of a row, the first where there are several, as this transaction sees it.
    ///
    /// # Errors
    /// [`MemoryError`] where the transaction or the connection is spoilt.
    pub async fn get(&mut self, table: &str, key: &str) -> Result<Option<Bytes>, MemoryError> {
        let rows = self.rows(table).await?;
        Ok(rows.into_iter().find(|(existing, _)| existing == key).map(|(_, value)| value))
    }

    /// Opens a nested transaction, which [`Self::commit_nested`] or [`Self::rollback_nested`] must end before the
    /// handler returns.
    ///
    /// # Errors
    /// [`MemoryError`] where the transaction or the connection is spoilt.
    pub async fn begin_nested(&mut self) -> Result<(), MemoryError> {
        self.statement().await?;
        self.pending.nested.push(self.pending.writes.len());
        Ok(())
    }

    /// Makes what was written since [`Self::begin_nested`] a part of the transaction around it.
    ///
    /// # Errors
    /// [`MemoryError::NotNested`] where none is open.
    pub async fn commit_nested(&mut self) -> Result<(), MemoryError> {
        self.statement().await?;
        self.pending.nested.pop().map(|_| ()).ok_or(MemoryError::NotNested)
    }

    /// Undoes what was written since [`Self::begin_nested`], and a failed statement with it.
    ///
    /// # Errors
    /// [`MemoryError::NotNested`] where none is open.
    pub async fn rollback_nested(&mut self) -> Result<(), MemoryError> {
        let writes = self.pending.nested.pop().ok_or(MemoryError::NotNested)?;
        self.pending.writes.truncate(writes);
        if self.pending.status == Status::Aborted {
            self.pending.status = Status::Open;
        }
        self.statement().await
    }

    /// A COMMIT of the handler's own, which it must not send: refused where the unit has claimed a key (A12).
    ///
    /// # Errors
    /// [`MemoryError::Unsealed`]. The transaction is then rolled back.
    pub async fn raw_commit(&mut self) -> Result<(), MemoryError> {
        self.statement().await?;
        let mut state = self.shared.state();
        if !self.pending.claimed.is_empty() && !self.shared.has(Defect::CommitsUnsealed) {
            drop(state);
            self.end();
            return Err(MemoryError::Unsealed);
        }
        for key in self.pending.claimed.drain(..) {
            if let Some((_, recorded)) = state.held.remove(&key) {
                state.records.insert(key, recorded);
            }
        }
        state.apply(&std::mem::take(&mut self.pending.writes));
        drop(state);
        self.end();
        Ok(())
    }

    /// A ROLLBACK of the handler's own, which it must not send.
    ///
    /// # Errors
    /// [`MemoryError`] where the connection is gone.
    pub async fn raw_rollback(&mut self) -> Result<(), MemoryError> {
        tokio::task::yield_now().await;
        self.end();
        if self.pending.lost { Err(MemoryError::ConnectionLost) } else { Ok(()) }
    }

    /// A BEGIN of the handler's own: a new transaction, which is not the one that claimed the keys.
    pub async fn raw_begin(&mut self) {
        tokio::task::yield_now().await;
        if self.pending.status == Status::Ended {
            self.pending.status = Status::Open;
            self.pending.id = self.shared.state().next_unit();
        }
    }

    /// Writes what a deferred constraint refuses when the unit commits (A10).
    pub fn break_deferred_constraint(&mut self) {
        self.pending.breaks_deferred = true;
    }

    /// Fails a statement whose error stays unread (A11).
    pub fn fail_unread(&mut self) {
        self.pending.status = Status::Aborted;
    }

    /// Has the "server" end this connection: every statement from now on fails, and the unit is rolled back.
    pub fn lose_connection(&mut self) {
        self.pending.lost = true;
        self.end();
    }

    pub(super) async fn statement(&mut self) -> Result<(), MemoryError> {
        // A server's answer takes a while, in which others run and the call may be dropped.
        tokio::task::yield_now().await;
        if self.pending.lost {
            return Err(MemoryError::ConnectionLost);
        }
        match self.shared.meet_in(Operation::Statement, self.pending.era).await {
            Ok(Met::Nothing) => {}
            Ok(Met::AnswerLost) | Err(MemoryError::ConnectionLost) => {
                self.lose_connection();
                return Err(MemoryError::ConnectionLost);
            }
            Err(error) => {
                self.pending.status = Status::Aborted;
                return Err(error);
            }
        }
        match self.pending.status {
            Status::Open => Ok(()),
            Status::Aborted => Err(MemoryError::Aborted),
            Status::Ended => Err(MemoryError::NoTransaction),
        }
    }

    pub(super) fn write(&mut self, write: Write) {
        if self.shared.has(Defect::PutsEffectsOutside) {
            self.shared.state().apply(&[write]);
        } else {
            self.pending.writes.push(write);
        }
    }

    /// Ends the transaction without committing anything more.
    fn end(&mut self) {
        self.pending.status = Status::Ended;
        self.pending.writes.clear();
        self.pending.events.clear();
        self.pending.results.clear();
        self.pending.nested.clear();
        self.pending.claimed.clear();
        self.pending.forgets.clear();
        self.shared.release(self.pending.id);
    }
}
