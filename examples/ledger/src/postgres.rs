//! The ledger on PostgreSQL.

use idem_core::{BatchAnswer, BatchHandler, Handler, HandlerError, Message, Tx};
use idem_sqlx::Postgres;
use sqlx::query;

use crate::{HANDLED_BY, Ledger, Purchase, key};

/// The tables. `purchases` has no unique constraint, and totals are changed relatively, so that a purchase that counted
/// twice would show in both.
pub const POSTGRES_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS purchases (
        idempotency_key text NOT NULL,
        customer text NOT NULL,
        day date NOT NULL,
        cds int NOT NULL,
        cents bigint NOT NULL,
        handled_by text NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE IF NOT EXISTS customers (
        customer text PRIMARY KEY,
        purchases bigint NOT NULL,
        cents bigint NOT NULL
    )";

impl Handler<Postgres> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        let purchase = Purchase::read(message)?;
        query("INSERT INTO purchases VALUES ($1, $2, $3::date, $4, $5, $6)")
            .bind(key(message))
            .bind(&purchase.customer)
            .bind(&purchase.day)
            .bind(purchase.cds)
            .bind(purchase.cents)
            .bind(&*HANDLED_BY)
            .execute(tx.connection())
            .await?;
        query(
            "INSERT INTO customers VALUES ($1, 1, $2) ON CONFLICT (customer)
             DO UPDATE SET purchases = customers.purchases + 1, cents = customers.cents + excluded.cents",
        )
        .bind(&purchase.customer)
        .bind(purchase.cents)
        .execute(tx.connection())
        .await?;
        Ok(())
    }
}

impl BatchHandler<Postgres> for Ledger {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, Postgres>,
    ) -> Result<BatchAnswer, HandlerError> {
        let purchases = match Purchase::read_all(messages) {
            Ok(purchases) => purchases,
            Err(answer) => return Ok(answer),
        };
        let keys: Vec<_> = messages.iter().map(|message| key(message)).collect();
        let customers: Vec<_> = purchases.iter().map(|purchase| purchase.customer.as_str()).collect();
        let days: Vec<_> = purchases.iter().map(|purchase| purchase.day.as_str()).collect();
        let cds: Vec<_> = purchases.iter().map(|purchase| purchase.cds).collect();
        let cents: Vec<_> = purchases.iter().map(|purchase| purchase.cents).collect();
        query(
            "INSERT INTO purchases
             SELECT key, customer, day::date, cds, cents, $6
             FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[])
                  AS bought (key, customer, day, cds, cents)",
        )
        .bind(keys)
        .bind(&customers)
        .bind(days)
        .bind(cds)
        .bind(&cents)
        .bind(&*HANDLED_BY)
        .execute(tx.connection())
        .await?;
        // In one order for every batch, so that two batches with the same customers never wait for each other in a ring.
        query(
            "INSERT INTO customers
             SELECT customer, count(*), sum(cents)::bigint
             FROM unnest($1::text[], $2::bigint[]) AS bought (customer, cents)
             GROUP BY customer ORDER BY customer
             ON CONFLICT (customer) DO UPDATE
             SET purchases = customers.purchases + excluded.purchases, cents = customers.cents + excluded.cents",
        )
        .bind(&customers)
        .bind(&cents)
        .execute(tx.connection())
        .await?;
        Ok(BatchAnswer::all_handled())
    }
}
