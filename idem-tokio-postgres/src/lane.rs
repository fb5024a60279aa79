//! A lane: one connection, owned by whoever runs units on it.

use std::fmt;

use idem_core::StoreError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{Client, Connection, SimpleQueryMessage, Socket};

use crate::{Postgres, session::Session};

/// A connection for units of work, with what has to be known of its session. Dropping it closes it.
pub struct PostgresLane {
    pub(crate) session: Session,
    /// The session's own limits, which a claim puts back when it is done with idem's.
    pub(crate) lock_timeout: String,
    pub(crate) statement_timeout: String,
    /// The server process, where it stays the same: behind a pooler it may be another in each transaction.
    pub(crate) backend_pid: Option<i32>,
    /// How many units were rolled back here after handlers ran, to tell the answers to them apart.
    pub(crate) rollbacks: u64,
    /// Whether nobody knows any more what the connection's state is. The next unit opens another.
    pub(crate) is_spent: bool,
}

impl fmt::Debug for PostgresLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLane").field("backend_pid", &self.backend_pid).finish_non_exhaustive()
    }
}

impl Postgres {
    /// Makes a lane of a connection of one's own, for [`DedupConsumer::process_on`](idem_core::DedupConsumer::process_on),
    /// and drives it from now on. Both halves are given, because a lane that is dropped has to close its connection.
    ///
    /// It must be in no transaction, and connected to the database that holds idem's schema. Its settings are left alone,
    /// so the protection against writes after a handler's own ROLLBACK is as strong as the connection's
    /// `default_transaction_read_only`: see [`Postgres`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the connection is broken or its server is a standby.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed with a dropped call.
    pub async fn lane_from<T>(
        &self,
        client: Client,
        connection: Connection<Socket, T>,
    ) -> Result<PostgresLane, StoreError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.lane_on(Session::of(client, connection, self.shared.options.statements_max)).await
    }

    /// Looks at the session of a new lane.
    pub(crate) async fn lane_on(&self, session: Session) -> Result<PostgresLane, StoreError> {
        let doing = "opening a lane";
        // Not prepared: it runs once a connection, and a pooler may hand the next statement to another server process.
        let answer = self.within(doing, session.client.simple_query(&self.sql().server_facts)).await?;
        let row =
            answer.iter().find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
        let text = |column: &str| {
            // The simple protocol answers in texts.
            let text = row
                .ok_or_else(|| idem_schema::unreadable("no row"))?
                .try_get(column)
                .map_err(idem_schema::unreadable)?;
            text.map(str::to_owned).ok_or_else(|| idem_schema::unreadable("a value is missing"))
        };
        if text("in_recovery")? == "t" {
            return Err(idem_schema::read_only(doing));
        }
        let pid: Option<i32> = text("backend_pid")?.parse().ok();
        let (lock_timeout, statement_timeout) = (text("lock_timeout")?, text("statement_timeout")?);
        let backend_pid = pid.filter(|_| self.is_direct());
        Ok(PostgresLane { session, lock_timeout, statement_timeout, backend_pid, rollbacks: 0, is_spent: false })
    }
}
