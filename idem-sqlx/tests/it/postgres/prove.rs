//! `idem_testkit::prove` on PostgreSQL: it holds a good handler for good, and says of each bad one what is wrong with it.

use std::{collections::BTreeSet, sync::Mutex};

use idem_core::{Handler, HandlerError, Message, Tx, failpoint};
use idem_sqlx::{PostgresScratch, PostgresStore};
use idem_testkit::{NotProven, Promise, Proven, message, prove};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::fixture::url;

/// Numbers from sequences, times, a reference, a running total: the columns that applications have.
const TABLES: &str = "
CREATE TABLE customers (name text PRIMARY KEY, cents bigint NOT NULL);
INSERT INTO customers VALUES ('ann', 0), ('bob', 100);
CREATE TABLE purchases (id bigserial PRIMARY KEY, key text NOT NULL, cents bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());
CREATE TABLE lines (purchase bigint NOT NULL REFERENCES purchases, article text NOT NULL);";

fn databases() -> PostgresScratch {
    let prepare = async |options: PgConnectOptions| {
        let mut connection = options.connect().await?;
        sqlx::raw_sql(TABLES).execute(&mut connection).await?;
        Ok(connection.close().await?)
    };
    PostgresScratch::new(&url(), prepare).unwrap()
}

fn messages() -> Vec<Message> {
    [("order-1", "250"), ("order-2", "990"), ("order-3", "5"), ("order-4", "250")].map(|(k, p)| message(k, p)).to_vec()
}

async fn proved<H: Handler<PostgresStore>>(
    handler: impl Fn(&PgConnectOptions) -> H + Send + Sync + 'static,
) -> Result<Proven, NotProven> {
    prove(databases(), handler).messages(messages()).run().await
}

/// The broken promise, and the text, which names the database that is left; that is dropped here.
async fn broken(proved: Result<Proven, NotProven>) -> (Promise, String) {
    let error = proved.unwrap_err();
    let NotProven::Broken { promise, .. } = &error else { panic!("{error}") };
    let (promise, text) = (*promise, error.to_string());
    let left = text.split("The database ").nth(1).and_then(|rest| rest.split(' ').next());
    if let Some(name) = left {
        let mut connection = PgConnection::connect(&url()).await.unwrap();
        let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
        sqlx::raw_sql(drop).execute(&mut connection).await.unwrap();
    }
    (promise, text)
}

fn key(message: &Message) -> &str {
    message.key().map(|key| key.as_str()).unwrap_or_default()
}

async fn buy(message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
    let cents: i64 = message.json()?;
    let insert = "INSERT INTO purchases (key, cents) VALUES ($1, $2) RETURNING id";
    let row = sqlx::query(insert).bind(key(message)).bind(cents).fetch_one(&mut *connection).await?;
    let line = sqlx::query("INSERT INTO lines VALUES ($1, 'cd')").bind(row.get::<i64, _>(0));
    line.execute(&mut *connection).await?;
    let credit = sqlx::query("UPDATE customers SET cents = cents + $1 WHERE name = 'ann'").bind(cents);
    credit.execute(connection).await?;
    Ok(())
}

struct Ledger;

impl Handler<PostgresStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        buy(message, tx.connection()).await
    }
}

#[tokio::test]
async fn j62_a_handler_that_writes_through_its_transaction_is_proved() {
    let proven = proved(|_| Ledger).await.unwrap();
    let points: BTreeSet<_> = failpoint::ALL.iter().copied().chain(["handler_waits"]).collect();
    let spared: Vec<_> =
        points.difference(&proven.died_at).filter(|point| !failpoint::OF_A_RELAY.contains(point)).collect();
    assert_eq!(spared, [&"appended", &"clean_chunk"], "the handler publishes nothing: {proven}");
    assert_eq!(proven.not_compared, ["lines.purchase", "purchases.at", "purchases.id"]);
    eprintln!("{proven}");
}

/// Writes to the same database over a pool of its own.
struct OverAPool(PgPool);

impl Handler<PostgresStore> for OverAPool {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        buy(message, tx.connection()).await?;
        let insert = "INSERT INTO purchases (key, cents) VALUES ($1, 1)";
        sqlx::query(insert).bind(format!("audit of {}", key(message))).execute(&self.0).await?;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_write_over_another_connection_is_told_with_its_row() {
    let pool = |options: &PgConnectOptions| OverAPool(PgPoolOptions::new().connect_lazy_with(options.clone()));
    let (promise, text) = broken(proved(pool).await).await;
    assert_eq!(promise, Promise::RollsBack, "{text}");
    assert!(text.contains("your handler wrote through a connection that is not `tx`: row ("), "{text}");
    assert!(text.contains("key=audit of order-1) of table purchases remained after the rollback"), "{text}");
}

/// Ends the transaction that it was given.
struct CommitsItself {
    and_swallows: bool,
}

impl Handler<PostgresStore> for CommitsItself {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        buy(message, tx.connection()).await?;
        let committed = sqlx::raw_sql("COMMIT").execute(tx.connection()).await;
        if !self.and_swallows {
            committed?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_handler_that_ends_its_transaction_is_told_so() {
    for and_swallows in [true, false] {
        let text = proved(move |_| CommitsItself { and_swallows }).await.unwrap_err().to_string();
        assert!(text.contains("Your handler ends the transaction that it was given"), "{text}");
    }
}

/// Takes what fails for done.
struct Swallows;

impl Handler<PostgresStore> for Swallows {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        if buy(message, tx.connection()).await.is_err() {
            // "It is there already."
        }
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_swallowed_error_is_told_with_its_message() {
    let (promise, text) = broken(proved(|_| Swallows).await).await;
    assert_eq!(promise, Promise::HandsErrorsOn, "{text}");
    assert!(text.contains("your handler answered Ok for message order-1 although its statements had failed"), "{text}");
}

/// Reads a balance and writes another: between the two another transaction may have written.
struct ReadsAndWrites;

impl Handler<PostgresStore> for ReadsAndWrites {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let cents: i64 = message.json()?;
        let select = sqlx::query_scalar::<_, i64>("SELECT cents FROM customers WHERE name = 'ann'");
        let balance = select.fetch_one(tx.connection()).await?;
        let update = sqlx::query("UPDATE customers SET cents = $1 WHERE name = 'ann'").bind(balance + cents);
        update.execute(tx.connection()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_lost_update_is_told() {
    let (promise, text) = broken(proved(|_| ReadsAndWrites).await).await;
    assert_eq!(promise, Promise::WorksBesideItself, "{text}");
    assert!(text.contains("Does your handler read a value and write another that it made of it?"), "{text}");
}

/// Remembers what it has seen, although that was rolled back.
#[derive(Default)]
struct Remembers(Mutex<BTreeSet<String>>);

impl Handler<PostgresStore> for Remembers {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        if !self.0.lock().unwrap().insert(key(message).to_owned()) {
            return Ok(());
        }
        buy(message, tx.connection()).await
    }
}

#[tokio::test]
async fn j62_state_that_outlives_an_attempt_is_told() {
    let (promise, text) = broken(proved(|_| Remembers::default()).await).await;
    assert_eq!(promise, Promise::ForgetsAttempts, "{text}");
    assert!(text.contains("Does your handler keep something in memory between attempts"), "{text}");
}
