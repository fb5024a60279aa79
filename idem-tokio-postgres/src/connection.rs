//! The connection of a handler: the open transaction of its unit.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Buf;
use futures_util::{FutureExt as _, SinkExt as _};
use tokio_postgres::{
    Client, Error, Row, Statement,
    error::{DbError, SqlState},
    types::{ToSql, Type},
};

use crate::{Pooler, link::Link, text};

/// Why a statement of a handler's did not run, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunStatementError {
    /// The server or the driver says so.
    #[error("a statement failed")]
    Postgres(#[from] Error),
    /// The text controls the transaction or the session, which all handlers of a batch share under
    /// [`Concurrency::Pipelined`](idem_core::Concurrency::Pipelined). Nothing was sent.
    #[error("{keyword} is refused, because the handlers of a batch share the transaction: use Concurrency::InOrder")]
    SessionControl {
        /// The text's beginning.
        keyword: String,
    },
    /// The text is a COPY, which only [`PostgresConnection::copy_in`] can run. Nothing was sent.
    #[error("a COPY is refused as an ordinary statement: use copy_in")]
    Copy,
    /// The text that was given to [`PostgresConnection::copy_in`] is no `COPY … FROM STDIN`. Nothing was sent.
    #[error("copy_in takes a COPY … FROM STDIN only")]
    NoCopy,
    /// Only one handler at a time may do this. Nothing was sent.
    #[error("{what} needs the transaction for itself: use Concurrency::InOrder")]
    NotInOrder {
        /// The call.
        what: &'static str,
    },
}

impl RunStatementError {
    /// The server's report, where there is one.
    #[must_use]
    pub fn as_db_error(&self) -> Option<&DbError> {
        match self {
            Self::Postgres(error) => error.as_db_error(),
            Self::SessionControl { .. } | Self::Copy | Self::NoCopy | Self::NotInOrder { .. } => None,
        }
    }

    /// The server's SQLSTATE, where there is one.
    #[must_use]
    pub fn code(&self) -> Option<&SqlState> {
        self.as_db_error().map(DbError::code)
    }
}

/// The open transaction of a unit, as a handler uses it.
///
/// Under [`Concurrency::InOrder`](idem_core::Concurrency::InOrder) it is the handler's alone: it nests transactions by
/// [`transaction`](Self::transaction), and [`client`](Self::client) gives all of tokio-postgres.
///
/// Under [`Concurrency::Pipelined`](idem_core::Concurrency::Pipelined) the handlers of a batch share it, and their statements
/// travel together. There it offers `query…`, `execute…` and `copy_in` only. Anything that belongs to the transaction or
/// the session is refused before it is sent: a savepoint would be the session's, and one handler's `ROLLBACK TO` would
/// undo its neighbours' writes without a word.
///
/// Texts are prepared once a connection and kept, so that the plain call is the fast one. A statement whose future is
/// dropped has been sent all the same.
pub struct PostgresConnection<'t> {
    link: &'t Link,
    pooler: Pooler,
    sharing: Sharing<'t>,
}

#[derive(Clone, Copy)]
enum Sharing<'t> {
    /// One handler at a time, and how many nested transactions are open.
    InOrder(&'t AtomicUsize),
    Shared,
}

impl fmt::Debug for PostgresConnection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresConnection")
    }
}

impl<'t> PostgresConnection<'t> {
    pub(crate) fn in_order(link: &'t Link, pooler: Pooler, nested: &'t AtomicUsize) -> Self {
        Self { link, pooler, sharing: Sharing::InOrder(nested) }
    }

    pub(crate) fn shared(link: &'t Link, pooler: Pooler) -> Self {
        Self { link, pooler, sharing: Sharing::Shared }
    }

