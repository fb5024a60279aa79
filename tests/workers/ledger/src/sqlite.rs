//! The ledger on SQLite.

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
};
use idem_sqlx::SqliteStore;
use serde_json::{Value, json};
use sqlx::query;

use crate::{HANDLED_BY, Ledger, Purchase, key};

/// The tables; see [`POSTGRES_TABLES`](crate::POSTGRES_TABLES). They are strict, because SQLite would otherwise turn a
/// total that no longer fits into a fraction.
pub const SQLITE_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS purchases (
        idempotency_key TEXT NOT NULL,
        customer TEXT NOT NULL,
        day TEXT NOT NULL,
        cds INTEGER NOT NULL,
        cents INTEGER NOT NULL,
        handled_by TEXT NOT NULL,
        at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ'))
    ) STRICT;
    CREATE TABLE IF NOT EXISTS customers (
        customer TEXT PRIMARY KEY,
        purchases INTEGER NOT NULL,
        cents INTEGER NOT NULL
    ) STRICT";

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase = Purchase::read(message)?;
        query(
            "INSERT INTO purchases (idempotency_key, customer, day, cds, cents, handled_by)
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(key(message))
        .bind(&purchase.customer)
        .bind(&purchase.day)
        .bind(purchase.cds)
        .bind(purchase.cents)
        .bind(&*HANDLED_BY)
        .execute(tx.connection())
        .await?;
        query(
            "INSERT INTO customers VALUES (?, 1, ?) ON CONFLICT (customer)
             DO UPDATE SET purchases = purchases + 1, cents = cents + excluded.cents",
        )
        .bind(&purchase.customer)
        .bind(purchase.cents)
        .execute(tx.connection())
        .await?;
        self.announce(message, &purchase, tx)
    }
}

impl BatchHandler<SqliteStore> for Ledger {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, SqliteStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let purchases = match Purchase::read_all(messages) {
            Ok(purchases) => purchases,
            Err(answer) => return Ok(answer),
        };
        let bought: Value = purchases
            .iter()
            .zip(messages)
            .map(|(bought, message)| json!([key(message), bought.customer, bought.day, bought.cds, bought.cents]))
            .collect();
        let bought = bought.to_string();
        query(
            "INSERT INTO purchases (idempotency_key, customer, day, cds, cents, handled_by)
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ? FROM json_each(?)",
        )
        .bind(&*HANDLED_BY)
        .bind(&bought)
        .execute(tx.connection())
        .await?;
        // Without WHERE, SQLite would take ON for the beginning of a join.
        query(
            "INSERT INTO customers
             SELECT value ->> 1, count(*), sum(value ->> 4) FROM json_each(?) WHERE true GROUP BY 1
             ON CONFLICT (customer) DO UPDATE
             SET purchases = purchases + excluded.purchases, cents = cents + excluded.cents",
        )
        .bind(&bought)
        .execute(tx.connection())
        .await?;
        self.announce_all(messages, &purchases, tx)?;
        Ok(BatchAnswer::all_handled())
    }
}
