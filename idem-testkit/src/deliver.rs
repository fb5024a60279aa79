//! [`deliver`]: one delivery of one message, for users' tests of their handlers.

use std::{any::type_name, collections::HashSet, sync::Arc};

use idem_core::{
    Decision, DedupConsumer, Effects, Handler, Message, Store, StoreError,
    key::KEY_FIELD,
    outbox::{Destination, EventNumber, Outbox, OutgoingEvent},
    results::{RESULT_BYTES_MAX, StoredResult},
};

/// The longest name of a consumer, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// A message with this idempotency key, in the header of the same name, and this payload.
#[must_use]
pub fn message(key: &str, payload: impl Into<idem_core::Bytes>) -> Message {
    Message::new(payload).with_header(KEY_FIELD, key.to_owned())
}

/// Delivers `message` to `handler` once, as a worker does it: claims its key, runs the handler where the key is new,
/// seals and commits, or rolls back. The answer is decided by what `store` holds, and the handler's effects can be
/// read there afterwards. Nothing is retried, set aside or published: for a handler that publishes or sets a result there is
/// [`deliver_publishing`].
///
/// The consumer is named after the handler's type, so that two handlers in one test each see every message.
///
/// A handler that has ended well without taking the connection of its transaction is named on standard error, because its
/// writes elsewhere are not covered; [`DedupConsumer::uses_transaction`] answers that in a test.
///
/// ```
/// # use std::sync::Arc;
/// # use idem_core::{Decision, Handler, HandlerError, Message, Tx, dead_letter::Reason};
/// # use idem_testkit::{MemoryStore, deliver, message};
/// # struct Ledger;
/// # impl Handler<MemoryStore> for Ledger {
/// #     async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
/// #         let cents: u64 = message.json()?;
/// #         Ok(tx.connection().append("purchases", "cents", cents.to_string()).await?)
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, ledger) = (Arc::new(MemoryStore::new()), Arc::new(Ledger));
/// let first = deliver(&store, &ledger, message("order-1", "250")).await?;
/// assert!(first.is_processed());
/// let again = deliver(&store, &ledger, message("order-1", "250")).await?;
/// assert!(again.is_skipped());
/// let other_payload = deliver(&store, &ledger, message("order-1", "999")).await?;
/// assert!(matches!(other_payload, Decision::Conflict(..)));
/// let broken = deliver(&store, &ledger, message("order-2", "two euros")).await?;
/// assert!(matches!(broken, Decision::Failed(failure) if failure.reason == Reason::Malformed));
/// assert_eq!(store.rows("purchases").len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`StoreError`] where the store cannot be reached or its schema does not fit.
///
/// # Cancel safety
/// A dropped call lets the delivery finish.
pub async fn deliver<S: Store>(
    store: &Arc<S>,
    handler: &Arc<impl Handler<S>>,
    message: Message,
) -> Result<Decision, StoreError> {
    let lane = store.open().await?;
    let (lane, decision) = deliver_on(store, lane, handler, message).await?;
    if let Some(lane) = lane {
        store.close(lane).await;
    }
    Ok(decision)
}

/// The same on a connection of the test's own, which it gets back unless it broke.
///
/// ```
/// # use std::sync::Arc;
/// # use idem_core::{HandlerError, Message, Store, Tx, handler_fn};
/// # use idem_testkit::{MemoryStore, deliver_on, message};
/// async fn notes(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
///     Ok(tx.connection().append("notes", "text", message.payload().cloned().unwrap_or_default()).await?)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, handler) = (Arc::new(MemoryStore::new()), Arc::new(handler_fn(notes)));
/// let session = store.open().await?;
/// let (session, decision) = deliver_on(&store, session, &handler, message("note-1", "milk")).await?;
/// assert!(decision.is_processed() && session.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`deliver`]; the session is then closed.
///
/// # Cancel safety
/// A dropped call lets the delivery finish, and the session is closed after it.
pub async fn deliver_on<S: Store, H: Handler<S>>(
    store: &Arc<S>,
    lane: S::Session,
    handler: &Arc<H>,
    message: Message,
) -> Result<(Option<S::Session>, Decision), StoreError> {
    let consumer = consumer(store, handler, Vec::new(), false)?;
    let (lane, decided) = consumer.process_on(lane, [message]).await?;
    tell_of_unused::<S, H>(&consumer);
    // One message, one decision; without one, nothing is known, and the message would go back to the broker.
    Ok((lane, decided.into_iter().next().map_or(Decision::Busy, |decided| decided.decision)))
}

fn consumer<S: Store, H: Handler<S>>(
    store: &Arc<S>,
    handler: &Arc<H>,
    destinations: Vec<Destination>,
    keep_results: bool,
) -> Result<DedupConsumer<S>, StoreError> {
    let refused = |error: idem_core::ConfigError| StoreError::Refused {
        problem: error.to_string(),
        cure: "This is a bug of idem_testkit::deliver".to_owned(),
    };
    let mut builder = DedupConsumer::builder(Arc::clone(store), consumer_name(type_name::<H>()));
    if keep_results {
        builder = builder.keep_results(RESULT_BYTES_MAX);
    }
    builder
        .publish_to(destinations)
        .handler(Arc::clone(handler))
        .handler_name(consumer_name(type_name::<H>()))
        .effects(Effects::InTransaction)
        .build()
        .map_err(refused)
}

