//! One queue with events of several types. Two types have a handler; a message of any other type is a dead letter.

use std::process::ExitCode;

use idem_service::{idem_core::Router, prelude::*};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents bigint NOT NULL, paid_cents bigint NOT NULL DEFAULT 0)";

#[derive(serde::Deserialize)]
struct OrderPlaced {
    order: String,
    cents: i64,
}

#[derive(serde::Deserialize)]
struct PaymentReceived {
    order: String,
    cents: i64,
}

async fn place(event: OrderPlaced, _: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
    let insert = sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)").bind(event.order).bind(event.cents);
    insert.execute(tx.connection()).await?;
    Ok(())
}

/// Adds to what was paid, which would be wrong if it ran twice. A payment that is here before its order is tried again.
async fn pay(event: PaymentReceived, _: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
    let add = "UPDATE orders SET paid_cents = paid_cents + $2 WHERE id = $1";
    let added = sqlx::query(add).bind(&event.order).bind(event.cents).execute(tx.connection()).await?;
    match added.rows_affected() {
        0 => Err(HandlerError::transient(format!("there is no order {:?} yet", event.order))),
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    // RabbitMQ has a property for the type; by_header and by_json read it elsewhere.
    let router = Router::new().on("OrderPlaced", json_fn(place)).on("PaymentReceived", json_fn(pay));
    Service::<Amqp, PostgresStore>::new("accounting", Effects::InTransaction, router).tables(TABLES).run()
}
