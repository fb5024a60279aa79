//! The ledger on PostgreSQL: tables and statements, which both client libraries share, and the handlers on sqlx.

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
};
use idem_sqlx::PostgresStore;
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

pub(crate) const BUY: &str = "INSERT INTO purchases VALUES ($1, $2, $3::text::date, $4, $5, $6)";

pub(crate) const ADD: &str = "
    INSERT INTO customers VALUES ($1, 1, $2) ON CONFLICT (customer)
    DO UPDATE SET purchases = customers.purchases + 1, cents = customers.cents + excluded.cents";

pub(crate) const BUY_ALL: &str = "
    INSERT INTO purchases
    SELECT key, customer, day::date, cds, cents, $6
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[])
         AS bought (key, customer, day, cds, cents)";

/// In one order for every batch, so that two batches with the same customers never wait for each other in a ring.
pub(crate) const ADD_ALL: &str = "
    INSERT INTO customers
    SELECT customer, count(*), sum(cents)::bigint
    FROM unnest($1::text[], $2::bigint[]) AS bought (customer, cents)
    GROUP BY customer ORDER BY customer
    ON CONFLICT (customer) DO UPDATE
    SET purchases = customers.purchases + excluded.purchases, cents = customers.cents + excluded.cents";

/// A batch as the parameters of [`BUY_ALL`] and [`ADD_ALL`].
pub(crate) struct Columns<'b> {
    pub(crate) keys: Vec<&'b str>,
    pub(crate) customers: Vec<&'b str>,
    pub(crate) days: Vec<&'b str>,
    pub(crate) cds: Vec<i32>,
    pub(crate) cents: Vec<i64>,
}

impl<'b> Columns<'b> {
    pub(crate) fn of(messages: &[&'b Message], purchases: &'b [Purchase]) -> Self {
        Self {
            keys: messages.iter().map(|message| key(message)).collect(),
            customers: purchases.iter().map(|purchase| purchase.customer.as_str()).collect(),
            days: purchases.iter().map(|purchase| purchase.day.as_str()).collect(),
            cds: purchases.iter().map(|purchase| purchase.cds).collect(),
            cents: purchases.iter().map(|purchase| purchase.cents).collect(),
        }
    }
}

impl Handler<PostgresStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let purchase = Purchase::read(message)?;
        let Purchase { customer, day, cds, cents } = &purchase;
        let buy = query(BUY).bind(key(message)).bind(customer).bind(day).bind(cds).bind(cents).bind(&*HANDLED_BY);
        buy.execute(tx.connection()).await?;
        query(ADD).bind(customer).bind(cents).execute(tx.connection()).await?;
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
        let Columns { keys, customers, days, cds, cents } = Columns::of(messages, &purchases);
        let buy = query(BUY_ALL).bind(keys).bind(&customers).bind(days).bind(cds).bind(&cents).bind(&*HANDLED_BY);
        buy.execute(tx.connection()).await?;
        query(ADD_ALL).bind(customers).bind(cents).execute(tx.connection()).await?;
        self.announce_all(messages, &purchases, tx)?;
        Ok(BatchAnswer::all_handled())
    }
}
