//! The retry queue: where a message waits that this process may not hold for so long.

use std::{fmt, time::Duration};

use idem_core::{Bytes, SourceError};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use crate::{
    config::Settings,
    confirm::{Confirmed, PERSISTENT},
    message::{EXCHANGE, ROUTING_KEY, is_the_brokers_own},
};

/// How long the broker may take to confirm. Settling waits for it, so it is short, and what is late is given back at once.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// A message as it was delivered, for which a retry queue is there.
pub(crate) struct Original {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").finish_non_exhaustive()
    }
}

/// Messages in it expire after a time of their own, and its dead-letter exchange then brings them to where they came from.
pub(crate) struct RetryQueue(Confirmed);

impl RetryQueue {
    /// The one of these settings, if they name one.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let queue = settings.retry_queue.clone()?;
        let settings = Settings { queue, ..settings.clone() };
        Some(Self(Confirmed::new(settings, "publishing to the retry queue")))
    }

    /// Returns once the broker has the message there; the original may then be acknowledged.
    pub(crate) async fn put(&self, original: &Original, after: Duration) -> Result<(), SourceError> {
        self.0.publish(&original.payload, properties(original, after), CONFIRMED_WITHIN).await
    }
}

/// Everything that makes the message what it is, and when it is to come back.
///
/// The user's id is left out: the broker refuses that of another user. What the broker wrote itself is left out too. From
/// `x-death` it would take the way back for a cycle, and drop the message; `CC` would send it to others once more.
fn properties(original: &Original, after: Duration) -> BasicProperties {
    let from = &original.properties;
    let mut table = FieldTable::default();
    // Of the first delivery, which a message that comes back for the second time still has.
    table.insert(EXCHANGE.into(), AMQPValue::LongString(original.exchange.as_str().into()));
    table.insert(ROUTING_KEY.into(), AMQPValue::LongString(original.routing_key.as_str().into()));
    for (name, value) in from.headers().iter().flat_map(FieldTable::inner) {
        if !is_the_brokers_own(name.as_str()) {
            table.insert(name.clone(), value.clone());
        }
    }
    let millis = after.as_millis().clamp(1, u128::from(u32::MAX)).to_string();
    let mut properties =
        BasicProperties::default().with_headers(table).with_delivery_mode(PERSISTENT).with_expiration(millis.into());
    if let Some(priority) = from.priority() {
        properties = properties.with_priority(*priority);
    }
    if let Some(timestamp) = from.timestamp() {
        properties = properties.with_timestamp(*timestamp);
    }
    [
        (from.content_type(), BasicProperties::with_content_type as fn(_, _) -> _),
        (from.content_encoding(), BasicProperties::with_content_encoding),
        (from.correlation_id(), BasicProperties::with_correlation_id),
        (from.reply_to(), BasicProperties::with_reply_to),
        (from.message_id(), BasicProperties::with_message_id),
        (from.kind(), BasicProperties::with_type),
        (from.app_id(), BasicProperties::with_app_id),
    ]
    .into_iter()
    .filter_map(|(value, with)| Some((value.clone()?, with)))
    .fold(properties, |properties, (value, with)| with(properties, value))
}

#[cfg(test)]
mod tests;
