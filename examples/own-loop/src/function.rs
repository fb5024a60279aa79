//! The function: a handler, and the answer for a batch. Copy it.

use std::collections::HashSet;

use idem_core::{DedupConsumer, Handler, HandlerError, Message, StoreError, Tx, consumer::Decided};
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

/// Handles a batch. A message without a proof that its effect is durable comes back, and so do those behind it in its
/// group: the handled ones are duplicates then.
///
/// An error makes the whole batch come back. A message that can never be handled comes back until the queue's redrive
/// policy sets it aside.
pub(crate) async fn handle(consumer: &DedupConsumer<SqliteStore>, event: Event) -> Result<BatchResponse, StoreError> {
    let messages = event.records.into_iter().map(Message::from);
    let (mut response, mut stopped) = (BatchResponse::default(), HashSet::new());
    for Decided { message, decision, .. } in consumer.process(messages).await? {
        let group = message.ordering_key();
        let is_behind = group.is_some_and(|group| stopped.contains(group));
        if is_behind || decision.into_durable().is_none() {
            stopped.extend(group.cloned());
            let item_identifier = message.id().unwrap_or_default().to_owned();
            response.batch_item_failures.push(BatchItemFailure { item_identifier });
        }
    }
    Ok(response)
}
