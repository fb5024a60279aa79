//! Payments on DynamoDB, in idem's own table.

use std::sync::Arc;

use idem_dynamodb::{
    DynamoStore, Item,
    aws_sdk_dynamodb::{
        error::BuildError,
        primitives::{DateTime, DateTimeFormat},
        types::{
            AttributeValue::{N, S},
            Put, Update,
        },
    },
};
use idem_service::{
    Opened,
    idem_core::{BoxError, Tx, Uuid},
};

use crate::books::{Books, Order, Recorded, Transaction};

fn at(partition: String, sort: String) -> Item {
    Item::from([("pk".to_owned(), S(partition)), ("sk".to_owned(), S(sort))])
}

fn text(item: &Item, name: &str) -> String {
    item.get(name).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default()
}

/// An item of its own for each run, so that one that counted twice would show.
fn put(table: &str, partition: String, order: &Order, id: &str, now: &str) -> Result<Put, BuildError> {
    let mut item = at(partition, format!("{}#{id}", order.key));
    item.extend([
        ("id".to_owned(), S(id.to_owned())),
        ("customer".to_owned(), S(order.customer.clone())),
        ("cents".to_owned(), N(order.cents.to_string())),
        ("at".to_owned(), S(now.to_owned())),
    ]);
    Put::builder().table_name(table).set_item(Some(item)).build()
}

#[allow(clippy::disallowed_methods, reason = "DynamoDB has no clock, and the time is for people")]
fn now() -> String {
    let now = DateTime::from(std::time::SystemTime::now());
    // A time that has no such text is not one of this clock.
    now.fmt(DateTimeFormat::DateTime).unwrap_or_default()
}

impl Books for DynamoStore {
    type Error = BuildError;
    type Readers = Arc<Self>;

    fn readers(opened: &Opened<Self>) -> Result<Arc<Self>, BoxError> {
        Ok(Arc::clone(&opened.store))
    }

    /// A number has 38 digits there, so that no balance is too large, and a transaction does not answer what it becomes.
    async fn record(tx: &mut Tx<'_, Self>, order: &Order) -> Result<Option<Recorded>, BuildError> {
        let Order { tenant, customer, cents, .. } = order;
        let (mut connection, id, now) = (tx.connection(), Uuid::new_v4().to_string(), now());
        let table = connection.table().to_owned();
        let balance = Update::builder()
            .table_name(&table)
            .set_key(Some(at(format!("balance#{tenant}#{customer}"), "-".to_owned())))
            .update_expression("ADD cents :cents")
            .expression_attribute_values(":cents", N(cents.to_string()))
            .build()?;
        connection.write(balance);
        connection.write(put(&table, format!("transaction#{tenant}"), order, &id, &now)?);
        Ok(Some(Recorded { id, day: now.chars().take(10).collect(), balance: None }))
    }

    async fn decline(tx: &mut Tx<'_, Self>, order: &Order) -> Result<(), BuildError> {
        let mut connection = tx.connection();
        let table = connection.table().to_owned();
        let id = Uuid::new_v4().to_string();
        connection.write(put(&table, format!("decline#{}", order.tenant), order, &id, &now())?);
        Ok(())
    }

    async fn transaction(store: &Arc<Self>, tenant: &str, id: &str) -> Result<Option<Transaction>, BoxError> {
        let pages = store
            .client()
            .query()
            .table_name(store.table())
            .consistent_read(true)
            .key_condition_expression("pk = :pk")
            .filter_expression("id = :id")
            .expression_attribute_values(":pk", S(format!("transaction#{tenant}")))
            .expression_attribute_values(":id", S(id.to_owned()));
        let mut items = pages.into_paginator().items().send();
        let Some(item) = items.next().await.transpose()? else { return Ok(None) };
        let cents = item.get("cents").and_then(|cents| cents.as_n().ok()).map_or(Ok(0), |cents| cents.parse())?;
        Ok(Some(Transaction::from((text(&item, "id"), text(&item, "customer"), cents, text(&item, "at")))))
    }
}
