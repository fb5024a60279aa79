//! The two works, by hand and as handlers: a row a message; and a purchase, which is a row and an update of the customer's
//! balance.

use idem_core::{BatchAnswer, BatchHandler, Handler, HandlerError, Message, OrderingKey, Tx};
use idem_tokio_postgres::{
    Postgres,
    tokio_postgres::{Client, Error, Statement},
};
use serde::Deserialize;
use uuid::Uuid;

use crate::postgres::body;

/// How many customers there are.
pub(super) const CUSTOMERS: usize = 10_000;

/// What a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Insert,
    Purchase,
}

const INSERT: &str = "INSERT INTO idem_bench.orders (id, body) VALUES ($1, $2::text::jsonb)";
const INSERT_ALL: &str =
    "INSERT INTO idem_bench.orders SELECT id, body::jsonb FROM unnest($1::uuid[], $2::text[]) AS o (id, body)";
const BUY: &str = "INSERT INTO idem_bench.purchases (id, customer, cents) VALUES ($1, $2, $3)";
const BUY_ALL: &str = "INSERT INTO idem_bench.purchases SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS p (id, customer, cents)";
const ADD: &str = "UPDATE idem_bench.customers SET cents = cents + $2 WHERE customer = $1";
// Each customer once, because an UPDATE changes a row once.
const ADD_ALL: &str = "UPDATE idem_bench.customers AS c SET cents = c.cents + p.cents
    FROM (SELECT customer, sum(cents)::bigint AS cents FROM unnest($1::text[], $2::bigint[]) AS p (customer, cents)
          GROUP BY customer) AS p
    WHERE c.customer = p.customer";

/// Tables without a row, and all customers.
pub(super) const TABLES: &str = "
    CREATE TABLE idem_bench.purchases (id uuid PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL);
    CREATE TABLE idem_bench.customers (customer text PRIMARY KEY, cents bigint NOT NULL);
    INSERT INTO idem_bench.customers SELECT lpad(n::text, 5, '0'), 0 FROM generate_series(0, 9999) AS n";

/// The payload, as far as a purchase reads it.
#[derive(Debug, Deserialize)]
struct Bought {
    customer: String,
    cents: i64,
}

impl Work {
    pub(super) const ALL: [Self; 2] = [Self::Insert, Self::Purchase];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Purchase => "purchase",
        }
    }

    /// How many rows there are, by the table that a second effect would show in.
    pub(super) fn counted(self) -> &'static str {
        match self {
            Self::Insert => "SELECT count(*) FROM idem_bench.orders",
            // Every purchase is of 1177 cents.
            Self::Purchase => "SELECT (sum(cents) / 1177)::bigint FROM idem_bench.customers",
        }
    }

    /// The message of a customer; those of one customer are handled in turn, as where lanes are by key.
    pub(super) fn message(self, customer: usize) -> Message {
        let message = Message::new(body(customer)).with_header("idempotencykey", Uuid::new_v4().to_string());
        match self {
            Self::Insert => message,
            Self::Purchase => message.with_ordering_key(OrderingKey::new(format!("{customer:05}"))),
        }
    }

    /// The statements of a hand-written loop.
    pub(super) async fn prepare(self, client: &Client) -> Result<Vec<Statement>, Error> {
        Ok(match self {
            Self::Insert => vec![client.prepare(INSERT).await?],
            Self::Purchase => vec![client.prepare(BUY).await?, client.prepare(ADD).await?],
        })
    }

    /// One message, by hand.
    pub(super) async fn run(self, client: &Client, statements: &[Statement], customer: usize) -> Result<(), Error> {
        let (id, text, cents) = (Uuid::new_v4(), format!("{customer:05}"), 1177_i64);
        match (self, statements) {
            (Self::Insert, [insert, ..]) => client.execute(insert, &[&id, &body(customer)]).await.map(|_| ()),
            (Self::Purchase, [buy, add]) => {
                client.execute(buy, &[&id, &text, &cents]).await?;
                client.execute(add, &[&text, &cents]).await.map(|_| ())
            }
            (Self::Insert | Self::Purchase, _) => Ok(()),
        }
    }
}

fn text(message: &Message) -> Result<&str, HandlerError> {
    Ok(std::str::from_utf8(message.payload().ok_or("no payload")?)?)
}

impl Handler<Postgres> for Work {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        let tx = tx.connection();
        match self {
            Self::Insert => tx.execute(INSERT, &[&Uuid::new_v4(), &text(message)?]).await?,
            Self::Purchase => {
                let Bought { customer, cents } = message.json()?;
                tx.execute(BUY, &[&Uuid::new_v4(), &customer, &cents]).await?;
                tx.execute(ADD, &[&customer, &cents]).await?
            }
        };
        Ok(())
    }
}

impl Handler<idem_sqlx::Postgres> for Work {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, idem_sqlx::Postgres>) -> Result<(), HandlerError> {
        match self {
            Self::Insert => {
                sqlx::query(INSERT).bind(Uuid::new_v4()).bind(text(message)?).execute(tx.connection()).await?
            }
            Self::Purchase => {
                let Bought { customer, cents } = message.json()?;
                let buy = sqlx::query(BUY).bind(Uuid::new_v4()).bind(&customer).bind(cents);
                buy.execute(tx.connection()).await?;
                sqlx::query(ADD).bind(&customer).bind(cents).execute(tx.connection()).await?
            }
        };
        Ok(())
    }
}

impl BatchHandler<Postgres> for Work {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, Postgres>,
    ) -> Result<BatchAnswer, HandlerError> {
        let tx = tx.connection();
        let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::new_v4()).collect();
        match self {
            Self::Insert => {
                let bodies = messages.iter().map(|message| text(message)).collect::<Result<Vec<_>, _>>()?;
                tx.execute(INSERT_ALL, &[&ids, &bodies]).await?;
            }
            Self::Purchase => {
                let bought = messages.iter().map(|message| message.json()).collect::<Result<Vec<Bought>, _>>()?;
                let (customers, cents): (Vec<_>, Vec<_>) =
                    bought.into_iter().map(|Bought { customer, cents }| (customer, cents)).unzip();
                tx.execute(BUY_ALL, &[&ids, &customers, &cents]).await?;
                tx.execute(ADD_ALL, &[&customers, &cents]).await?;
            }
        }
        Ok(BatchAnswer::all_handled())
    }
}
