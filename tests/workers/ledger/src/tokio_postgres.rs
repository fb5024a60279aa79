//! The handlers on PostgreSQL through tokio-postgres. They may run at once: rows of their own, and totals that the server
//! adds up.

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
};
use idem_tokio_postgres::PostgresStore;

use crate::{
    HANDLED_BY, Ledger, Purchase, key,
    postgres::{ADD, ADD_ALL, BUY, BUY_ALL, Columns},
};

impl Handler<PostgresStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let purchase = Purchase::read(message)?;
        let Purchase { customer, day, cds, cents } = &purchase;
        tx.connection().execute(BUY, &[&key(message), customer, day, cds, cents, &*HANDLED_BY]).await?;
        tx.connection().execute(ADD, &[customer, cents]).await?;
        self.announce(message, &purchase, tx)
    }
}

impl BatchHandler<PostgresStore> for Ledger {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, PostgresStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let purchases = match Purchase::read_all(messages) {
            Ok(purchases) => purchases,
            Err(answer) => return Ok(answer),
        };
        let Columns { keys, customers, days, cds, cents } = &Columns::of(messages, &purchases);
        tx.connection().execute(BUY_ALL, &[keys, customers, days, cds, cents, &*HANDLED_BY]).await?;
        tx.connection().execute(ADD_ALL, &[customers, cents]).await?;
        self.announce_all(messages, &purchases, tx)?;
        Ok(BatchAnswer::all_handled())
    }
}
