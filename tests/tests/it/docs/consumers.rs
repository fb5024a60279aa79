//! Two consumers that `docs/guide/handlers-and-effects.md` links to: one of SQS, and one of Kafka with a key by place and by order.

use idem_core::{
    Decision, DedupConsumer, Effects, Handler, HandlerError, Message, Tx,
    key::{JsonMember, MessageId},
    message::Origin,
};
use idem_sqlx::PostgresStore;
use idem_testkit::Decide as _;
use serde::Deserialize;
use sqlx::{Connection as _, PgConnection, query_scalar, raw_sql};

use crate::support::postgres::FreshPostgres;

#[derive(Deserialize)]
struct PaymentSettled {
    order_id: String,
}

/// Marks an order as paid, and asks for one receipt.
struct PaymentProcessor;

impl Handler<PostgresStore> for PaymentProcessor {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let PaymentSettled { order_id } = message.json()?;
        let paid = sqlx::query("UPDATE orders SET payment_status = 'paid' WHERE id = $1").bind(&order_id);
        if paid.execute(tx.connection()).await?.rows_affected() == 0 {
            return Err(HandlerError::permanent(format!("there is no order {order_id:?}")));
        }
        sqlx::query("INSERT INTO receipts (order_id) VALUES ($1)").bind(&order_id).execute(tx.connection()).await?;
        Ok(())
    }
}

#[derive(Deserialize)]
struct Order {
    order_id: String,
    cents: i64,
}

struct TakeOrder;

impl Handler<PostgresStore> for TakeOrder {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let Order { order_id, cents } = message.json()?;
        let taken = sqlx::query("INSERT INTO taken (order_id, cents) VALUES ($1, $2)").bind(order_id).bind(cents);
        taken.execute(tx.connection()).await?;
        Ok(())
    }
}

async fn migrated(place: &FreshPostgres, tables: &'static str) -> (PostgresStore, PgConnection) {
    let store = PostgresStore::connect(&place.url()).await.unwrap();
    store.migrate().await.unwrap();
    let mut database = PgConnection::connect(&place.url()).await.unwrap();
    raw_sql(tables).execute(&mut database).await.unwrap();
    (store, database)
}

async fn count(database: &mut PgConnection, what: &'static str) -> i64 {
    query_scalar(what).fetch_one(database).await.unwrap()
}

/// SQS delivers a message again, with its message id, and the sender sends it again, with another.
#[tokio::test]
async fn an_order_is_paid_once_and_has_one_receipt() {
    let place = FreshPostgres::create("idem_payments").await;
    let tables = "CREATE TABLE orders (id text PRIMARY KEY, payment_status text NOT NULL DEFAULT 'pending'); \
                  CREATE TABLE receipts (order_id text NOT NULL); INSERT INTO orders VALUES ('order-1'), ('order-2')";
    let (store, mut database) = migrated(&place, tables).await;
    let consumer = DedupConsumer::builder(store.clone(), "payment-processor")
        .handler(PaymentProcessor)
        .effects(Effects::InTransaction)
        .build()
        .unwrap();
    let payment = |message_id: &str, order_id: &str| {
        let payload = format!(r#"{{"idempotencykey":"payment-of-{order_id}","order_id":"{order_id}"}}"#);
        Message::new(payload).with_id(message_id).with_origin(Origin::new(&format!("payments/{message_id}")))
    };
    assert!(consumer.decisions(vec![payment("m-1", "order-1")]).await.unwrap()[0].is_processed());
    for again in ["m-1", "m-2"] {
        assert!(consumer.decisions(vec![payment(again, "order-1")]).await.unwrap()[0].is_skipped(), "{again}");
    }
    let unknown = consumer.decisions(vec![payment("m-3", "order-9")]).await.unwrap();
    assert!(matches!(unknown[0], Decision::Failed(_)), "{unknown:?}");
    assert_eq!(count(&mut database, "SELECT count(*) FROM orders WHERE payment_status = 'paid'").await, 1);
    assert_eq!(count(&mut database, "SELECT count(*) FROM receipts").await, 1);
    store.disconnect().await;
    database.close().await.unwrap();
    place.remove().await;
}

/// A place in a topic is one message to the broker; a second copy of its producer's has another place.
#[tokio::test]
async fn a_place_in_a_topic_misses_what_the_producer_sends_again_and_the_orders_id_does_not() {
    let place = FreshPostgres::create("idem_offsets").await;
    let tables = "CREATE TABLE taken (order_id text NOT NULL, cents bigint NOT NULL)";
    let (store, mut database) = migrated(&place, tables).await;
    let order = |place: &str| {
        let payload = r#"{"order_id":"order-1","cents":1177}"#;
        Message::new(payload).with_id(place).with_origin(Origin::new(place))
    };
    // A rebalance, and then a send that the producer repeats.
    let deliveries = ["orders/3/41", "orders/3/41", "orders/3/42"].map(order);
    let by_place = DedupConsumer::builder(store.clone(), "orders-by-place")
        .key_source(MessageId) // topic, partition, offset
        .handler(TakeOrder)
        .effects(Effects::InTransaction)
        .build()
        .unwrap();
    let by_order = DedupConsumer::builder(store.clone(), "orders")
        .key_source(JsonMember::field("order_id"))
        .handler(TakeOrder)
        .effects(Effects::InTransaction)
        .build()
        .unwrap();
    for (consumer, taken) in [(by_place, 2), (by_order, 1)] {
        for delivery in &deliveries {
            consumer.decisions(vec![delivery.clone()]).await.unwrap();
        }
        assert_eq!(count(&mut database, "SELECT count(*) FROM taken").await, taken);
        raw_sql("TRUNCATE taken").execute(&mut database).await.unwrap();
    }
    store.disconnect().await;
    database.close().await.unwrap();
    place.remove().await;
}
