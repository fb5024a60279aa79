//! A message as the broker delivered it: payload, headers and identity.

pub(crate) mod decode_error;
pub(crate) mod headers;
mod senders_key;

use std::{
    any::Any,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::{decode_error::DecodePayloadError, headers::Headers};
pub use crate::names::{OrderingKey, Origin};

use crate::{
    bugs::Bug,
    derive::{IdForm, derived_id},
    json,
    names::{ConsumerName, IdempotencyKey, Tenant, shown::in_text},
};

/// The header under which a source hands over, as bytes, headers or properties that its client cannot read. A message that
/// has it is set aside as malformed, because the rest of it is unknown.
pub const UNREADABLE_HEADERS: &str = "idem-unreadable";

/// Facts that core adds to a message before a handler sees it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) tenant: Tenant,
    /// The consumer's first name, which stays in derived ids when it is renamed.
    pub(crate) derives_as: ConsumerName,
    pub(crate) key: Option<IdempotencyKey>,
}

/// One message, as the producer sent it, with the broker's facts about it.
///
/// `Debug` prints sizes and a prefix of the payload's SHA-256, never the payload or a header's value.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Boxed, because a message changes hands a dozen times on its way through a worker.
    parts: Box<Parts>,
}

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    payload: Option<Bytes>,
    headers: Headers,
    id: Option<Box<str>>,
    record_key: Option<Bytes>,
    message_type: Option<Box<str>>,
    ordering_key: Option<OrderingKey>,
    /// Whether that is the key of a part of the topic, which other messages have too without belonging together.
    ordered_by_part: bool,
    origin: Origin,
    sent_at: Option<SystemTime>,
    broker_properties: Option<Box<[u8]>>,
    problem: Option<Box<str>>,
    identity: Option<Identity>,
    senders_key: Option<Box<str>>,
    original: Original,
}

/// The message as the broker's client had it, if its source kept that, and the bytes that it takes. Comparing two
/// messages ignores it.
#[derive(Clone, Default)]
struct Original {
    of: Option<Arc<dyn Any + Send + Sync>>,
    bytes: usize,
}

impl PartialEq for Original {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Original {}

impl Message {
    /// A message with this payload.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self::from_parts(Some(payload.into()))
    }

    /// A message without a payload, which differs from an empty one: Kafka's tombstone.
    #[must_use]
    pub fn tombstone() -> Self {
        Self::from_parts(None)
    }

    fn from_parts(payload: Option<Bytes>) -> Self {
        let parts = Parts {
            payload,
            headers: Headers::default(),
            id: None,
            record_key: None,
            message_type: None,
            ordering_key: None,
            ordered_by_part: false,
            origin: Origin::new(""),
            sent_at: None,
            broker_properties: None,
            problem: None,
            identity: None,
            senders_key: None,
            original: Original::default(),
        };
        Self { parts: Box::new(parts) }
    }

    /// The same message without its payload.
    pub(crate) fn without_payload(&self) -> Self {
        let mut message = self.clone();
        message.parts.payload = None;
        message
    }

