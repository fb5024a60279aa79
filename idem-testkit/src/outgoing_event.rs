//! An event for tests of publishers.

use std::time::{Duration, SystemTime};

use idem_core::{
    Bytes, ConsumerName, IdempotencyKey,
    outbox::{CAUSE, CAUSED_BY, EventNumber, OutgoingEvent},
};

/// An event of this key and JSON payload, as a relay would hand it to an [`EventPublisher`](idem_core::outbox::EventPublisher):
/// of the type `Told`, published by the consumer `ledger`, and caused by the message `order-1`.
///
/// # Panics
/// Where the key is invalid.
#[allow(clippy::expect_used, reason = "a helper of tests, which documents it")]
#[must_use]
pub fn outgoing_event(key: &str, payload: impl Into<Bytes>) -> OutgoingEvent {
    let consumer = ConsumerName::new("ledger").expect("a name");
    let key = IdempotencyKey::new(key).expect("a key");
    let created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut event = OutgoingEvent::new(EventNumber(1), consumer, key, payload.into(), created_at);
    event.event_type = Some("Told".into());
    event.content_type = Some("application/json".into());
    for name in [CAUSE, CAUSED_BY] {
        event.headers.push(name, Some("order-1".into()));
    }
    event
}
