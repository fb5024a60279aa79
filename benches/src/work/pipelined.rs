//! The same on tokio-postgres, which can pipeline.

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
};
use idem_tokio_postgres::{
    PostgresStore,
    tokio_postgres::{Client, Error, Statement},
};
use uuid::Uuid;

use super::{ADD, ADD_ALL, Bought, CENTS, INSERT, INSERT_ALL, Work, body, bought, text};

/// The statements of a hand-written loop.
pub(crate) struct Prepared {
    insert: Statement,
    add: Statement,
}

impl Work {
    pub(crate) async fn prepare(client: &Client) -> Result<Prepared, Error> {
        Ok(Prepared { insert: client.prepare(INSERT).await?, add: client.prepare(ADD).await? })
    }

    /// One message, by hand.
    pub(crate) async fn run_prepared(self, client: &Client, by: &Prepared, customer: usize) -> Result<(), Error> {
        client.execute(&by.insert, &[&Uuid::new_v4(), &body(customer)]).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                client.execute(&by.add, &[&format!("{customer:05}"), &CENTS]).await?;
            }
        }
        Ok(())
    }
}

impl Handler<PostgresStore> for Work {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let tx = tx.connection();
        tx.execute(INSERT, &[&Uuid::new_v4(), &text(message)?]).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                let Bought { customer, cents } = message.json()?;
                tx.execute(ADD, &[&customer, &cents]).await?;
            }
        }
        Ok(())
    }
}

impl BatchHandler<PostgresStore> for Work {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, PostgresStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let tx = tx.connection();
        let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::new_v4()).collect();
        let bodies = messages.iter().map(|message| text(message)).collect::<Result<Vec<_>, _>>()?;
        tx.execute(INSERT_ALL, &[&ids, &bodies]).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                let (customers, cents) = bought(messages)?;
                tx.execute(ADD_ALL, &[&customers, &cents]).await?;
            }
        }
        Ok(BatchAnswer::all_handled())
    }
}