    /// Appends a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.parts.headers.push(name, Some(value.into()));
        self
    }

    /// Replaces all headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.parts.headers = headers;
        self
    }

    /// Sets the broker's or the producer's message id, which is no idempotency key unless a consumer asks for it.
    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        self.parts.id = Some(id.into());
        self
    }

    /// Sets the broker's record key (Kafka).
    #[must_use]
    pub fn with_record_key(mut self, key: impl Into<Bytes>) -> Self {
        self.parts.record_key = Some(key.into());
        self
    }

    /// Sets the type by which a [`Router`](crate::Router) picks a handler.
    #[must_use]
    pub fn with_type(mut self, message_type: &str) -> Self {
        self.parts.message_type = Some(message_type.into());
        self
    }

    /// Sets the key whose messages stay in order.
    #[must_use]
    pub fn with_ordering_key(mut self, key: OrderingKey) -> Self {
        self.parts.ordering_key = Some(key);
        self
    }

    /// For sources: sets the key of a part of the topic in place of one of the message's own, such as that of a partition. Such messages are
    /// handled in order, and do not [wait](crate::store::Bookkeeping::put_aside) for each other's later tries.
    #[must_use]
    pub fn with_ordering_key_of_part(mut self, key: OrderingKey) -> Self {
        self.parts.ordered_by_part = true;
        self.with_ordering_key(key)
    }

    /// Sets properties that a source's own publisher needs again where the message becomes a dead letter, such as the types
    /// of attributes. Core does not read them, handlers have no use for them, and no store keeps them.
    #[must_use]
    pub fn with_broker_properties(mut self, properties: impl Into<Box<[u8]>>) -> Self {
        self.parts.broker_properties = Some(properties.into());
        self
    }

    /// The properties that the source has set with [`with_broker_properties`](Self::with_broker_properties).
    #[must_use]
    pub fn broker_properties(&self) -> Option<&[u8]> {
        self.parts.broker_properties.as_deref()
    }

    /// Sets where the message came from.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.parts.origin = origin;
        self
    }

    /// Sets when the broker took the message in.
    #[must_use]
    pub fn with_sent_at(mut self, at: SystemTime) -> Self {
        self.parts.sent_at = Some(at);
        self
    }

    /// Keeps the message as the broker's client had it, with parts that this type lacks, such as the types of its
    /// headers, for a [`Publisher`](crate::dead_letter::Publisher) of the same broker. It takes about `bytes` bytes of memory.
    #[must_use]
    pub fn with_original(mut self, original: Arc<dyn Any + Send + Sync>, bytes: usize) -> Self {
        self.parts.original = Original { of: Some(original), bytes };
        self
    }

    /// Marks a message that its source could not read as a whole, such as headers whose names are no text. The engine sets
    /// it aside as malformed, with the parts that could be read, and calls neither key source nor handler. `problem` ends
    /// the sentence "the message cannot be read: …", and quotes no content.
    #[must_use]
    pub fn with_problem(mut self, problem: &str) -> Self {
        self.parts.problem = Some(problem.into());
        self
    }

    pub(crate) fn with_identity(mut self, identity: Identity) -> Self {
        self.parts.identity = Some(identity);
        self
    }

    /// Hides the key from those who see the message's origin, where keys are hidden; `None` where no key was found.
    pub(crate) fn hide(&mut self, key: Option<&IdempotencyKey>) {
        self.parts.origin.hide(self.parts.id.as_deref(), key);
    }

    /// The message id for people, escaped.
    pub(crate) fn shown_id(&self) -> Option<String> {
        let id = self.parts.id.as_deref()?;
        Some(in_text(id, Some(id), self.key()).escape_debug().to_string())
    }

    /// The payload's bytes; `None` for a tombstone.
    #[must_use]
    pub fn payload(&self) -> Option<&Bytes> {
        self.parts.payload.as_ref()
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.parts.headers
    }

    /// The message id, where the broker or the producer gave one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.parts.id.as_deref()
    }

    /// The broker's record key.
    #[must_use]
    pub fn record_key(&self) -> Option<&Bytes> {
        self.parts.record_key.as_ref()
    }

    /// The type: the one that was set, else the `type` attribute of a CloudEvent in binary mode.
    #[must_use]
    pub fn message_type(&self) -> Option<&str> {
        self.parts.message_type.as_deref().or_else(|| {
            ["ce_type", "ce-type", "cloudEvents_type", "cloudEvents:type"]
                .iter()
                .find_map(|n| self.parts.headers.text(n))
        })
    }

    /// The key whose messages stay in order; `None` where the broker promises no order.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&OrderingKey> {
        self.parts.ordering_key.as_ref()
    }

    /// Takes the key away whose messages stay in order.
    #[must_use]
    pub fn without_ordering_key(mut self) -> Self {
        self.parts.ordering_key = None;
        self
    }

    /// The same, unless it is the key of a [part](Self::with_ordering_key_of_part) of the topic.
    #[must_use]
    pub fn own_ordering_key(&self) -> Option<&OrderingKey> {
        self.ordering_key().filter(|_| !self.parts.ordered_by_part)
    }

    /// Where the message came from.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.parts.origin
    }

    /// The origin, distinguished from earlier lives of the same place. A broker that uses a place again gives ids that
    /// begin with it and go on with a mark of its life (Kafka: `topic/partition/offset@timestamp`). Both outlive a dead
    /// letter's way through its table, so a replay has the same place as its first delivery.
    pub(crate) fn place(&self) -> &str {
        let origin = self.parts.origin.as_str();
        self.id().filter(|id| !origin.is_empty() && id.starts_with(origin)).unwrap_or(origin)
    }

    /// When the broker took the message in, where it says so.
    #[must_use]
    pub fn sent_at(&self) -> Option<SystemTime> {
        self.parts.sent_at
    }

    /// The message as the broker's client had it, where its source kept that and it is of this type. A message that was
    /// stored and read again has none.
    #[must_use]
    pub fn original<T: Any>(&self) -> Option<&T> {
        self.parts.original.of.as_ref()?.downcast_ref()
    }

    /// The part that its source could not read; `None` for nearly every message.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.parts.problem.as_deref()
    }

    /// The idempotency key under which this message is handled; `None` before a consumer has taken it, and for a type
    /// that opted out of protection.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.parts.identity.as_ref()?.key.as_ref()
    }

    /// The parts with which ids that are derived from this message begin: tenant, consumer and key; `None` where it has no key.
    pub(crate) fn cause(&self) -> Option<(&Tenant, &ConsumerName, &IdempotencyKey)> {
        let identity = self.parts.identity.as_ref()?;
        Some((&identity.tenant, &identity.derives_as, identity.key.as_ref()?))
    }

    /// The tenant under which this message is handled; `None` before a consumer has taken it.
    #[must_use]
    pub fn tenant(&self) -> Option<&Tenant> {
        self.parts.identity.as_ref().map(|identity| &identity.tenant)
    }

    /// Decodes the payload as JSON.
    ///
    /// # Errors
    /// [`DecodePayloadError`] where there is no payload, it is no JSON of this shape, or it is nested deeper than 64
    /// levels. The engine dead-letters such a message as `malformed`, also where the error was wrapped.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, DecodePayloadError> {
        let payload = self
            .parts
            .payload
            .as_deref()
            .ok_or_else(|| DecodePayloadError::new("there is no payload (a tombstone)"))?;
        if json::deeper_than_max(payload) {
            return Err(DecodePayloadError::new("it is nested deeper than 64 levels"));
        }
        serde_json::from_slice(payload).map_err(|error| DecodePayloadError::from_json(&error))
    }

    /// An id that is the same on every attempt, to be handed to a provider as *its* idempotency key.
    ///
    /// It is a version-8 UUID from the SHA-256 of the length-prefixed tenant, consumer, key and `label`, so two calls
    /// of one handler need two labels. Ids that idem itself derives never meet those of a label, whatever it is. A message of an unprotected type
    /// has no key; its origin takes the key's place, which is the same on a redelivery but not when the producer sends
    /// again. Kafka gives an offset to another record when a topic is created again, so there the record's time-stamp
    /// belongs to the origin.
    #[must_use]
    pub fn derived_key(&self, label: &str) -> Uuid {
        let mut parts = vec![b"idem:derived-key:v1".as_slice(), self.tenant().map_or("", Tenant::as_str).as_bytes()];
        parts.push(self.parts.identity.as_ref().map_or("", |identity| identity.derives_as.as_str()).as_bytes());
        match self.key().filter(|_| !crate::bugs::planted(Bug::DerivesByPlace)) {
            Some(key) => parts.push(key.as_str().as_bytes()),
            None => parts.extend([b"".as_slice(), self.place().as_bytes()]),
        }
        // Labels that begin so are idem's own; a handler's has one more part before it, and never meets them.
        if label.starts_with("idem:") {
            parts.push(b"label of a handler");
        }
        parts.push(label.as_bytes());
        derived_id(parts)
    }

    /// The [derived key](Self::derived_key) written in this form, for a provider that takes no UUID of version 8. Keep the form
    /// for as long as the provider remembers: another form is another key.
    #[must_use]
    pub fn derived_key_as(&self, label: &str, form: IdForm) -> String {
        form.text(self.derived_key(label))
    }

    /// How many bytes of memory the payload, headers and keys take, by which messages in flight are bounded.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.payload.as_ref().map_or(0, Bytes::len)
            + self.parts.headers.memory()
            + self.parts.record_key.as_ref().map_or(0, Bytes::len)
            + self.parts.original.bytes
            + self.parts.ordering_key.as_ref().map_or(0, |key| key.as_bytes().len())
            + self.parts.id.as_deref().map_or(0, str::len)
            + self.parts.message_type.as_deref().map_or(0, str::len)
            + self.parts.origin.as_str().len()
            + size_of::<Parts>()
    }

    /// How long ago the broker took the message in, seen from `now`, which is asked only where that is known.
    pub(crate) fn age(&self, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
        self.parts.sent_at.and_then(|sent_at| now().duration_since(sent_at).ok())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Message");
        match &self.parts.payload {
            None => out.field("payload", &"none"),
            Some(payload) => {
                let digest: [u8; 32] = Sha256::digest(payload).into();
                let prefix = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
                out.field("payload", &format_args!("{} bytes, sha256 {prefix:08x}…", payload.len()))
            }
        };
        out.field("headers", &self.parts.headers)
            .field("id", &self.shown_id())
            .field("type", &self.parts.message_type)
            .field("origin", &self.parts.origin)
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
