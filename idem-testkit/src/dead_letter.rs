//! A dead letter for tests of publishers.

use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, Message,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    message::Origin,
    store::ScopeId,
};

/// A dead letter of this message, as a worker would hand it to a [`Publisher`](idem_core::dead_letter::Publisher): a conflict over the
/// key `order-1`, after two attempts of the consumer `ledger`.
///
/// # Panics
/// Where these names were no names, which would be a bug of idem.
#[allow(clippy::expect_used, reason = "a helper of tests, which documents it")]
#[must_use]
pub fn dead_letter(message: Message, origin: &str) -> DeadLetter {
    DeadLetter {
        consumer: ConsumerName::new("ledger").expect("a name"),
        scope: ScopeId(1),
        message: message.with_origin(Origin::new(origin)),
        key: Some(IdempotencyKey::new("order-1").expect("a key")),
        hash: None,
        reason: Reason::Conflict,
        attempts: 2,
        error: "it was used before".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Conflict, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}
