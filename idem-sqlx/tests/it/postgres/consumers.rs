//! Short words for a consumer with a handler that writes the message's key as an effect.

use idem_core::{Handler, HandlerError, Message, Tx, store::ClaimError};
use idem_sqlx::PostgresStore;
use sqlx::PgConnection;

pub(super) use idem_conformance::postgres::consumers::*;

/// Writes the key of a message, as every handler here does.
pub(super) async fn write(connection: &mut PgConnection, message: &Message) -> Result<(), sqlx::Error> {
    let key = message.key().map_or("(none)", |key| key.as_str());
    let query = sqlx::query("INSERT INTO effects (key, payload, note) VALUES ($1, $2, '')");
    query.bind(key).bind(message.payload().map(|payload| payload.to_vec())).execute(connection).await.map(|_| ())
}

/// The handler that only writes.
pub(super) struct Write;

impl Handler<PostgresStore> for Write {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        Ok(write(tx.connection(), message).await?)
    }
}

/// The handler's action for a message.
pub(super) trait Act: Send + Sync + 'static {
    fn act(
        &self,
        message: &Message,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A handler that does this.
pub(super) struct Acting<A>(pub(super) A);

impl<A: Act> Handler<PostgresStore> for Acting<A> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        self.0.act(message, tx.connection()).await
    }
}

pub(super) fn is_held(error: &ClaimError) -> bool {
    matches!(error, ClaimError::Held)
}
