//! A delivery as a message.

use std::time::{Duration, SystemTime};

use idem_core::{
    Bytes, Message,
    message::{Headers, Origin},
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use sha2::{Digest, Sha256};

/// How often a quorum queue has counted a failed delivery; it changes from one to the next, so it is no header.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Where in a stream a message stands.
const STREAM_OFFSET: &str = "x-stream-offset";

/// Further headers that the broker writes and changes on a message's way. `CC` and `BCC` are requests to it.
const OWN: [&str; 10] = [
    "BCC",
    "CC",
    "x-acquired-count",
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// How a message was published that comes back from a retry queue, which shows in its origin alone.
pub(crate) const EXCHANGE: &str = "idem-exchange";
pub(crate) const ROUTING_KEY: &str = "idem-routing-key";

/// Whether a header belongs to the broker rather than to the message.
pub(crate) fn is_the_brokers_own(name: &str) -> bool {
    name == DELIVERY_COUNT || OWN.contains(&name)
}

/// Whether a delivery says that it comes from a stream. All of a stream's do, and a producer can say so of any other.
pub(crate) fn says_stream(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|headers| headers.inner().contains_key(STREAM_OFFSET))
}

/// How often a quorum queue has handed a message over, from RabbitMQ 4.3 on; messages given back count here alone.
const ACQUIRED_COUNT: &str = "x-acquired-count";

/// From which delivery on a message is suspected to have ended processes, where the queue counts. A process that ends takes
/// all that it had in hand with it, and up to RabbitMQ 4.2 a stop that gives everything back counts as well.
const SUSPECT_FROM: u32 = 3;

/// Whether a message that comes again may have ended the process that had it. A classic queue does not say why it has it
/// back.
pub(crate) fn is_suspect(properties: &BasicProperties, attempt: u32) -> bool {
    let has = |name| properties.headers().as_ref().is_some_and(|headers| headers.inner().contains_key(name));
    let counts = has(DELIVERY_COUNT) || has(ACQUIRED_COUNT);
    !counts || attempt >= SUSPECT_FROM
}

/// The message, and which delivery of it this is by the queue's own count.
pub(crate) fn message(
    exchange: &str,
    routing_key: &str,
    properties: &BasicProperties,
    payload: Vec<u8>,
) -> (Message, u32) {
    let (headers, failures) = headers(properties);
    let text = |name| properties.headers().as_ref()?.inner().get(name)?.as_long_string();
    let first = |name, now: &str| text(name).map_or_else(|| now.to_owned(), ToString::to_string);
    let (exchange, routing_key) = (first(EXCHANGE, exchange), first(ROUTING_KEY, routing_key));
    let id = properties.message_id().as_ref().map(|id| id.as_str());
    let origin = origin(&exchange, &routing_key, id, &headers, &payload);
    let mut message = Message::new(payload).with_headers(headers).with_origin(Origin::new(&origin));
    if let Some(id) = id {
        message = message.with_id(id);
    }
    if let Some(kind) = properties.kind() {
        message = message.with_type(kind.as_str());
    }
    let sent_at = properties.timestamp().and_then(|s| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(s)));
    if let Some(time) = sent_at {
        message = message.with_sent_at(time);
    }
    // The count starts at 0.
    (message, failures.saturating_add(1))
}

/// The protocol gives a message no place and no id of its own, so its content distinguishes it from others: a producer may
/// repeat an id, and a dead letter mistaken for another one would be lost. Two that are equal in everything have one
/// origin.
fn origin(exchange: &str, routing_key: &str, id: Option<&str>, headers: &Headers, payload: &[u8]) -> String {
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    for (name, value) in headers.iter() {
        part(name.as_bytes());
        part(value.unwrap_or_default());
    }
    part(payload);
    let digest = hex::encode(&hasher.finalize()[..8]);
    format!("{exchange}/{routing_key}/{}#{digest}", id.unwrap_or_default())
}

/// The properties that say something of the content, the headers in the order of their names, and the queue's count.
fn headers(properties: &BasicProperties) -> (Headers, u32) {
    let (mut headers, mut failures) = (Headers::default(), 0);
    let own = [
        ("content-type", properties.content_type()),
        ("content-encoding", properties.content_encoding()),
        ("correlation-id", properties.correlation_id()),
        ("reply-to", properties.reply_to()),
    ];
    for (name, value) in own {
        if let Some(value) = value {
            headers.push(name, Some(Bytes::copy_from_slice(value.as_str().as_bytes())));
        }
    }
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        match (name.as_str(), bytes(value)) {
            (DELIVERY_COUNT, _) => failures = count(value),
            (EXCHANGE | ROUTING_KEY, _) => {}
            (name, _) if is_the_brokers_own(name) => {}
            (name, Some(value)) => headers.push(name, value),
            // Tables and arrays are no single values, and must not look as if they were not there: a key is malformed that
            // is one.
            (name, None) => headers.push(name, None),
        }
    }
    (headers, failures)
}

fn count(value: &AMQPValue) -> u32 {
    bytes(value).flatten().and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()).unwrap_or(0)
}

/// Text and bytes as they are, numbers and times in digits; `None` for a value that is not a single one.
fn bytes(value: &AMQPValue) -> Option<Option<Bytes>> {
    let text = |text: String| Some(Some(Bytes::from(text)));
    match value {
        AMQPValue::LongString(value) => Some(Some(Bytes::copy_from_slice(value.as_bytes()))),
        AMQPValue::ByteArray(value) => Some(Some(Bytes::copy_from_slice(value.as_slice()))),
        AMQPValue::ShortString(value) => text(value.to_string()),
        AMQPValue::Boolean(value) => text(value.to_string()),
        AMQPValue::ShortShortInt(value) => text(value.to_string()),
        AMQPValue::ShortShortUInt(value) => text(value.to_string()),
        AMQPValue::ShortInt(value) => text(value.to_string()),
        AMQPValue::ShortUInt(value) => text(value.to_string()),
        AMQPValue::LongInt(value) => text(value.to_string()),
        AMQPValue::LongUInt(value) => text(value.to_string()),
        AMQPValue::LongLongInt(value) => text(value.to_string()),
        AMQPValue::Timestamp(value) => text(value.to_string()),
        AMQPValue::Float(value) => text(value.to_string()),
        AMQPValue::Double(value) => text(value.to_string()),
        AMQPValue::Void => Some(None),
        AMQPValue::DecimalValue(_) | AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => None,
    }
}

#[cfg(test)]
mod tests;
