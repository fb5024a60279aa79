//! Standard Webhooks.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE, request::Parts};
use idem_core::{Message, Store, consumer::DedupConsumerBuilder, key::MessageId};

use super::{
    clock::is_near,
    sender::{NotAdmitted, Opened, Sender},
};
use crate::signature::{Secret, verify};

/// How far a signed time may differ from ours, as in the specification's own libraries.
pub(super) const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Shorter than the 8 s that idem's own publisher waits for an answer, and others 15 s and more.
const DEADLINE: Duration = Duration::from_secs(7);

/// A sender that signs by [Standard Webhooks](https://www.standardwebhooks.com) 1.0 with HMAC-SHA256, such as idem's outbox.
///
/// The key is `webhook-id`, which is the same on all tries of an event and which the signature covers. An id with a dot is refused, because its
/// signature would fit a second message. The payload is the body. Of the headers the message has `content-type` alone, because the signature
/// covers none of them.
#[derive(Debug, Clone)]
pub struct StandardWebhooks {
    secrets: Vec<Secret>,
}

impl StandardWebhooks {
    /// Accepts requests that are signed with these secrets: one, or several while a new one replaces an old one. With none, every request is
    /// refused.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self { secrets: secrets.into_iter().collect() }
    }

    /// Makes `webhook-id` the consumer's key.
    #[must_use]
    pub fn identify<S: Store>(consumer: DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> {
        consumer.key_source(MessageId)
    }
}

/// The value of this header, if the request has it once.
pub(super) fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h str, NotAdmitted> {
    let mut values = headers.get_all(name).iter();
    let (value, more) = (values.next(), values.next());
    let text = value.filter(|_| more.is_none()).and_then(|value| value.to_str().ok());
    text.ok_or(NotAdmitted::Unauthenticated("a header of the signature is missing, repeated or no text"))
}

/// The time, as a text of digits alone: no sender signs `+1` or `01`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

#[async_trait]
impl Sender for StandardWebhooks {
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted> {
        let id = one(&head.headers, "webhook-id")?;
        // The signature covers id, time and body, joined by dots. With a dot in the id, one signature fits two messages: `msg_1` of the
        // time T with the body `U.rest`, and `msg_1.T` of the time U with the body `rest` (W181).
        if id.contains('.') {
            return Err(NotAdmitted::Unauthenticated(
                "the id contains a dot, so the signature may be that of another message",
            ));
        }
        one(&head.headers, "webhook-signature")?;
        let at = seconds(one(&head.headers, "webhook-timestamp")?);
        match at.is_some_and(|at| is_near(at, TOLERANCE, TOLERANCE)) {
            true => Ok(()),
            false => Err(NotAdmitted::Unauthenticated("the time of the signature is too far from ours")),
        }
    }

    async fn open(&self, head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted> {
        let id = one(&head.headers, "webhook-id")?;
        let (at, signatures) = (one(&head.headers, "webhook-timestamp")?, one(&head.headers, "webhook-signature")?);
        if !verify(&self.secrets, id, at, &body, signatures) {
            return Err(NotAdmitted::Unauthenticated("no signature is right"));
        }
        let message = Message::new(body).with_id(id);
        let kind = head.headers.get(CONTENT_TYPE).map(|kind| Bytes::copy_from_slice(kind.as_bytes()));
        let message = match kind {
            Some(kind) => message.with_header("content-type", kind),
            None => message,
        };
        Ok(Opened::Message(Box::new(message)))
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }
}