    pub(crate) fn reborrow(&mut self) -> PostgresConnection<'_> {
        PostgresConnection { link: self.link, pooler: self.pooler, sharing: self.sharing }
    }

    /// Runs a statement and answers its rows.
    ///
    /// # Errors
    /// [`RunStatementError`]. After an error of the server's the transaction is lost, even if the handler returns `Ok`.
    ///
    /// # Cancel safety
    /// Once polled, the statement runs even where the call is dropped.
    pub async fn query(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, RunStatementError> {
        self.check(statement)?;
        let prepared = self.prepared(statement).await?;
        Ok(self.link.client.query(&prepared, parameters).await?)
    }

    /// Runs a statement and answers its only row; any other number is an error.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// As for [`query`](Self::query).
    pub async fn query_one(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, RunStatementError> {
        self.check(statement)?;
        let prepared = self.prepared(statement).await?;
        Ok(self.link.client.query_one(&prepared, parameters).await?)
    }

    /// Runs a statement and answers its row, if there is one; more than one is an error.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// As for [`query`](Self::query).
    pub async fn query_opt(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, RunStatementError> {
        self.check(statement)?;
        let prepared = self.prepared(statement).await?;
        Ok(self.link.client.query_opt(&prepared, parameters).await?)
    }

    /// Runs a statement and answers how many rows it has changed.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// As for [`query`](Self::query).
    pub async fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, RunStatementError> {
        self.check(statement)?;
        let prepared = self.prepared(statement).await?;
        Ok(self.link.client.execute(&prepared, parameters).await?)
    }

    /// The same as [`query`](Self::query) in one round trip with nothing prepared, because the types of the parameters
    /// are named: for texts that are used once, and for old poolers.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// As for [`query`](Self::query).
    pub async fn query_typed(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, RunStatementError> {
        self.check(statement)?;
        Ok(self.link.client.query_typed(statement, parameters).await?)
    }

    /// The same as [`execute`](Self::execute) in one round trip with nothing prepared.
    ///
    /// # Errors
    /// As for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// As for [`query`](Self::query).
    pub async fn execute_typed(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, RunStatementError> {
        self.check(statement)?;
        Ok(self.link.client.execute_typed(statement, parameters).await?)
    }

    /// Runs a `COPY … FROM STDIN` with these rows, and answers how many there were. The rows come whole, because no other
    /// statement gets through while a COPY is open.
    ///
    /// # Errors
    /// As for [`query`](Self::query), and [`RunStatementError::NoCopy`] for another statement.
    ///
    /// # Cancel safety
    /// A dropped call fails the COPY, and with it the transaction.
    pub async fn copy_in(&self, statement: &str, rows: impl Buf + Send + 'static) -> Result<u64, RunStatementError> {
        if !text::is_copy_from_stdin(statement) {
            return Err(RunStatementError::NoCopy);
        }
        let prepared = self.prepared(statement).await?;
        let mut sink = pin!(self.link.client.copy_in(&prepared).await?);
        sink.send(rows).await?;
        Ok(sink.finish().await?)
    }

    /// Begins a nested transaction (a savepoint). Dropping it rolls it back.
    ///
    /// # Errors
    /// [`RunStatementError::NotInOrder`] where handlers share the transaction, else as for [`query`](Self::query).
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call leaves no savepoint.
    pub async fn transaction(&mut self) -> Result<PostgresTransaction<'_>, RunStatementError> {
        let Sharing::InOrder(nested) = self.sharing else {
            return Err(RunStatementError::NotInOrder { what: "a nested transaction" });
        };
        let number = nested.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on its destructor takes the savepoint back.
        let transaction = PostgresTransaction { connection: self.reborrow(), nested, number, is_open: true };
        transaction.link.client.batch_execute(&format!("SAVEPOINT idem_{number}")).await?;
        Ok(transaction)
    }

    /// The client itself, for everything else that tokio-postgres offers. The transaction must be left open.
    ///
    /// # Errors
    /// [`RunStatementError::NotInOrder`] where handlers share the transaction.
    pub fn client(&self) -> Result<&Client, RunStatementError> {
        match self.sharing {
            Sharing::InOrder(_) => Ok(&self.link.client),
            Sharing::Shared => Err(RunStatementError::NotInOrder { what: "the client" }),
        }
    }

    fn check(&self, statement: &str) -> Result<(), RunStatementError> {
        // The driver would wait for an answer that comes after the rows only, and give the next one to another statement.
        if text::is_copy(statement) {
            return Err(RunStatementError::Copy);
        }
        match (self.sharing, text::session_control(statement)) {
            (Sharing::Shared, Some(keyword)) => Err(RunStatementError::SessionControl { keyword: keyword.to_owned() }),
            (Sharing::Shared | Sharing::InOrder(_), _) => Ok(()),
        }
    }

    async fn prepared(&self, statement: &str) -> Result<Statement, Error> {
        match self.pooler {
            Pooler::None => self.link.cache.get(&self.link.client, statement).await,
            // Taken back as soon as it is used, still in this transaction, so that no pooler sees it.
            Pooler::Transaction => self.link.client.prepare(statement).await,
        }
    }
}

/// A nested transaction, which is used like the one around it. Dropping it rolls it back; a handler that leaves one open
/// is not committed.
#[derive(Debug)]
pub struct PostgresTransaction<'t> {
    connection: PostgresConnection<'t>,
    nested: &'t AtomicUsize,
    number: usize,
    is_open: bool,
}

impl PostgresTransaction<'_> {
    /// Keeps what was written; it is committed with the unit.
    ///
    /// # Errors
    /// As for [`PostgresConnection::query`].
    ///
    /// # Cancel safety
    /// Once polled, the nested transaction ends even where the call is dropped.
    pub async fn commit(mut self) -> Result<(), RunStatementError> {
        let text = format!("RELEASE SAVEPOINT idem_{}", self.end());
        Ok(self.link.client.batch_execute(&text).await?)
    }

    /// Takes back what was written since its begin.
    ///
    /// # Errors
    /// As for [`PostgresConnection::query`].
    ///
    /// # Cancel safety
    /// As for [`commit`](Self::commit).
    pub async fn rollback(mut self) -> Result<(), RunStatementError> {
        let text = rollback_to(self.end());
        Ok(self.link.client.batch_execute(&text).await?)
    }

    /// Notes that it ends here, and answers its number.
    fn end(&mut self) -> usize {
        self.is_open = false;
        self.nested.fetch_sub(1, Ordering::Relaxed);
        self.number
    }
}

/// ROLLBACK TO keeps the savepoint, so it is released too.
fn rollback_to(number: usize) -> String {
    format!("ROLLBACK TO SAVEPOINT idem_{number}; RELEASE SAVEPOINT idem_{number}")
}

impl Drop for PostgresTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let text = rollback_to(self.end());
            // The first poll puts it on the wire, before anything that is sent later; its answer is not waited for.
            let _ = self.link.client.simple_query_raw(&text).now_or_never();
        }
    }
}

impl<'t> Deref for PostgresTransaction<'t> {
    type Target = PostgresConnection<'t>;

    fn deref(&self) -> &PostgresConnection<'t> {
        &self.connection
    }
}

impl<'t> DerefMut for PostgresTransaction<'t> {
    fn deref_mut(&mut self) -> &mut PostgresConnection<'t> {
        &mut self.connection
    }
}
