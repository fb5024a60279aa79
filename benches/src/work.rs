//! The two works, by hand and as handlers of both PostgreSQL stores: *insert* is a row of 200-byte JSON a message, and
//! *purchase* that row and a relative update of the customer's balance.

mod pipelined;

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
    message::OrderingKey,
};
use idem_sqlx::PostgresStore;
use serde::Deserialize;
use sqlx::PgConnection;
use uuid::Uuid;

/// How many customers there are.
pub(crate) const CUSTOMERS: usize = 10_000;

/// The price of every purchase.
pub(crate) const CENTS: i64 = 1177;

/// The work that a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Insert,
    Purchase,
}

pub(crate) const INSERT: &str = "INSERT INTO idem_bench.orders (id, body) VALUES ($1, $2::text::jsonb)";
const INSERT_ALL: &str =
    "INSERT INTO idem_bench.orders SELECT id, body::jsonb FROM unnest($1::uuid[], $2::text[]) AS o (id, body)";
const ADD: &str = "UPDATE idem_bench.customers SET cents = cents + $2 WHERE customer = $1";
// Each customer once, because an UPDATE changes a row once.
const ADD_ALL: &str = "UPDATE idem_bench.customers AS c SET cents = c.cents + p.cents
    FROM (SELECT customer, sum(cents)::bigint AS cents FROM unnest($1::text[], $2::bigint[]) AS p (customer, cents)
          GROUP BY customer) AS p
    WHERE c.customer = p.customer";

/// Tables without a row, and all customers.
pub(crate) const TABLES: &str = "
    DROP SCHEMA IF EXISTS idem_bench CASCADE;
    CREATE SCHEMA idem_bench;
    CREATE TABLE idem_bench.orders (id uuid PRIMARY KEY, body jsonb NOT NULL);
    CREATE TABLE idem_bench.customers (customer text PRIMARY KEY, cents bigint NOT NULL);
    CREATE TABLE idem_bench.seen (consumer text, message_id text, at timestamptz NOT NULL DEFAULT now(),
                                  PRIMARY KEY (consumer, message_id));
    CREATE TABLE idem_bench.inbox_consumed (consumer text NOT NULL, event_id uuid NOT NULL,
                                            consumed_at timestamptz NOT NULL DEFAULT now(),
                                            PRIMARY KEY (consumer, event_id));
    INSERT INTO idem_bench.customers SELECT lpad(n::text, 5, '0'), 0 FROM generate_series(0, 9999) AS n";

/// 200 bytes of JSON.
pub(crate) fn body(customer: usize) -> String {
    let note = "x".repeat(127);
    format!(r#"{{"customer":"{customer:05}","day":"1997-01-01","cds":1,"cents":{CENTS},"note":"{note}"}}"#)
}

/// The payload, as far as a purchase reads it.
#[derive(Debug, Deserialize)]
struct Bought {
    customer: String,
    cents: i64,
}

impl Work {
    pub(crate) const ALL: [Self; 2] = [Self::Insert, Self::Purchase];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Purchase => "purchase",
        }
    }

    /// How many effects there are, by the table that a second one would show in.
    pub(crate) fn counted(self) -> &'static str {
        match self {
            Self::Insert => "SELECT count(*) FROM idem_bench.orders",
            // Every purchase costs the same.
            Self::Purchase => "SELECT (sum(cents) / 1177)::bigint FROM idem_bench.customers",
        }
    }

    pub(crate) fn message(self, customer: usize, key: String) -> Message {
        Message::new(body(customer)).with_header("idempotencykey", key)
    }

    /// The ordering key that keeps the messages of one customer on one lane.
    pub(crate) fn lane_of(customer: usize) -> OrderingKey {
        OrderingKey::new(format!("{customer:05}"))
    }

    /// One message, by hand.
    pub(crate) async fn run(self, connection: &mut PgConnection, customer: usize) -> Result<(), sqlx::Error> {
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(body(customer)).execute(&mut *connection).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                sqlx::query(ADD).bind(format!("{customer:05}")).bind(CENTS).execute(connection).await?;
            }
        }
        Ok(())
    }

    /// The statements of one message for pgbench, with values made by it.
    pub(crate) fn script(self) -> String {
        let body = body(12_345).replace("12345", r"' || lpad((:customer)::text, 5, '0') || '");
        let insert = format!("INSERT INTO idem_bench.orders VALUES (gen_random_uuid(), ('{body}')::text::jsonb);\n");
        match self {
            Self::Insert => insert,
            Self::Purchase => {
                let customer = "lpad((:customer)::text, 5, '0')";
                let add = "UPDATE idem_bench.customers SET cents = cents +";
                format!("{insert}{add} {CENTS} WHERE customer = {customer};\n")
            }
        }
    }
}

fn text(message: &Message) -> Result<&str, HandlerError> {
    Ok(std::str::from_utf8(message.payload().ok_or("no payload")?)?)
}

fn bought(messages: &[&Message]) -> Result<(Vec<String>, Vec<i64>), HandlerError> {
    let bought = messages.iter().map(|message| message.json()).collect::<Result<Vec<Bought>, _>>()?;
    Ok(bought.into_iter().map(|Bought { customer, cents }| (customer, cents)).unzip())
}

impl Handler<PostgresStore> for Work {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        sqlx::query(INSERT).bind(Uuid::new_v4()).bind(text(message)?).execute(tx.connection()).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                let Bought { customer, cents } = message.json()?;
                sqlx::query(ADD).bind(customer).bind(cents).execute(tx.connection()).await?;
            }
        }
        Ok(())
    }
}

impl BatchHandler<PostgresStore> for Work {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, PostgresStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::new_v4()).collect();
        let bodies = messages.iter().map(|message| text(message)).collect::<Result<Vec<_>, _>>()?;
        sqlx::query(INSERT_ALL).bind(ids).bind(bodies).execute(tx.connection()).await?;
        match self {
            Self::Insert => {}
            Self::Purchase => {
                let (customers, cents) = bought(messages)?;
                sqlx::query(ADD_ALL).bind(customers).bind(cents).execute(tx.connection()).await?;
            }
        }
        Ok(BatchAnswer::all_handled())
    }
}
