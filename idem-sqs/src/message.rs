//! A message of SQS as the worker gets it.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use aws_sdk_sqs::types::{Message as Received, MessageAttributeValue as Value, MessageSystemAttributeName as Name};
use idem_core::{
    Bytes, Message,
    message::{Headers, OrderingKey, Origin},
};

use crate::{envelope::Envelope, queue::Queue, state::Incoming};

/// The attribute with the kind of event that a message is.
pub(crate) const TYPE_ATTRIBUTE: &str = "EventType";

/// The attribute with those of a CloudEvent.
pub(crate) const CLOUD_EVENT_ATTRIBUTE: &str = "ce";

/// `None` for a message that could never be settled, which SQS does not send.
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

/// With the type in the producer's attribute, or in that of a CloudEvent, unless an envelope has one.
fn with_type(message: Message) -> Message {
    if message.message_type().is_some() {
        return message;
    }
    let headers = message.headers();
    let kind = headers.text(TYPE_ATTRIBUTE).map(str::to_owned);
    match kind.or_else(|| type_of_cloud_event(headers.text(CLOUD_EVENT_ATTRIBUTE)?)) {
        Some(kind) => message.with_type(&kind),
        None => message,
    }
}

/// The type among the attributes of a CloudEvent in JSON, as the other brokers have it in a header of its own.
fn type_of_cloud_event(attributes: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Attributes {
        specversion: String,
        r#type: String,
    }
    let attributes: Attributes = serde_json::from_str(attributes).ok()?;
    attributes.specversion.starts_with("1.").then_some(attributes.r#type)
}

/// From which receive on a message is suspected to have ended processes. A second one may follow a worker that was stopped
/// while it had the message for longer than a visibility, or died of another one.
const SUSPECT_FROM: u32 = 3;

/// Whether earlier receives may have ended with the processes that had the message. A message that comes again before a
/// visibility has passed since its first receive was given back each time, which only a worker that lives can do.
fn is_suspect(attempt: u32, since_the_first: Option<Duration>, visibility: Duration) -> bool {
    attempt >= SUSPECT_FROM && since_the_first.is_none_or(|time| time >= visibility)
}

/// The types of attributes that do not follow from their values, for a publisher that sends them again: JSON, by name.
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

    /// F21: a router goes by the producer's name of the event.
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

    /// F21: an event of a relay has no other attribute for its type where the handler's own leave no room.
    #[test]
    fn f21_the_type_of_a_cloud_event_is_the_type() {
        let with = |attributes: &'static str| Message::new("x").with_header("ce", attributes);
        let event = r#"{"specversion":"1.0","id":"1","type":"Order\u0050laced"}"#;
        assert_eq!(with_type(with(event)).message_type(), Some("OrderPlaced"));
        let both = with(event).with_header("EventType", "Other");
        assert_eq!(with_type(both).message_type(), Some("Other"));
        for other in
            ["", "{", "Told", r#"{"type":"Told"}"#, r#"{"specversion":"1.0"}"#, r#"{"specversion":"1.0","type":7}"#]
        {
            assert_eq!(with_type(with(other)).message_type(), None, "{other}");
        }
    }

    fn queue(url: &str) -> Queue {
        let config = aws_sdk_sqs::Config::builder().behavior_version(aws_sdk_sqs::config::BehaviorVersion::latest());
        Queue::new(&crate::SqsOptions::new(aws_sdk_sqs::Client::from_conf(config.build()), url))
    }

    fn any_text(random: &mut fastrand::Rng) -> String {
        let texts = [
            "",
            "EventType",
            "idempotencykey",
            "idem",
            "-1",
            "18446744073709551615",
            "99999999999999999999",
            "é\n",
            "{}",
        ];
        match random.u8(..3) {
            0 => texts[random.usize(..texts.len())].to_owned(),
            1 => "n".repeat(random.usize(..70_000)),
            _ => (0..random.usize(..40)).map(|_| random.char(..)).collect(),
        }
    }

    /// Not only values that SQS allows: some are missing, are there twice, or have types that do not exist.
    fn any_value(random: &mut fastrand::Rng) -> Value {
        let types = ["String", "Number", "Binary", "Binary.jpeg", "String.é", ""];
        let mut value = Value::builder().data_type(types[random.usize(..types.len())]);
        if random.bool() {
            value = value.string_value(any_text(random));
        }
        if random.bool() {
            let bytes: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
            value = value.binary_value(aws_sdk_sqs::primitives::Blob::new(bytes));
        }
        value.build().unwrap()
    }

    /// A body that looks like an envelope in some of its parts.
    fn any_body(random: &mut fastrand::Rng) -> String {
        let parts = [
            r#""Type":"Notification""#,
            r#""MessageId":"m-1""#,
            r#""Message":"x""#,
            r#""MessageAttributes":{"a":{"Type":"Binary","Value":"!"}}"#,
            r#""MessageAttributes":[]"#,
            r#""id":"e-1""#,
            r#""detail-type":"paid""#,
            r#""detail":{"a":[1,{"b":"\ud800"}]}"#,
            r#""detail":null"#,
            r#""id":7"#,
        ];
        match random.u8(..4) {
            0 => any_text(random),
            1 => "[".repeat(random.usize(..50_000)),
            _ => {
                let some: Vec<&str> = (0..random.usize(..8)).map(|_| parts[random.usize(..parts.len())]).collect();
                format!("{{{}}}", some.join(","))
            }
        }
    }

    /// S50: whatever a producer has written, a message comes out; without an envelope it is whole, with its attributes and the
    /// types that they have.
    #[test]
    fn s50_attributes_bodies_and_facts_of_any_kind_make_a_message() {
        let seed = idem_testkit::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let queues = ["https://h/1/q", "https://h/1/q.fifo"].map(queue);
        let envelopes = [None, Some(Envelope::Sns), Some(Envelope::EventBridge)];
        let facts = [
            Name::SentTimestamp,
            Name::MessageGroupId,
            Name::ApproximateReceiveCount,
            Name::ApproximateFirstReceiveTimestamp,
        ];
        for round in 0..if std::env::var_os("IDEM_TEST_ALL").is_some() { 2_000 } else { 200 } {
            let envelope = envelopes[random.usize(..3)];
            let mut received =
                Received::builder().receipt_handle(any_text(&mut random)).message_id(any_text(&mut random));
            for fact in &facts {
                if random.bool() {
                    received = received.attributes(fact.clone(), any_text(&mut random));
                }
            }
            for _ in 0..random.usize(..12) {
                received = received.message_attributes(any_text(&mut random), any_value(&mut random));
            }
            let body = random.bool().then(|| any_body(&mut random));
            let received = received.set_body(body.clone()).build();
            let attributes = received.message_attributes.clone().unwrap_or_default();
            let what = format!("seed {seed}, round {round}, {envelope:?}: {received:?}");
            let incoming = incoming(&queues[random.usize(..2)], envelope, received).expect(&what);
            let message = incoming.message;
            // Found, missing or malformed; never a panic.
            let _ = idem_core::key::default_key_source().key(&message);
            if envelope.is_some()
                && message.payload().is_none_or(|payload| *payload != body.clone().unwrap_or_default())
            {
                continue;
            }
            assert_eq!(message.payload().unwrap(), &body.unwrap_or_default(), "{what}");
            assert_eq!(message.headers().len(), attributes.len(), "{what}");
            for (name, value) in message.headers().iter() {
                let sent = &attributes[name];
                let bytes = sent.string_value.as_ref().map(String::as_bytes);
                assert_eq!(value, bytes.or(sent.binary_value.as_ref().map(AsRef::as_ref)), "{what}");
            }
        }
    }
}
