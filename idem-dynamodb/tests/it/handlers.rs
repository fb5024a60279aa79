//! What handlers have: writes that are sent with the commit, and reads that see all that was committed before.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use idem_core::{
    Decision, DedupConsumer, Effects, ErrorClass, Handler, HandlerError, IdempotencyKey, Message, ResultBody,
    Store as _, Tx, store::Bookkeeping as _,
};
use idem_dynamodb::{
    DynamoStore,
    aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, Delete, Put, Update},
};
use idem_testkit::message;

use super::fixture::{Table, at, number, string};

fn n(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

fn consumer(table: &Table, handler: impl Handler<DynamoStore>) -> DedupConsumer<DynamoStore> {
    let builder = DedupConsumer::builder(Arc::clone(&table.store), "purchases").keep_results(1 << 16);
    builder.handler(handler).effects(Effects::InTransaction).build().unwrap()
}

/// Reads a balance, and writes it back changed; another process changes it in between in the first run.
struct Debits {
    runs: AtomicUsize,
    guards: bool,
}

impl Handler<DynamoStore> for Debits {
    async fn handle(&self, _: &Message, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
        let mut tx = tx.connection();
        let (table, place) = (tx.table().to_owned(), at("account#ann", "-"));
        let read = tx.get(&table, place.clone()).await?.unwrap_or_default();
        let balance = number(&read, "cents");
        if self.runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut changed = place.clone();
            changed.insert("cents".to_owned(), n(balance + 1_000));
            tx.client()
                .put_item()
                .table_name(&table)
                .set_item(Some(changed))
                .send()
                .await
                .map_err(|error| error.to_string())?;
        }
        let debit = Update::builder()
            .table_name(&table)
            .set_key(Some(place))
            .update_expression("SET cents = :new")
            .condition_expression("attribute_not_exists(cents) OR cents = :old")
            .expression_attribute_values(":new", n(balance - 10))
            .expression_attribute_values(":old", n(balance))
            .build()?;
        let write = tx.write(debit);
        if self.guards {
            write.as_read();
        }
        Ok(())
    }
}

/// A write that guards a read runs again where the item was changed since, and reads again; without that its message fails for good.
#[tokio::test]
async fn a_write_that_guards_a_read_runs_again() {
    let table = Table::new("handlers").await;
    let guarded = consumer(&table, Debits { runs: AtomicUsize::new(0), guards: true });
    let decision = guarded.process_one(message("order-1", "p")).await.unwrap().decision;
    assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
    let account = table.items_of("account#").await;
    assert_eq!(number(&account[0], "cents"), 990);
    let plain = consumer(&table, Debits { runs: AtomicUsize::new(0), guards: false });
    let decision = plain.process_one(message("order-2", "p")).await.unwrap().decision;
    let Decision::Failed(failure) = &decision else { panic!("{decision:?}") };
    assert_eq!(failure.class, ErrorClass::Permanent);
    assert!(failure.text.contains("ConditionalCheckFailed") && !failure.text.contains("ann"), "{failure:?}");
    assert_eq!(number(&table.items_of("account#").await[0], "cents"), 1_990);
    table.drop().await;
}

/// Writes of every kind, and a query of the items of its own partition, as the first run has left them.
struct Everything;

impl Handler<DynamoStore> for Everything {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        let mut own = tx.connection();
        let table = own.table().to_owned();
        let query = own.client().query().table_name(&table).key_condition_expression("pk = :pk");
        let query = query.expression_attribute_values(":pk", AttributeValue::S("line#".to_owned()));
        let seen = own.query(query).await?.count;
        let old = ConditionCheck::builder().table_name(&table).set_key(Some(at("line#", "none")));
        own.write(old.condition_expression("attribute_not_exists(pk)").build()?);
        own.write(Put::builder().table_name(&table).set_item(Some(at("line#", &key))).build()?);
        own.write(Delete::builder().table_name(&table).set_key(Some(at("line#", "order-1"))).build()?).as_read();
        tx.set_result(message, ResultBody::new(seen.to_string()))?;
        Ok(())
    }
}

