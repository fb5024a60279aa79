//! A message of SQS as the worker gets it.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use aws_sdk_sqs::types::{Message as Received, MessageAttributeValue as Value, MessageSystemAttributeName as Name};
use idem_core::{Bytes, Headers, Message, OrderingKey, Origin};

use crate::{envelope::Envelope, queue::Queue, state::Incoming};

/// The attribute that says what kind of event a message is.
const TYPE_ATTRIBUTE: &str = "EventType";

/// `None` for what could never be settled, which SQS does not send.
pub(crate) fn incoming(queue: &Queue, envelope: Option<Envelope>, received: Received) -> Option<Incoming> {
    let (receipt, message_id) = (received.receipt_handle?, received.message_id?);
    let facts = received.attributes.unwrap_or_default();
    let attributes = received.message_attributes.unwrap_or_default();
    let types = types(&attributes);
    let headers = headers(attributes.into_iter().collect());
    let body = received.body.unwrap_or_default();
    let mut message = match envelope {
        Some(envelope) => envelope.open(body, headers, &message_id),
        None => Message::new(body).with_headers(headers).with_id(&message_id),
    };
    if let Some(types) = types {
        message = message.with_broker_properties(types);
    }
    message = with_type(message);
    // The id stays the same over redeliveries and redrives.
    message = message.with_origin(Origin::new(&format!("{}/{message_id}", queue.name)));
    if let Some(millis) = facts.get(&Name::SentTimestamp).and_then(|millis| millis.parse().ok()) {
        message = message.with_sent_at(SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
    }
    // On a standard queue the group is about fairness, and orders nothing.
    if let Some(group) = facts.get(&Name::MessageGroupId).filter(|_| queue.fifo) {
        message = message.with_ordering_key(OrderingKey::new(group.clone()));
    }
    let attempt = facts.get(&Name::ApproximateReceiveCount).and_then(|count| count.parse().ok()).unwrap_or(1);
    let first = facts.get(&Name::ApproximateFirstReceiveTimestamp).and_then(|millis| millis.parse().ok());
    let first = first.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
    let suspect = is_suspect(attempt, first.and_then(|first| first.elapsed().ok()), queue.visibility());
    Some(Incoming { message, message_id, receipt, attempt, suspect })
}

/// With the type that its producer has said in an attribute; that of an envelope goes before.
fn with_type(message: Message) -> Message {
    let kind = message.headers().text(TYPE_ATTRIBUTE).filter(|_| message.message_type().is_none()).map(str::to_owned);
    match kind {
        Some(kind) => message.with_type(&kind),
        None => message,
    }
}

/// From which receive on a message is suspected to have ended processes. A second one may follow a worker that was stopped
/// while it had the message for longer than a visibility, or died of another one.
const SUSPECT_FROM: u32 = 3;

/// Whether earlier receives may have ended with the processes that had the message. What comes again before a visibility has
/// passed since its first receive was given back each time, which only a worker that lives can do.
fn is_suspect(attempt: u32, since_the_first: Option<Duration>, visibility: Duration) -> bool {
    attempt >= SUSPECT_FROM && since_the_first.is_none_or(|time| time >= visibility)
}

/// The types of attributes that are not told by their values, for a publisher that sends them again: JSON, by name.
fn types(attributes: &HashMap<String, Value>) -> Option<Vec<u8>> {
    let told = |value: &Value| match &value.binary_value {
        Some(bytes) => value.data_type == "Binary" && std::str::from_utf8(bytes.as_ref()).is_err(),
        None => value.data_type == "String",
    };
    let types: BTreeMap<&str, &str> =
        attributes.iter().filter(|(_, value)| !told(value)).map(|(name, value)| (&**name, &*value.data_type)).collect();
    // Texts alone always have a JSON.
    (!types.is_empty()).then(|| serde_json::to_vec(&types).ok()).flatten()
}

/// By name, because SQS has no order for them; each name is there once.
fn headers(mut attributes: Vec<(String, Value)>) -> Headers {
    attributes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut headers = Headers::default();
    for (name, value) in attributes {
        let bytes = value.string_value.map(Bytes::from);
        headers.push(&name, bytes.or_else(|| value.binary_value.map(|value| Bytes::from(value.into_inner()))));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F21: a router goes by what the producer calls the event.
    #[test]
    fn f21_the_attribute_event_type_is_the_type() {
        let plain = || Message::new("x");
        assert_eq!(with_type(plain().with_header("EventType", "OrderPlaced")).message_type(), Some("OrderPlaced"));
        let enveloped = plain().with_type("detail").with_header("EventType", "OrderPlaced");
        assert_eq!(with_type(enveloped).message_type(), Some("detail"));
        assert_eq!(with_type(plain()).message_type(), None);
        let unreadable = plain().with_header("EventType", &b"\xff"[..]);
        assert_eq!(with_type(unreadable).message_type(), None);
    }
}
