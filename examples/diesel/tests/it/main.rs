//! The handler's writes, read back from PostgreSQL over a connection that idem has no part in.

mod conformance;

use diesel::{ExpressionMethods as _, QueryDsl as _};
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use diesel_handler::{DieselPostgres, Ledger, TABLES, customers, purchases};
use idem_core::{Decision, DedupConsumer, Effects, ErrorClass, HandlerError, Message, Tx, handler_fn};
use idem_tokio_postgres::PostgresStore;

/// A database of one test.
struct Fixture {
    server: String,
    name: String,
    url: String,
}

impl Fixture {
    async fn new() -> Self {
        let server = std::env::var("IDEM_POSTGRES_URL");
        let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        let name = format!("diesel_{:08x}", fastrand::u32(..));
        let mut admin = AsyncPgConnection::establish(&server).await.expect("PostgreSQL answers: ./servers up postgres");
        admin.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let fixture = Self { server, name, url };
        fixture.connect().await.batch_execute(TABLES).await.unwrap();
        fixture
    }

    async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.url).await.unwrap()
    }

    async fn store(&self) -> DieselPostgres {
        let outside = PostgresStore::connect(&self.url).await.unwrap();
        outside.migrate().await.unwrap();
        DieselPostgres::new(outside, &self.url)
    }

    /// The purchases' cents in order, and the total of each customer.
    async fn written(&self) -> (Vec<i64>, Vec<i64>) {
        let mut connection = self.connect().await;
        let bought = purchases::table.order(purchases::cents.asc()).select(purchases::cents);
        let totals = customers::table.order(customers::customer.asc()).select(customers::cents);
        (bought.load(&mut connection).await.unwrap(), totals.load(&mut connection).await.unwrap())
    }

    async fn drop(self) {
        let mut admin = AsyncPgConnection::establish(&self.server).await.unwrap();
        admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await.unwrap();
    }
}

fn bought(key: &str, customer: &str, cents: i64) -> Message {
    Message::new(format!(r#"{{"customer":"{customer}","cents":{cents}}}"#))
        .with_header("idempotencykey", key.to_owned())
}

#[tokio::test]
async fn what_diesel_writes_is_committed_once_and_with_the_key() {
    let fixture = Fixture::new().await;
    let consumer = DedupConsumer::builder(fixture.store().await, "ledger").handler(Ledger);
    let consumer = consumer.effects(Effects::InTransaction).build().unwrap();

    // The third breaks a rule of the table after the customer's total was changed.
    let messages = || vec![bought("a", "1", 100), bought("b", "2", 10), bought("c", "1", -5), bought("d", "1", 1)];
    let first = consumer.process(messages()).await.unwrap();
    assert!([0, 1, 3].iter().all(|n| first[*n].decision.is_processed()), "{first:?}");
    assert!(matches!(&first[2].decision, Decision::Failed(failure) if failure.class == ErrorClass::Permanent), "{first:?}");
    let again = consumer.process(messages()).await.unwrap();
    assert!([0, 1, 3].iter().all(|n| again[*n].decision.is_skipped()), "{again:?}");
    let other = consumer.process_one(bought("a", "1", 101)).await.unwrap().decision;
    assert!(matches!(other, Decision::Conflict(..)), "{other:?}");
    assert_eq!(fixture.written().await, (vec![1, 10, 100], vec![101, 10]));
    fixture.drop().await;
}

/// The ways in which a handler can harm the transaction through Diesel.
async fn misbehaves(message: &Message, tx: &mut Tx<'_, DieselPostgres>) -> Result<(), HandlerError> {
    let connection = tx.connection();
    connection.batch_execute("INSERT INTO purchases (customer, cents) VALUES ('1', 7)").await?;
    match message.payload().map_or(&b""[..], |payload| payload) {
        b"commits" => connection.batch_execute("COMMIT").await?,
        b"swallows" => drop(connection.batch_execute("SELECT 1/0").await),
        b"nests" => {
            let nested = connection.transaction::<(), diesel::result::Error, _>(async |nested| {
                nested.batch_execute("INSERT INTO purchases (customer, cents) VALUES ('1', 8)").await?;
                Err(diesel::result::Error::RollbackTransaction)
            });
            assert!(nested.await.is_err());
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn a12_a_handler_that_commits_or_swallows_an_error_writes_nothing_and_a_nested_transaction_may_roll_back() {
    let fixture = Fixture::new().await;
    let handler = handler_fn(misbehaves);
    let consumer = DedupConsumer::builder(fixture.store().await, "ledger").handler(handler);
    let consumer = consumer.effects(Effects::InTransaction).build().unwrap();
    for misdeed in ["commits", "swallows"] {
        let message = Message::new(misdeed).with_header("idempotencykey", misdeed.to_owned());
        let decision = consumer.process_one(message).await.unwrap().decision;
        assert!(matches!(decision, Decision::Failed(_)), "{misdeed}: {decision:?}");
        assert!(fixture.written().await.0.is_empty(), "{misdeed}");
    }
    let nests = Message::new("nests").with_header("idempotencykey", "nests".to_owned());
    let decision = consumer.process_one(nests).await.unwrap().decision;
    assert!(decision.is_processed(), "{decision:?}");
    assert_eq!(fixture.written().await.0, [7]);
    fixture.drop().await;
}