#[tokio::test]
async fn reads_see_what_was_committed_and_a_result_is_kept_with_the_writes() {
    let table = Table::new("handlers").await;
    let lines = consumer(&table, Everything);
    for (key, seen) in [("order-2", "0"), ("order-3", "1"), ("order-2", "0")] {
        let decided = lines.process_with_results(vec![message(key, "p")]).await.unwrap();
        let result = decided.into_iter().next().unwrap().result.unwrap().unwrap();
        assert_eq!(&result.result.body[..], seen.as_bytes(), "{key}");
    }
    let left = table.items_of("line#").await;
    assert_eq!(left.iter().map(|item| string(item, "sk")).collect::<Vec<_>>(), ["order-2", "order-3"]);
    table.drop().await;
}

/// Writes as many items as the payload says.
struct Many;

impl Handler<DynamoStore> for Many {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
        let count: usize = message.json()?;
        let mut tx = tx.connection();
        for number in 0..count {
            let item = at("many#", &format!("{number:03}"));
            tx.write(Put::builder().table_name(tx.table()).set_item(Some(item)).build()?);
        }
        Ok(())
    }
}

/// Ninety-nine writes are committed with the record; with more, nothing is sent, and the message fails with the number.
#[tokio::test]
async fn a_message_writes_at_most_ninety_nine_items() {
    let table = Table::new("handlers").await;
    let many = consumer(&table, Many);
    // A new name is a transaction too.
    many.start().await.unwrap();
    let before = table.proxy.requests("TransactWriteItems");
    let decision = many.process_one(message("order-1", "100")).await.unwrap().decision;
    let Decision::Failed(failure) = &decision else { panic!("{decision:?}") };
    assert_eq!((failure.class, table.proxy.requests("TransactWriteItems")), (ErrorClass::Permanent, before));
    assert!(failure.text.contains("TooManyWrites"), "{failure:?}");
    let decision = many.process_one(message("order-2", "99")).await.unwrap().decision;
    assert!(matches!(decision, Decision::Processed(_)), "{decision:?}");
    assert_eq!(table.items_of("many#").await.len(), 99);
    table.drop().await;
}

/// An operator forgets a key, and its message takes effect again; or erases its text, and it stays a duplicate.
#[tokio::test]
async fn operators_forget_and_erase() {
    let table = Table::new("handlers").await;
    let (buys, key) = (table.buys(), IdempotencyKey::new("order-1").unwrap());
    buys.start().await.unwrap();
    let tenant = idem_core::Tenant::default();
    let books = table.store.bookkeeping();
    let scope = books.scope(&idem_core::ConsumerName::new("purchases").unwrap(), &tenant).await.unwrap();
    let epoch = async || books.control(scope).await.unwrap().epoch;
    assert!(!table.store.forget(scope, &key, "ann", "asked").await.unwrap(), "there is no record yet");
    buys.process_one(message("order-1", "ann")).await.unwrap();
    let before = epoch().await;
    assert_eq!(table.store.erase(scope, &key, "ann", "asked").await.unwrap(), 1);
    assert!(table.items_of("k#").await.iter().all(|item| !item.contains_key("key")));
    assert!(matches!(buys.process_one(message("order-1", "ann")).await.unwrap().decision, Decision::Duplicate(..)));
    assert!(table.store.forget(scope, &key, "ann", "asked").await.unwrap());
    assert!(epoch().await > before + 1, "caches were emptied");
    assert!(matches!(buys.process_one(message("order-1", "ann")).await.unwrap().decision, Decision::Processed(_)));
    assert_eq!(table.ledger("ann").await, (2, 2));
    let lines = table.items_of("audit#").await;
    let lines: Vec<_> = lines.iter().map(|line| (string(line, "action"), string(line, "key"))).collect();
    assert_eq!(lines, [("erase", ""), ("forget", "order-1")], "no line names a key that was erased");
    table.drop().await;
}
