use std::process::ExitCode;

use idem_service::prelude::*;

const TABLES: &str = "CREATE TABLE IF NOT EXISTS customers (
    customer TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT";

#[derive(serde::Deserialize)]
struct Purchase {
    customer: String,
    cents: i64,
}

async fn buy(bought: Purchase, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
    let add = "INSERT INTO customers VALUES (?, ?)
        ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents";
    sqlx::query(add)
        .bind(bought.customer)
        .bind(bought.cents)
        .execute(tx.connection())
        .await?;
    Ok(())
}

fn main() -> ExitCode {
    Service::<@BROKER@, SqliteStore>::new("@NAME@", Effects::InTransaction, json_fn(buy))
        .tables(TABLES)
        .run()
}

#[cfg(test)]
mod tests;
