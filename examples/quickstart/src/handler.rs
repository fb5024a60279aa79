//! The handler: what a user of idem writes. Copy it.

use idem_core::{Handler, HandlerError, Message, Tx};
use idem_sqlx::SqliteStore;

#[derive(Clone, serde::Deserialize)]
pub(crate) struct Purchase {
    pub(crate) customer: String,
    pub(crate) day: String,
    pub(crate) cds: u32,
    pub(crate) cents: i64,
}

pub(crate) struct Ledger;

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase: Purchase = message.json()?; // not JSON, or a member missing: a dead letter that says so
        sqlx::query("INSERT INTO purchases (customer, day, cds, cents) VALUES (?, ?, ?, ?)")
            .bind(purchase.customer)
            .bind(purchase.day)
            .bind(purchase.cds)
            .bind(purchase.cents)
            .execute(tx.connection()) // the transaction that also records the message's key
            .await?;
        Ok(())
    }
}
