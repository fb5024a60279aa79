//! An operation that the caller wants done once, and the key derived from it.

use std::{fmt, time::SystemTime};

use idem_core::{
    IdempotencyKey, Uuid,
    outbox::{IdForm, derived_id},
};

/// One operation that must be carried out once, whichever process sends it and however many tries that takes. Its key is derived from
/// it, and no try draws a new one.
///
/// `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Intent {
    key: Key,
    first_tried_at: Option<SystemTime>,
}

#[derive(Clone, PartialEq, Eq)]
enum Key {
    /// Written in the form that the provider accepts.
    Derived(Uuid),
    /// Sent as it is.
    Given(IdempotencyKey),
}

impl Intent {
    /// The operation `step` on `subject`: `Intent::of("order-4711", "charge")`. The same two texts give the same key in every process
    /// and release, so `subject` must name one order, not one customer, and two charges of one order need two steps.
    ///
    /// Knowing both texts is enough to compute the key. If users who share an account at the provider must not read each other's answers,
    /// put a secret into `subject`.
    #[must_use]
    pub fn of(subject: &str, step: &str) -> Self {
        Self::derived(derived_id([b"idem:intent:v1".as_slice(), subject.as_bytes(), step.as_bytes()]))
    }

    /// An operation that a message's handler carries out: `Intent::from_derived(message.derived_key("charge"))`. Every attempt of the
    /// message has the same key.
    #[must_use]
    pub fn from_derived(id: Uuid) -> Self {
        Self::derived(id)
    }

    /// A key that was stored before the first try, such as the key of an outbox row. It is sent unchanged.
    #[must_use]
    pub fn from_key(key: IdempotencyKey) -> Self {
        Self { key: Key::Given(key), first_tried_at: None }
    }

    /// A random key, which only this value knows.
    ///
    /// It protects the tries of one [`send`](super::IdempotentClient::send), and **nothing else**: if the process ends before it has an
    /// answer, or the caller calls again with another `ephemeral()`, the second request is a second charge. Use it only for requests
    /// that no order, message or row can name.
    #[must_use]
    pub fn ephemeral() -> Self {
        Self::derived(Uuid::new_v4())
    }

    fn derived(id: Uuid) -> Self {
        Self { key: Key::Derived(id), first_tried_at: None }
    }

    /// Sets the time of the first try if an earlier call or another process made it, as read from the row that was written before it. The
    /// provider's memory counts from that time. Without it, this call counts as the first.
    #[must_use]
    pub fn first_tried_at(mut self, at: SystemTime) -> Self {
        self.first_tried_at = Some(at);
        self
    }

    pub(super) fn tried_first(&self) -> Option<SystemTime> {
        self.first_tried_at
    }

    /// The key as it is sent, for a provider whose derived keys have this form.
    #[must_use]
    pub fn key(&self, form: IdForm) -> String {
        match &self.key {
            Key::Derived(id) => form.text(*id),
            Key::Given(key) => key.as_str().to_owned(),
        }
    }
}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intent").field("first_tried_at", &self.first_tried_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W30: golden, because another key for the same intent is another charge.
    #[test]
    fn w30_an_intent_has_the_same_key_in_every_release() {
        let intent = Intent::of("order-4711", "charge");
        assert_eq!(intent.key(IdForm::V8), "9dc30320-a7db-88b9-8e17-51e32c7d74fb");
        assert_eq!(intent.key(IdForm::V5), "eabaf27a-6a2c-5129-b5d3-c75706072349");
        assert_eq!(intent.key(IdForm::Hex32), intent.key(IdForm::V8).replace('-', ""));
        assert_eq!(Intent::of("order-4711", "charge"), intent);
        for other in
            [Intent::of("order-4711", "refund"), Intent::of("order-471", "1charge"), Intent::of("", "order-4711charge")]
        {
            assert_ne!(other.key(IdForm::V8), intent.key(IdForm::V8));
        }
        assert_ne!(Intent::ephemeral(), Intent::ephemeral());
        let given = IdempotencyKey::new("from-a-row").expect("a key");
        assert_eq!(Intent::from_key(given).key(IdForm::V5), "from-a-row");
    }
}
