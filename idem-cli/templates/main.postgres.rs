use std::process::ExitCode;

use idem_service::prelude::*;

const TABLES: &str = "CREATE TABLE IF NOT EXISTS customers (
    customer text PRIMARY KEY, cents bigint NOT NULL)";

#[derive(serde::Deserialize)]
struct Purchase {
    customer: String,
    cents: i64,
}

async fn buy(bought: Purchase, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
    let add = "INSERT INTO customers VALUES ($1, $2)
        ON CONFLICT (customer) DO UPDATE SET cents = customers.cents + excluded.cents";
    sqlx::query(add)
        .bind(bought.customer)
        .bind(bought.cents)
        .execute(tx.connection())
        .await?;
    Ok(())
}

fn main() -> ExitCode {
    Service::<@BROKER@, PostgresStore>::new("@NAME@", Effects::InTransaction, json_fn(buy))
        .tables(TABLES)
        .run()
}

#[cfg(test)]
mod tests;
