//! A session: one connection, owned by the caller who runs units on it.

use std::fmt;

use idem_core::StoreError;
use idem_sql::{Durability, Fence, SessionFacts, SessionLimits};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{Client, Connection, SimpleQueryMessage, Socket};

use crate::{PostgresStore, driver::Driver, link::Link};

/// A connection for units of work, with the facts about it. Dropping it closes it.
pub struct PostgresSession {
    pub(crate) link: Link,
    /// The session's own limits, which a claim puts back when it is done with idem's.
    pub(crate) lock_timeout: String,
    pub(crate) statement_timeout: String,
    /// The limits of its units, as far as it has them already.
    pub(crate) limits: SessionLimits,
    /// `synchronous_commit` before any handler, which the seal compares, and each BEGIN sets where others share the session.
    pub(crate) durability: Durability,
    pub(crate) shared_durability: Option<&'static str>,
    /// The server process and when it began, where it serves this session alone: behind a pooler it may be another in each
    /// transaction.
    pub(crate) backend: Option<(i32, i64)>,
    /// How often an answer was asked for by number here, after handlers ran, so that it cannot be another statement's.
    pub(crate) asked: u64,
}

impl fmt::Debug for PostgresSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSession").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl PostgresSession {
    pub(crate) fn new(link: Link, facts: SessionFacts) -> Self {
        let (backend, durability, shared_durability) =
            (facts.own_backend(), facts.durability(), facts.shared_durability());
        let SessionFacts { lock_timeout, statement_timeout, .. } = facts;
        Self {
            link,
            lock_timeout,
            statement_timeout,
            limits: SessionLimits::new(backend.is_some()),
            durability,
            shared_durability,
            backend,
            asked: 0,
        }
    }
}

impl PostgresStore {
    /// Makes a session of a connection of one's own, for [`DedupConsumer::process_on`](idem_core::DedupConsumer::process_on),
    /// and drives it from now on. Both halves are given, because a session that is dropped has to close its connection.
    ///
    /// It must be in no transaction, and connected as the store is, to the database that holds idem's schema. From now on it
    /// has `default_transaction_read_only` on, so that nothing is committed that a handler writes after a ROLLBACK of its
    /// own: see [`PostgresStore`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the connection is broken or its server is a standby, [`StoreError::Refused`]
    /// behind a pooler with a role that is not read only by default.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed with a dropped call.
    pub async fn session_from<T>(
        &self,
        client: Client,
        connection: Connection<Socket, T>,
    ) -> Result<PostgresSession, StoreError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let link = Link::of(client, connection, self.driver().options.statements_max);
        let mut facts = self.driver().session_facts(&link).await?;
        // Through a pooler, SET would be the next client's.
        if facts.fence == Fence::Missing && self.driver().is_direct().await? {
            let fence = link.client.batch_execute("SET default_transaction_read_only = on");
            self.driver().within("opening a session", fence).await?;
            facts.fence = Fence::Session;
        }
        facts.refuse_unfenced()?;
        Ok(PostgresSession::new(link, facts))
    }
}

impl Driver {
    /// Looks at the server of a new session.
    pub(crate) async fn session_facts(&self, link: &Link) -> Result<SessionFacts, StoreError> {
        // Not prepared: it runs once a connection, and a pooler may hand the next statement to another server process.
        let answer = self.within("opening a session", link.client.simple_query(&self.statements.server_facts)).await?;
        let row =
            answer.iter().find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
        SessionFacts::read(|column| {
            // The simple protocol answers in texts.
            let text =
                row.ok_or_else(|| idem_sql::unreadable("no row"))?.try_get(column).map_err(idem_sql::unreadable)?;
            text.map(str::to_owned).ok_or_else(|| idem_sql::unreadable("a value is missing"))
        })
    }
}
