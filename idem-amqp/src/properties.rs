//! The properties that go with a message when idem publishes it anew.

use idem_core::Message;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::message::{EXCHANGE, ROUTING_KEY, is_the_brokers_own};

/// `delivery_mode` of a message that outlives a restart of the broker.
pub(crate) const PERSISTENT: u8 = 2;

/// The properties that stand among a [`Message`]'s headers, by their names there.
pub(crate) const AMONG_HEADERS: [&str; 4] = ["content-type", "content-encoding", "correlation-id", "reply-to"];

type With = fn(BasicProperties, ShortString) -> BasicProperties;

/// All properties that belong to the message itself, but its headers.
///
/// The user's id is left out: the broker refuses that of another user. So is the expiration, after which the broker would
/// drop the copy, and the id of a cluster, which means nothing.
pub(crate) fn carried(from: &BasicProperties) -> BasicProperties {
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(priority) = from.priority() {
        properties = properties.with_priority(*priority);
    }
    if let Some(timestamp) = from.timestamp() {
        properties = properties.with_timestamp(*timestamp);
    }
    let texts: [(_, With); 7] = [
        (from.content_type(), BasicProperties::with_content_type),
        (from.content_encoding(), BasicProperties::with_content_encoding),
        (from.correlation_id(), BasicProperties::with_correlation_id),
        (from.reply_to(), BasicProperties::with_reply_to),
        (from.message_id(), BasicProperties::with_message_id),
        (from.kind(), BasicProperties::with_type),
        (from.app_id(), BasicProperties::with_app_id),
    ];
    texts
        .into_iter()
        .filter_map(|(value, with)| Some((value.clone()?, with)))
        .fold(properties, |properties, (value, with)| with(properties, value))
}

/// The same of a message that lacks the broker's own properties, as in [`is_all_told`].
pub(crate) fn told(message: &Message) -> BasicProperties {
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let since = message.sent_at().and_then(|at| at.duration_since(std::time::SystemTime::UNIX_EPOCH).ok());
    if let Some(since) = since {
        properties = properties.with_timestamp(since.as_secs());
    }
    let header = |name| message.headers().text(name);
    let texts: [(_, With); 6] = [
        (header(AMONG_HEADERS[0]), BasicProperties::with_content_type),
        (header(AMONG_HEADERS[1]), BasicProperties::with_content_encoding),
        (header(AMONG_HEADERS[2]), BasicProperties::with_correlation_id),
        (header(AMONG_HEADERS[3]), BasicProperties::with_reply_to),
        (message.id(), BasicProperties::with_message_id),
        (message.message_type(), BasicProperties::with_type),
    ];
    let short = |text: Option<&str>| ShortString::try_new(text?).ok();
    texts
        .into_iter()
        .filter_map(|(value, with)| Some((short(value)?, with)))
        .fold(properties, |properties, (value, with)| with(properties, value))
}

/// Whether a [`Message`] holds all of these properties, so that they need not be kept beside it.
pub(crate) fn is_all_told(properties: &BasicProperties) -> bool {
    let table = properties.headers().as_ref();
    let is_text = |(name, value): (&ShortString, &AMQPValue)| {
        let is_header = matches!(value, AMQPValue::LongString(_) | AMQPValue::Void);
        let is_hidden = AMONG_HEADERS.contains(&name.as_str()) || [EXCHANGE, ROUTING_KEY].contains(&name.as_str());
        (is_header && !is_hidden) || is_the_brokers_own(name.as_str())
    };
    properties.priority().is_none()
        && properties.app_id().is_none()
        && properties.user_id().is_none()
        && properties.expiration().is_none()
        && table.is_none_or(|table| table.inner().iter().all(is_text))
}

/// How many bytes a table takes in a frame, about.
pub(crate) fn size(table: &FieldTable) -> usize {
    table.inner().iter().map(|(name, value)| 2 + name.as_str().len() + size_of_value(value)).sum::<usize>() + 4
}

/// How many bytes a value takes in a frame, about. No value is nested deeper than those let in.
pub(crate) fn size_of_value(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.as_slice().len(),
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::FieldTable(table) => size(table),
        AMQPValue::FieldArray(array) => {
            4 + array.as_slice().iter().map(|value| 1 + size_of_value(value)).sum::<usize>()
        }
        AMQPValue::Boolean(_)
        | AMQPValue::ShortShortInt(_)
        | AMQPValue::ShortShortUInt(_)
        | AMQPValue::ShortInt(_)
        | AMQPValue::ShortUInt(_)
        | AMQPValue::LongInt(_)
        | AMQPValue::LongUInt(_)
        | AMQPValue::LongLongInt(_)
        | AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::Void => 8,
    }
}
