//! The function: a handler, and what is answered for a batch. Copy it.

use std::collections::HashSet;

use idem_core::{DedupConsumer, Handler, HandlerError, Message, StoreError, Tx};
use idem_sqlx::SqliteStore;

use crate::event::{BatchItemFailure, BatchResponse, Event};

#[derive(serde::Deserialize)]
struct Purchase {
    customer: String,
    cents: i64,
}

pub(crate) struct Ledger;

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase: Purchase = message.json()?;
        sqlx::query("INSERT INTO purchases (customer, cents) VALUES (?, ?)")
            .bind(purchase.customer)
            .bind(purchase.cents)
            .execute(tx.connection()) // the transaction that also records the message's key
            .await?;
        Ok(())
    }
}

/// Handles a batch. What has no proof that its effect is durable comes back, and so does everything behind it in its group:
/// what of that was handled is a duplicate then.
///
/// An error makes the whole batch come back. What can never be handled comes back until the queue's redrive policy sets it
/// aside.
pub(crate) async fn handle(consumer: &DedupConsumer<SqliteStore>, event: &Event) -> Result<BatchResponse, StoreError> {
    let messages = event.records.iter().map(|record| record.message()).collect();
    let decisions = consumer.process(messages).await?;
    let (mut response, mut stopped) = (BatchResponse::default(), HashSet::new());
    for (record, decision) in event.records.iter().zip(decisions) {
        let is_durable = decision.into_durable().is_some();
        let is_behind = record.group().is_some_and(|group| stopped.contains(group));
        if is_durable && !is_behind {
            continue;
        }
        stopped.extend(record.group());
        response.batch_item_failures.push(BatchItemFailure { item_identifier: record.message_id.clone() });
    }
    Ok(response)
}