#[allow(
    clippy::print_stderr,
    reason = "a test has no log, and what it prints is shown where it fails, or with --nocapture"
)]
fn tell_of_unused<S: Store, H>(consumer: &DedupConsumer<S>) {
    if consumer.uses_transaction() == Some(false) {
        eprintln!(
            "idem_testkit::deliver: {} has taken no connection from its transaction: what it writes elsewhere happens at least once. \
             Write through tx.connection(), or say Effects::Outside",
            type_name::<H>()
        );
    }
}

/// The outcome of a delivery.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivered {
    /// The decision.
    pub decision: Decision,
    /// The events that were committed with it, each with the name of its destination, in the order of their numbers.
    pub events: Vec<(String, OutgoingEvent)>,
    /// The result that the handler has [set](idem_core::Tx::set_result), as a caller gets it; of a duplicate the first one, read back.
    /// `None` where there is none to give, as of a conflict, or on a store that keeps no results.
    pub result: Option<StoredResult>,
}

/// As [`deliver`], for a handler that publishes to these destinations or sets a result, and answers with the events and the result
/// too. No relay may run on the store meanwhile.
///
/// ```
/// # use std::sync::Arc;
/// # use idem_core::{Event, HandlerError, Message, ResultBody, Tx, handler_fn};
/// # use idem_testkit::{MemoryStore, deliver_publishing, message};
/// async fn charge(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
///     // … the writes through `tx.connection()`, and with them:
///     tx.publish(message, Event::to("payments").event_type("Charged").body("250"))?;
///     Ok(tx.set_result(message, ResultBody::new("receipt 7"))?)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, handler) = (Arc::new(MemoryStore::new()), Arc::new(handler_fn(charge)));
/// let first = deliver_publishing(&store, &handler, ["payments"], message("order-1", "250")).await?;
/// assert!(first.decision.is_processed());
/// assert_eq!(first.events[0].1.event_type.as_deref(), Some("Charged"));
/// assert_eq!(first.result.map(|kept| kept.result.body), Some("receipt 7".into()));
///
/// let again = deliver_publishing(&store, &handler, ["payments"], message("order-1", "250")).await?;
/// assert!(again.decision.is_skipped() && again.events.is_empty());
/// assert_eq!(again.result.map(|kept| kept.result.body), Some("receipt 7".into()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`StoreError`] where the store cannot be reached, has no outbox, or its schema does not fit.
///
/// # Cancel safety
/// A dropped call lets the delivery finish.
pub async fn deliver_publishing<S: Store, H: Handler<S>>(
    store: &Arc<S>,
    handler: &Arc<H>,
    destinations: impl IntoIterator<Item = impl Into<Destination>>,
    message: Message,
) -> Result<Delivered, StoreError> {
    let destinations: Vec<Destination> = destinations.into_iter().map(Into::into).collect();
    let outbox = store.outbox().ok_or(StoreError::Unsupported { what: "publish events" })?;
    let before: HashSet<EventNumber> =
        pending(&*outbox, &destinations).await?.iter().map(|(_, it)| it.number).collect();
    let keep_results = store.capabilities().results;
    let consumer = consumer(store, handler, destinations.clone(), keep_results)?;
    let decided = if keep_results {
        let decided = consumer.process_with_results([message]).await?.into_iter().next();
        decided.map(|decided| (decided.decision, decided.result.and_then(Result::ok)))
    } else {
        let decision = consumer.process_one(message).await?.decision;
        Some((decision, None))
    };
    let (decision, result) = decided.unwrap_or((Decision::Busy, None));
    tell_of_unused::<S, H>(&consumer);
    let mut events = pending(&*outbox, &destinations).await?;
    events.retain(|(_, event)| !before.contains(&event.number));
    events.sort_by_key(|(_, event)| event.number);
    Ok(Delivered { decision, events, result })
}

/// The events that may go.
async fn pending(
    outbox: &dyn Outbox,
    destinations: &[Destination],
) -> Result<Vec<(String, OutgoingEvent)>, StoreError> {
    let mut pending = Vec::new();
    let declared = outbox.declare(destinations).await?;
    for (destination, row) in destinations.iter().zip(declared) {
        let events = outbox.next(row.id, EVENTS_READ_MAX, u64::from(u32::MAX)).await?;
        pending.extend(events.into_iter().map(|event| (destination.name.clone(), event)));
    }
    Ok(pending)
}

/// How many events a test of a handler looks at.
const EVENTS_READ_MAX: u32 = 100_000;

/// The end of a type's name, which distinguishes two types.
fn consumer_name(name: &str) -> &str {
    let start = (name.len().saturating_sub(NAME_BYTES_MAX)..name.len()).find(|at| name.is_char_boundary(*at));
    &name[start.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_long_type_is_cut_at_its_front_and_at_a_character() {
        assert_eq!(consumer_name("app::Ledger"), "app::Ledger");
        let long = format!("{}::Ledger", "é".repeat(100));
        let name = consumer_name(&long);
        assert!(name.len() <= NAME_BYTES_MAX && name.ends_with("é::Ledger"), "{name}");
    }
}
