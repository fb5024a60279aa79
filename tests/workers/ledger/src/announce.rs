//! Tells others of each purchase: an event that is committed with the purchase or not at all, and relayed after that.

use idem_core::{Event, HandlerError, Message, Store, Tx};
use serde::Serialize;

use crate::{Ledger, Purchase, key};

/// The payload of an event. `purchase` is the key of the message that it was made of; its receivers know it by the header
/// `idempotencykey`, which idem derives from that.
#[derive(Serialize)]
struct Recorded<'p> {
    purchase: &'p str,
    customer: &'p str,
    day: &'p str,
    cds: i32,
    cents: i64,
}

impl Ledger {
    /// Handlers that announce purchases at this topic or queue, where there is one.
    #[must_use]
    pub fn announcing(destination: Option<&str>) -> Self {
        Self { announce_to: destination.map(Box::from) }
    }

    /// Puts the event of a purchase into the outbox, in the transaction that the purchase is in.
    pub(crate) fn announce<S: Store>(
        &self,
        message: &Message,
        purchase: &Purchase,
        tx: &mut Tx<'_, S>,
    ) -> Result<(), HandlerError> {
        let Some(destination) = &self.announce_to else { return Ok(()) };
        let Purchase { customer, day, cds, cents } = purchase;
        let recorded = Recorded { purchase: key(message), customer, day, cds: *cds, cents: *cents };
        let event = Event::to(destination).event_type("PurchaseRecorded").ordering_key(customer.clone());
        tx.publish(message, event.json(&recorded)?)?;
        Ok(())
    }

    /// The same for a batch.
    pub(crate) fn announce_all<S: Store>(
        &self,
        messages: &[&Message],
        purchases: &[Purchase],
        tx: &mut Tx<'_, S>,
    ) -> Result<(), HandlerError> {
        messages.iter().zip(purchases).try_for_each(|(message, purchase)| self.announce(message, purchase, tx))
    }
}
