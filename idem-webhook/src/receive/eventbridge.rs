//! EventBridge's API destinations.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, request::Parts};
use idem_core::{
    Message, Store,
    consumer::DedupConsumerBuilder,
    key::{FirstOf, JsonMember, KEY_FIELD, MessageId},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::sender::{NotAdmitted, Opened, Sender};

/// EventBridge gives up after 5 s.
const DEADLINE: Duration = Duration::from_secs(4);

/// Rules of EventBridge whose target is an API destination. EventBridge signs nothing: its connection sends a header with a secret, so use HTTPS.
///
/// The payload is the text of the event's `detail`, the type its `detail-type`. The key is `detail.idempotencykey`, else the event's `id`: retries
/// of EventBridge have the same one, but a producer that puts the event again gets a new one.
///
/// EventBridge gives up a request after 5 s. It tries again with pauses, by default 185 times in 24 hours; then the event goes to the rule's
/// dead-letter queue, or is dropped if the rule has none. Give the rule one.
///
/// Source: <https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-api-destinations.html>.
#[derive(Clone)]
pub struct EventBridge {
    header: HeaderName,
    secrets: Vec<[u8; 32]>,
}

impl EventBridge {
    /// With the header of the connection, such as `x-api-key`, or `authorization` for basic authentication, and its whole value: one, or several
    /// while a new one replaces an old one. With none, every request is refused.
    pub fn new(header: HeaderName, values: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let values = values.into_iter().filter(|value| !value.as_ref().is_empty());
        Self { header, secrets: values.map(|value| Sha256::digest(value.as_ref().as_bytes()).into()).collect() }
    }

    /// Makes `detail.idempotencykey`, else the event's `id`, the consumer's key.
    #[must_use]
    pub fn identify<S: Store>(consumer: DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> {
        consumer.key_source(FirstOf(vec![Arc::new(JsonMember::field(KEY_FIELD)), Arc::new(MessageId)]))
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    id: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    #[serde(borrow)]
    detail: &'a RawValue,
}

fn message(body: &Bytes) -> Message {
    match serde_json::from_slice::<Event<'_>>(body) {
        Ok(event) => Message::new(event.detail.get().to_owned()).with_id(&event.id).with_type(&event.detail_type),
        Err(_) => Message::new(body.clone())
            .with_problem("it is no event of EventBridge's with id, detail-type and detail, each of them once"),
    }
}

#[async_trait]
impl Sender for EventBridge {
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted> {
        let mut values = head.headers.get_all(&self.header).iter();
        let (value, more) = (values.next(), values.next());
        // Comparing digests gives nothing away: how far two of them agree says nothing about the secret.
        let given = value.filter(|_| more.is_none()).map(|value| <[u8; 32]>::from(Sha256::digest(value.as_bytes())));
        match given.is_some_and(|given| self.secrets.contains(&given)) {
            true => Ok(()),
            false => Err(NotAdmitted::Unauthenticated("the secret of the connection is missing or wrong")),
        }
    }

    async fn open(&self, _head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted> {
        Ok(Opened::Message(Box::new(message(&body))))
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }
}

impl fmt::Debug for EventBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBridge").field("header", &self.header).field("secrets", &self.secrets.len()).finish()
    }
}
