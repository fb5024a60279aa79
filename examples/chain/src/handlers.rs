//! The two handlers, a user's own code. Copy them.

use idem_core::{Event, Handler, HandlerError, Message, Tx};
use idem_sqlx::SqliteStore;
use serde::{Deserialize, Serialize};

/// The destination of the shop's events, which the accounts consume.
pub(crate) const RECORDED: &str = "recorded";

/// The message from the producer to the shop, and from the shop to the accounts.
#[derive(Serialize, Deserialize)]
pub(crate) struct Purchase {
    customer: String,
    cents: i64,
}

/// The first consumer. Its table has no unique column on purpose: nothing but idem keeps a purchase from counting twice.
pub(crate) struct Shop;

pub(crate) const SHOP_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS purchases (customer TEXT NOT NULL, cents INTEGER NOT NULL) STRICT";

impl Handler<SqliteStore> for Shop {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase: Purchase = message.json()?;
        sqlx::query("INSERT INTO purchases (customer, cents) VALUES (?, ?)")
            .bind(&purchase.customer)
            .bind(purchase.cents)
            .execute(tx.connection())
            .await?;
        // Committed with the purchase and its record, and sent after that.
        let event = Event::to(RECORDED).event_type("PurchaseRecorded").ordering_key(purchase.customer.clone());
        tx.publish(message, event.json(&purchase)?)?;
        Ok(())
    }
}

/// The second one, on a database of its own.
pub(crate) struct Accounts;

pub(crate) const ACCOUNTS_TABLE: &str = "CREATE TABLE IF NOT EXISTS accounts (
    customer TEXT PRIMARY KEY, purchases INTEGER NOT NULL, cents INTEGER NOT NULL
) STRICT";

impl Handler<SqliteStore> for Accounts {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase: Purchase = message.json()?;
        // Relative, so that a purchase that counted twice would show.
        sqlx::query(
            "INSERT INTO accounts VALUES (?, 1, ?) ON CONFLICT (customer)
             DO UPDATE SET purchases = purchases + 1, cents = cents + excluded.cents",
        )
        .bind(purchase.customer)
        .bind(purchase.cents)
        .execute(tx.connection())
        .await?;
        Ok(())
    }
}
