//! The key as a message's sender gave it, where that is not the whole of the one under which it is handled.

use crate::{message::Message, names::IdempotencyKey};

impl Message {
    /// Sets the key as its sender gave it, where the message is handled under a longer one that was made of it, as a request is under
    /// its tenant, its route and its key. Events that the handler publishes name it as their cause; their ids follow from the longer
    /// one.
    #[must_use]
    pub fn with_senders_key(mut self, key: &str) -> Self {
        self.parts.senders_key = Some(key.into());
        self
    }

    /// The key by which its sender knows this message; empty where it has none.
    pub(crate) fn senders_key(&self) -> &str {
        self.parts.senders_key.as_deref().or_else(|| self.key().map(IdempotencyKey::as_str)).unwrap_or_default()
    }
}
