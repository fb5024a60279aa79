//! One connection to the server: its client, the task that drives it, and its prepared statements.

use std::{future::poll_fn, time::Duration};

use idem_core::StoreError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::JoinHandle,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Error, Row, Socket, Statement,
    config::Config,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{Pooler, error, statements::StatementCache};

/// The parameters of one of idem's own statements, with the types that its text casts them to.
pub(crate) type Parameters<'p> = [Parameter<'p>];
pub(crate) type Parameter<'p> = (&'p (dyn ToSql + Sync), Type);

/// A connection. Dropping it closes its socket at once, even with statements under way on it.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) cache: StatementCache,
    driver: Driver,
}

/// The task that reads and writes the socket. tokio-postgres's own would go on after the client is gone until the server
/// has answered what was sent, which may take as long as a handler's statement does.
struct Driver {
    task: JoinHandle<()>,
    // Dropped with the link, which is what ends the task.
    _alive: oneshot::Sender<()>,
}

impl Link {
    pub(crate) async fn connect(
        config: &Config,
        tls: MakeRustlsConnect,
        limit: Duration,
        statements_max: usize,
    ) -> Result<Self, StoreError> {
        let (client, connection) = match tokio::time::timeout(limit, config.connect(tls)).await {
            Ok(connected) => connected.map_err(error::connecting)?,
            Err(elapsed) => return Err(StoreError::Unavailable { doing: "connecting", source: Box::new(elapsed) }),
        };
        Ok(Self::of(client, connection, statements_max))
    }

    /// Takes over a connection that is there, and drives it from now on.
    pub(crate) fn of<T>(client: Client, connection: Connection<Socket, T>, statements_max: usize) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (alive, dropped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = drive(connection) => {}
                _ = dropped => {}
            }
        });
        Self { client, cache: StatementCache::new(statements_max), driver: Driver { task, _alive: alive } }
    }

    /// Tells the server, and waits for the end at most this long.
    pub(crate) async fn close(self, limit: Duration) {
        let Self { client, cache, driver } = self;
        drop((client, cache));
        let Driver { task, _alive } = driver;
        let _ = tokio::time::timeout(limit, task).await;
    }

    /// Makes one of idem's own statements ready.
    pub(crate) async fn ready<'s>(&'s self, pooler: Pooler, text: &'s str) -> Result<Ready<'s>, Error> {
        let prepared = match pooler {
            Pooler::None => Some(self.cache.get(&self.client, text).await?),
            Pooler::Transaction => None,
        };
        Ok(Ready { client: &self.client, text, prepared })
    }
}

/// A statement that is sent by the first poll of [`Ready::rows`].
pub(crate) struct Ready<'s> {
    client: &'s Client,
    text: &'s str,
    prepared: Option<Statement>,
}

impl Ready<'_> {
    pub(crate) async fn rows(&self, parameters: &Parameters<'_>) -> Result<Vec<Row>, Error> {
        match &self.prepared {
            Some(statement) => {
                let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
                self.client.query(statement, &values).await
            }
            // Parsed, bound and run in one go, which a pooler gives to one server connection.
            None => self.client.query_typed(self.text, parameters).await,
        }
    }
}

async fn drive<T>(mut connection: Connection<Socket, T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    // The driver passes errors to the callers that wait for an answer.
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message
            && notice.routine() == Some("SyncRepWaitForLSN")
        {
            // Failure A8: the answer to the COMMIT itself is the same as ever.
            tracing::warn!(
                "a commit's wait for a synchronous standby was cancelled on the server: it is durable there, and a \
                 failover may lose it"
            );
        }
    }
}
