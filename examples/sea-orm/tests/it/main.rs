//! The handler's writes, read back from PostgreSQL through SeaORM's own pool.

use idem_core::{Decision, DedupConsumer, Effects, ErrorClass, Message};
use idem_sqlx::PostgresStore;
use sea_orm::{Database, EntityTrait as _, QueryOrder as _};
use sea_orm_handler::{Ledger, TABLES, customer, purchase};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};

fn bought(key: &str, customer: &str, cents: i64) -> Message {
    Message::new(format!(r#"{{"customer":"{customer}","cents":{cents}}}"#))
        .with_header("idempotencykey", key.to_owned())
}

#[tokio::test]
async fn what_sea_orm_writes_is_committed_once_and_with_the_key() {
    let server = std::env::var("IDEM_POSTGRES_URL");
    let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
    let name = format!("sea_orm_{:08x}", fastrand::u32(..));
    let mut admin = PgConnection::connect(&server).await.expect("PostgreSQL answers: ./servers up postgres");
    raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"))).execute(&mut admin).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    raw_sql(TABLES).execute(&mut PgConnection::connect(&url).await.unwrap()).await.unwrap();
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let consumer = DedupConsumer::builder(store, "ledger").handler(Ledger).effects(Effects::InTransaction).build();
    let consumer = consumer.unwrap();

    // The third breaks a rule of the table after the customer's total was changed.
    let messages = || vec![bought("a", "1", 100), bought("b", "2", 10), bought("c", "1", -5), bought("d", "1", 1)];
    let first = consumer.process(messages()).await.unwrap();
    assert!([0, 1, 3].iter().all(|n| first[*n].decision.is_processed()), "{first:?}");
    assert!(matches!(&first[2].decision, Decision::Failed(failure) if failure.class == ErrorClass::Permanent), "{first:?}");
    let again = consumer.process(messages()).await.unwrap();
    assert!([0, 1, 3].iter().all(|n| again[*n].decision.is_skipped()), "{again:?}");

    let db = Database::connect(&url).await.unwrap();
    let purchases = purchase::Entity::find().order_by_asc(purchase::Column::Cents).all(&db).await.unwrap();
    let purchases: Vec<_> = purchases.iter().map(|row| (row.customer.as_str(), row.cents)).collect();
    assert_eq!(purchases, [("1", 1), ("2", 10), ("1", 100)]);
    let customers = customer::Entity::find().order_by_asc(customer::Column::Customer).all(&db).await.unwrap();
    assert_eq!(customers.iter().map(|row| row.cents).collect::<Vec<_>>(), [101, 10]);
    db.close().await.unwrap();
    raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut admin).await.unwrap();
}
