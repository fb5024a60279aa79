//! The envelopes in which services put messages into a queue.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use idem_core::{Bytes, Message, message::Headers};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The envelope around the producer's message. The wrapping changes with each publication, so the hash and the handler get the
/// message inside. A body that is no such envelope is handed over as it is; one with a repeated member is malformed.
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

/// The members of a JSON object in their order, as the text that they have. `serde` would drop the first of two members with
/// one name that no field asks for, and the first of two keys of a map.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// A member's name, copied only where it is escaped.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Members<'a> {
    fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn repeat(&self) -> bool {
        let mut names = BTreeSet::new();
        !self.0.iter().all(|(name, _)| names.insert(name))
    }

    /// The first of this name.
    fn get(&self, wanted: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.get())
    }

    fn text(&self, wanted: &str) -> Option<String> {
        serde_json::from_str(self.get(wanted)?).ok()
    }
}

/// A body that was expected to be an envelope, as it turned out.
enum Opened {
    Message(Message),
    /// None, or one that cannot be opened: the body is the message.
    Other,
    /// One with a repeated member, about which readers may disagree (S10).
    Repeated,
}

impl Envelope {
    /// The message inside of `body`, which came with these headers and this id of its own, for a receive loop of your own. A
    /// body that is no such envelope is the message itself; one with a repeated member is marked by [`Message::with_problem`].
    #[must_use]
    pub fn open(self, body: String, headers: Headers, message_id: &str) -> Message {
        let opened = match self {
            Self::Sns => notification(&body),
            Self::EventBridge => event(&body),
        };
        let as_it_is = |body: String| Message::new(body).with_headers(headers).with_id(message_id);
        match opened {
            Opened::Message(message) => message,
            Opened::Other => as_it_is(body),
            Opened::Repeated => as_it_is(body).with_problem("its envelope has a repeated member"),
        }
    }
}

fn notification(body: &str) -> Opened {
    let Some(envelope) = Members::of(body) else { return Opened::Other };
    let is_notification =
        |value: &RawValue| serde_json::from_str(value.get()).is_ok_and(|kind: String| kind == "Notification");
    if !envelope.0.iter().any(|(name, value)| name == "Type" && is_notification(value)) {
        return Opened::Other;
    }
    let attributes = match envelope.get("MessageAttributes").map(Members::of) {
        None => Members(Vec::new()),
        Some(Some(attributes)) => attributes,
        Some(None) => return Opened::Other,
    };
    if envelope.repeat() || attributes.repeat() {
        return Opened::Repeated;
    }
    let (Some(id), Some(message)) = (envelope.text("MessageId"), envelope.text("Message")) else {
        return Opened::Other;
    };
    let mut headers: Vec<(Cow<'_, str>, Bytes)> = Vec::new();
    for (name, value) in attributes.0 {
        let Some(attribute) = Members::of(value.get()) else { return Opened::Other };
        if attribute.repeat() {
            return Opened::Repeated;
        }
        let Some(bytes) = bytes(&attribute) else { return Opened::Other };
        headers.push((name, bytes));
    }
    // By name, because SNS has no order for them.
    headers.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut sorted = Headers::with_capacity(headers.len());
    headers.into_iter().for_each(|(name, bytes)| sorted.push(&name, Some(bytes)));
    Opened::Message(Message::new(message).with_headers(sorted).with_id(&id))
}

fn event(body: &str) -> Opened {
    let Some(event) = Members::of(body) else { return Opened::Other };
    let (Some(id), Some(kind), Some(detail)) = (event.text("id"), event.text("detail-type"), event.get("detail"))
    else {
        return Opened::Other;
    };
    if event.repeat() {
        return Opened::Repeated;
    }
    Opened::Message(Message::new(Bytes::copy_from_slice(detail.as_bytes())).with_type(&kind).with_id(&id))
}

/// The value of an attribute; `None` where a binary one is no Base64.
fn bytes(attribute: &Members<'_>) -> Option<Bytes> {
    let (kind, value) = (attribute.text("Type")?, attribute.text("Value")?);
    if kind != "Binary" {
        return Some(value.into());
    }
    aws_smithy_types::base64::decode(&value).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests;
