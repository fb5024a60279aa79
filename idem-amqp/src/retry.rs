//! The retry queue: where a message waits that this process may not hold for so long.

use std::{fmt, time::Duration};

use idem_core::{Bytes, SourceError};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use crate::{
    confirm::Confirmed,
    message::{EXCHANGE, ROUTING_KEY, is_the_brokers_own},
    options::Settings,
    properties::carried,
};

/// How long the broker may take to confirm. Settling waits for it, so it is short, and a late message is given back at
/// once.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// A message as it was delivered.
pub(crate) struct Original {
    pub(crate) properties: BasicProperties,
    /// Where there is a retry queue.
    pub(crate) content: Option<Content>,
}

pub(crate) struct Content {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
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
        let connection_name = format!("{}, retry queue", settings.connection_name);
        let settings = Settings { queue, connection_name, ..settings.clone() };
        Some(Self(Confirmed::new(settings, "publishing to the retry queue")))
    }

    /// Returns once the broker has the message there; the original may then be acknowledged.
    pub(crate) async fn put(&self, original: &Original, after: Duration) -> Result<(), SourceError> {
        let Some(content) = &original.content else {
            return Err(SourceError::refused(
                "a message was not kept for the retry queue",
                "This is a bug of idem-amqp: report it",
            ));
        };
        self.0.publish(&content.payload, properties(&original.properties, content, after), CONFIRMED_WITHIN).await
    }
}

/// All properties that belong to the message itself, and when it is to come back.
///
/// The broker's own headers are left out. From
/// `x-death` it would take the way back for a cycle, and drop the message; `CC` would send it to others once more.
fn properties(from: &BasicProperties, content: &Content, after: Duration) -> BasicProperties {
    let mut table = FieldTable::default();
    // Of the first delivery, which a message that comes back for the second time still has.
    table.insert(EXCHANGE.into(), AMQPValue::LongString(content.exchange.as_str().into()));
    table.insert(ROUTING_KEY.into(), AMQPValue::LongString(content.routing_key.as_str().into()));
    for (name, value) in from.headers().iter().flat_map(FieldTable::inner) {
        if !is_the_brokers_own(name.as_str()) {
            table.insert(name.clone(), value.clone());
        }
    }
    let millis = after.as_millis().clamp(1, u128::from(u32::MAX)).to_string();
    carried(from).with_headers(table).with_expiration(millis.into())
}

#[cfg(test)]
mod tests;
