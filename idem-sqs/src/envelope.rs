//! What services wrap messages in before they put them into a queue.

use std::{borrow::Cow, collections::BTreeMap};

use idem_core::{Bytes, Headers, Message};
use serde::Deserialize;
use serde_json::value::RawValue;

/// What the producer's message is wrapped in. The wrapping changes with each publication, so the hash and the handler get
/// what is inside. A body that is no such envelope is handed over as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Envelope {
    /// A notification of SNS without raw message delivery. The payload is its `Message`, the headers are its
    /// `MessageAttributes`, and [`Message::id`] is its `MessageId`.
    Sns,
    /// An event of EventBridge. The payload is the text of its `detail`, the type is its `detail-type`, and
    /// [`Message::id`] is its `id`, which a producer that puts the event again does not repeat.
    EventBridge,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Notification<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    message_id: String,
    message: String,
    #[serde(default)]
    message_attributes: BTreeMap<String, Attribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute {
    r#type: String,
    value: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    id: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    #[serde(borrow)]
    detail: &'a RawValue,
}

impl Envelope {
    /// The message inside of `body`, which came with these headers of its own.
    pub(crate) fn open(self, body: String, headers: Headers, message_id: &str) -> Message {
        let opened = match self {
            Self::Sns => notification(&body),
            Self::EventBridge => event(&body),
        };
        opened.unwrap_or_else(|| Message::new(body).with_headers(headers).with_id(message_id))
    }
}

fn notification(body: &str) -> Option<Message> {
    let notification: Notification<'_> = serde_json::from_str(body).ok()?;
    if notification.r#type != "Notification" {
        return None;
    }
    let mut headers = Headers::default();
    for (name, attribute) in notification.message_attributes {
        headers.push(&name, Some(attribute.bytes()?));
    }
    Some(Message::new(notification.message).with_headers(headers).with_id(&notification.message_id))
}

fn event(body: &str) -> Option<Message> {
    let event: Event<'_> = serde_json::from_str(body).ok()?;
    let detail = Bytes::copy_from_slice(event.detail.get().as_bytes());
    Some(Message::new(detail).with_type(&event.detail_type).with_id(&event.id))
}

impl Attribute {
    /// `None` where a binary value is no Base64.
    fn bytes(self) -> Option<Bytes> {
        if self.r#type != "Binary" {
            return Some(self.value.into());
        }
        let blob = aws_smithy_types::base64::decode(&self.value).ok()?;
        Some(blob.into())
    }
}

#[cfg(test)]
mod tests;
