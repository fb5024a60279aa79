//! A handler written with diesel-async. Its writes are committed with the record of the message's key, or not at all.
//!
//! Diesel takes a connection by value and counts the depth of its transactions itself, so it cannot join a transaction that
//! it did not begin. [`DieselPostgres`] is therefore a store whose sessions *are* Diesel's connections, begun, sealed and
//! committed through Diesel. Copy `store.rs` and `error.rs`; the limits stand in [`DieselPostgres`].

mod error;
mod store;

use diesel::{ExpressionMethods as _, prelude::Insertable};
use diesel_async::RunQueryDsl as _;
use idem_core::{Handler, HandlerError, Message, Tx};
use serde::Deserialize;

pub use self::store::{DieselSession, DieselPostgres, DieselUnit};

diesel::table! {
    /// A purchase.
    purchases (id) {
        id -> BigInt,
        customer -> Text,
        cents -> BigInt,
    }
}

diesel::table! {
    /// Each customer's total.
    customers (customer) {
        customer -> Text,
        cents -> BigInt,
    }
}

/// The tables.
pub const TABLES: &str = "
    CREATE TABLE purchases (id bigserial PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL CHECK (cents >= 0));
    CREATE TABLE customers (customer text PRIMARY KEY, cents bigint NOT NULL);
    INSERT INTO customers VALUES ('1', 0), ('2', 0)";

#[derive(Debug, Deserialize, Insertable)]
#[diesel(table_name = purchases)]
struct Bought {
    customer: String,
    cents: i64,
}

/// The handler.
#[derive(Debug, Clone, Copy)]
pub struct Ledger;

impl Handler<DieselPostgres> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, DieselPostgres>) -> Result<(), HandlerError> {
        let bought: Bought = message.json()?;
        let connection = tx.connection();
        diesel::update(customers::table)
            .filter(customers::customer.eq(&bought.customer))
            .set(customers::cents.eq(customers::cents + bought.cents))
            .execute(connection)
            .await?;
        diesel::insert_into(purchases::table).values(&bought).execute(connection).await?;
        Ok(())
    }
}
