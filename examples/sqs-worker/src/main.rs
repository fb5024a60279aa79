//! Consumes purchases from SQS into a ledger in PostgreSQL, each exactly once.

use std::{process::ExitCode, time::Duration};

use idem_service::{clap, prelude::*};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS purchases (idempotency_key text NOT NULL, customer text NOT NULL, day date NOT NULL,
        cds int NOT NULL, cents bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS customers (customer text PRIMARY KEY, purchases bigint NOT NULL, cents bigint NOT NULL)";

/// The payload of a message. A message with any other payload is a dead letter.
#[derive(serde::Deserialize, serde::Serialize)]
struct Purchase {
    customer: String,
    day: String,
    cds: i32,
    cents: i64,
}

/// The event of a purchase, with the key of its message.
#[derive(serde::Serialize)]
struct Recorded<'p> {
    purchase: &'p str,
    #[serde(flatten)]
    bought: &'p Purchase,
}

/// The settings of this worker alone, which `--help` lists next to those of every worker.
#[derive(Debug, clap::Args)]
struct Own {
    /// Send an event for each purchase to this queue, by its URL [default: none]
    #[arg(long, env = "LEDGER_ANNOUNCE", value_name = "URL")]
    announce: Option<String>,

    /// How long SQS hides a received message from other workers, in seconds; it must be longer than --handler-deadline
    #[arg(long, env = "LEDGER_VISIBILITY", value_name = "SECONDS", default_value_t = 60)]
    visibility: u64,
}

/// Writes the purchase and adds it to its customer's total, in the transaction that records the message's key.
async fn buy(bought: &Purchase, key: &str, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
    let Purchase { customer, day, cds, cents } = bought;
    let insert = "INSERT INTO purchases VALUES ($1, $2, $3::text::date, $4, $5)";
    let insert = sqlx::query(insert).bind(key).bind(customer).bind(day).bind(cds).bind(cents);
    insert.execute(tx.connection()).await?;
    let add = "INSERT INTO customers VALUES ($1, 1, $2) ON CONFLICT (customer)
        DO UPDATE SET purchases = customers.purchases + 1, cents = customers.cents + excluded.cents";
    sqlx::query(add).bind(customer).bind(cents).execute(tx.connection()).await?;
    Ok(())
}

fn main() -> ExitCode {
    let worker = async |Own { announce, visibility }: Own| {
        let destination = announce.clone();
        let handle = async move |bought: Purchase, message: &Message, tx: &mut Tx<'_, PostgresStore>| {
            let key = message.key().map_or("", |key| key.as_str());
            buy(&bought, key, tx).await?;
            if let Some(destination) = destination {
                let event =
                    Event::to(&destination).event_type("PurchaseRecorded").ordering_key(bought.customer.clone());
                tx.publish(message, event.json(&Recorded { purchase: key, bought: &bought })?)?;
            }
            Ok(())
        };
        let service =
            Service::new("ledger", Effects::InTransaction, json_fn(handle)).tables(TABLES).publish_to(announce);
        Ok(service.broker(move |sqs: Sqs| sqs.visibility(Duration::from_secs(visibility))))
    };
    Service::<Sqs, PostgresStore>::from_args(worker).run()
}
