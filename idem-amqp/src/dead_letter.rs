//! [`AmqpPublisher`]: dead letters go to a queue.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use idem_core::{ConfigError, DeadLetter, Publisher, SourceError, dead_letter};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::{
    config::AmqpOptions,
    confirm::{Confirmed, PERSISTENT},
};

/// How long a dead letter may wait for its confirmation before it counts as not published.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// A [`Publisher`] to a queue, which must exist; it is reached through the default exchange.
///
/// A dead letter counts as published once the broker has confirmed it and has not returned it. It carries the message's
/// own payload and the headers of [`dead_letter::headers`].
pub struct AmqpPublisher(Confirmed);

impl AmqpPublisher {
    /// A publisher to `queue` on the broker of `options`. [`AmqpOptions::needs`] has a start look for the queue.
    ///
    /// # Errors
    /// [`ConfigError`] where the queue's name or a setting is refused.
    pub fn new(options: &AmqpOptions, queue: &str) -> Result<Self, ConfigError> {
        Ok(Self(Confirmed::new(options.for_queue("dead_letter_queue", queue)?, "publishing a dead letter")))
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let payload = dead_letter.message.payload().map_or(&[][..], |payload| payload);
        self.0.publish(payload, properties(dead_letter), CONFIRMED_WITHIN).await
    }
}

fn properties(dead_letter: &DeadLetter) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in dead_letter::headers(dead_letter).iter() {
        // A longer name cannot come from this broker.
        if let Ok(name) = ShortString::try_new(name) {
            let value = value.map_or(AMQPValue::Void, |value| AMQPValue::LongString(value.into()));
            table.insert(name, value);
        }
    }
    let properties = BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(table);
    match dead_letter.message.id().map(ShortString::try_new) {
        Some(Ok(id)) => properties.with_message_id(id),
        Some(Err(_)) | None => properties,
    }
}
