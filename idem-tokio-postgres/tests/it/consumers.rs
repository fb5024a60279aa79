//! Short words for a consumer with a handler that writes the message's key as an effect.

use idem_core::{Concurrency, Handler, HandlerError, Message, Tx};
use idem_tokio_postgres::{PostgresConnection, PostgresStore, RunStatementError};

pub(crate) use idem_conformance::postgres::consumers::*;

/// Writes the key of a message, as every handler here does.
pub(crate) async fn write(connection: &PostgresConnection<'_>, message: &Message) -> Result<(), RunStatementError> {
    let payload = message.payload().map(|payload| payload.to_vec());
    let text = "INSERT INTO effects (key, payload, note) VALUES ($1, $2, '')";
    connection.execute(text, &[&key_of(message), &payload]).await.map(|_| ())
}

pub(crate) fn key_of(message: &Message) -> &str {
    message.key().map_or("(none)", |key| key.as_str())
}

/// The handler that only writes.
pub(crate) struct Write;

impl Handler<PostgresStore> for Write {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        Ok(write(&tx.connection(), message).await?)
    }
}

/// The handler's action for a message.
pub(crate) trait Act: Send + Sync + 'static {
    fn act(
        &self,
        message: &Message,
        connection: PostgresConnection<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A handler that does this.
pub(crate) struct Acting<A>(pub(crate) A);

impl<A: Act> Handler<PostgresStore> for Acting<A> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        self.0.act(message, tx.connection()).await
    }
}

/// Both ways to run handlers.
pub(crate) const BOTH: [Concurrency; 2] = [Concurrency::InOrder, Concurrency::pipelined()];
