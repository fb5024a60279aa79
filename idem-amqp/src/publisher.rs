//! [`AmqpPublisher`]: dead letters and events go to a queue.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use idem_core::{
    ConfigError, SourceError,
    dead_letter::{self, DeadLetter, Publisher},
    key::KEY_FIELD,
    outbox::CloudEvents,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::{
    confirm::Confirmed,
    message::is_the_brokers_own,
    options::AmqpOptions,
    properties::{AMONG_HEADERS, carried, size, size_of_value, told},
    retry::Original,
};

/// Properties that a dead letter has as headers.
const USER_ID: &str = "idem-user-id";
const EXPIRATION: &str = "idem-expiration";

/// The names of headers that did not fit; the row has them.
const LEFT_OUT: &str = "idem-left-out";
const LEFT_OUT_NAMED: usize = 100;

/// The bytes of a frame of 128 KiB, the broker's own limit, that headers may take beside the other properties.
pub(crate) const HEADERS_MAX: usize = 120_000;

/// How long a dead letter may wait for its confirmation before it counts as not published.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// A [`Publisher`] to a queue, which must exist; it is reached through the default exchange.
///
/// A dead letter counts as published once the broker has confirmed it and has not returned it. It is the message that was
/// delivered, so that it can be moved back: payload, properties, and headers with their types, beside which stand those of
/// [`dead_letter::headers`]. `user_id` and `expiration` become the headers `idem-user-id` and `idem-expiration`, because
/// the broker would refuse the one and drop the dead letter for the other; the broker's own headers, such as `x-death`, are
/// left out. Headers of more than 120 kB do not fit: the largest are left to the row and named in `idem-left-out`.
///
/// An [`EventPublisher`] too, on a connection of its own: an event is persistent, its id is the `message_id`, its type the `type`,
/// and its attributes as a [CloudEvent](Self::cloud_events) are headers that begin with `cloudEvents_`. It counts as published
/// once the broker has confirmed it and has not returned it.
///
/// [`EventPublisher`]: idem_core::outbox::EventPublisher
pub struct AmqpPublisher {
    dead_letters: Confirmed,
    pub(crate) events: Confirmed,
    pub(crate) cloud_events: CloudEvents,
}

impl AmqpPublisher {
    /// A publisher to `queue` on the broker of `options`. [`AmqpOptions::require_queue`] has a start look for the queue.
    ///
    /// # Errors
    /// [`ConfigError`] where the queue's name or a setting is refused.
    pub fn new(options: &AmqpOptions, queue: &str) -> Result<Self, ConfigError> {
        let dead_letters = Confirmed::new(options.for_queue("dead_letter_queue", queue)?, "publishing a dead letter");
        let events = Confirmed::new(options.for_queue("destination", queue)?, "publishing events");
        Ok(Self { dead_letters, events, cloud_events: CloudEvents::binary() })
    }

    /// Sets how events are written. Defaults to [`CloudEvents::binary`].
    #[must_use]
    pub fn cloud_events(self, cloud_events: CloudEvents) -> Self {
        Self { cloud_events, ..self }
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("settings", &self.dead_letters.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let payload = dead_letter.message.payload().map_or(&[][..], |payload| payload);
        self.dead_letters.publish(payload, properties(dead_letter), CONFIRMED_WITHIN).await
    }
}

/// The message as it was, and why it was dead-lettered: properties and headers as the producer sent them, with their types, and
/// idem's facts. Two properties go as headers, because the broker acts on them: it checks the user, and drops expired messages.
fn properties(dead_letter: &DeadLetter) -> BasicProperties {
    let message = &dead_letter.message;
    let original = message.original::<Original>().map(|original| &original.properties);
    let mut table = FieldTable::default();
    for (name, value) in dead_letter::headers(dead_letter).iter() {
        let is_told = if original.is_some() { !is_idems_own(dead_letter, name) } else { AMONG_HEADERS.contains(&name) };
        // A longer name cannot come from this broker.
        if let (false, Ok(name)) = (is_told, ShortString::try_new(name)) {
            table.insert(name, value.map_or(AMQPValue::Void, |value| AMQPValue::LongString(value.into())));
        }
    }
    let Some(original) = original else { return told(message).with_headers(fitting(table)) };
    for (name, value) in original.headers().iter().flat_map(FieldTable::inner) {
        if !is_idems_own(dead_letter, name.as_str()) && !is_the_brokers_own(name.as_str()) {
            table.insert(name.clone(), value.clone());
        }
    }
    for (name, value) in [(USER_ID, original.user_id()), (EXPIRATION, original.expiration())] {
        if let Some(value) = value {
            table.insert(name.into(), AMQPValue::LongString(value.as_str().into()));
        }
    }
    carried(original).with_headers(fitting(table))
}

/// Whether [`dead_letter::headers`] has the last word on a header.
fn is_idems_own(dead_letter: &DeadLetter, name: &str) -> bool {
    name.starts_with("idem-") || (name == KEY_FIELD && dead_letter.key.is_some())
}

/// Headers must fit into one frame. Where the producer's own took nearly all of it, the largest are left to the row.
fn fitting(mut table: FieldTable) -> FieldTable {
    let mut left_out = Vec::new();
    while size(&table) > HEADERS_MAX {
        let largest = table.inner().iter().max_by_key(|(_, value)| size_of_value(value)).map(|(name, _)| name.clone());
        let Some(name) = largest else { break };
        left_out.push(name.to_string());
        table = table.inner().iter().filter(|(other, _)| **other != name).fold(
            FieldTable::default(),
            |mut table, (name, value)| {
                table.insert(name.clone(), value.clone());
                table
            },
        );
    }
    if !left_out.is_empty() {
        left_out.truncate(LEFT_OUT_NAMED);
        table.insert(LEFT_OUT.into(), AMQPValue::LongString(left_out.join(", ").into()));
    }
    table
}
