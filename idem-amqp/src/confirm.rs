//! [`AmqpPublisher`]: dead letters go to a queue, and count as published once the broker has confirmed them.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use idem_core::{ConfigError, DeadLetter, Publisher, SourceError, dead_letter};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    channel::{connect, ready},
    config::{AmqpOptions, Settings},
    error::{classify, is_too_large, refused, unavailable},
};

/// How long a dead letter may wait for its confirmation before it counts as not published.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// `delivery_mode` of a message that outlives a restart of the broker.
const PERSISTENT: u8 = 2;

const DOING: &str = "publishing a dead letter";

/// A [`Publisher`] to a queue, which must exist; it is reached through the default exchange.
///
/// A dead letter counts as published once the broker has confirmed it and has not returned it. It carries the message's
/// own payload and the headers of [`dead_letter::headers`].
pub struct AmqpPublisher {
    settings: Settings,
    /// Out while a letter is under way, so that a channel with an answer that nobody waits for is never used again: the
    /// client library hands a returned message to the next confirmation, whichever that is.
    open: Mutex<Option<Open>>,
}

/// A channel, and the connection that keeps it.
struct Open {
    connection: Connection,
    channel: Channel,
}

impl AmqpPublisher {
    /// A publisher to `queue` on the broker of `options`.
    ///
    /// # Errors
    /// [`ConfigError`] where the queue's name or a setting is refused.
    pub fn new(options: &AmqpOptions, queue: &str) -> Result<Self, ConfigError> {
        Ok(Self { settings: options.for_queue("dead_letter_queue", queue)?, open: Mutex::default() })
    }

    async fn connected(&self, open: Option<Open>) -> Result<Open, SourceError> {
        let refused = |error| classify(&self.settings, DOING, error);
        if let Some(open) = open.filter(|open| open.channel.status().connected()) {
            return Ok(open);
        }
        let connection = connect(&self.settings.uri).await.map_err(refused)?;
        let channel = connection.create_channel().await.map_err(refused)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(refused)?;
        Ok(Open { connection, channel })
    }

    async fn confirmed(&self, open: &Open, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let queue = &self.settings.queue;
        if open.connection.status().blocked() {
            return Err(unavailable(DOING, "the broker has blocked the connection: it is out of memory or disk space"));
        }
        // A message that is returned is logged by the client library with its payload and headers, which may be private:
        // so the queue is asked for first, and `mandatory` is for one that goes in between.
        ready(&open.channel, queue).await.map_err(|error| classify(&self.settings, DOING, error))?;
        let payload = dead_letter.message.payload().map_or(&[][..], |payload| payload);
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties(dead_letter);
        let sent = open.channel.basic_publish("".into(), queue.clone(), mandatory, payload, properties).await;
        let confirmation = match sent {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match confirmation {
            Ok(confirmation) => stored(confirmation, queue),
            Err(error) if is_too_large(&error) => Err(refused(
                format!("a dead letter is too large for queue \"{queue}\": {error}"),
                "Raise max_message_size of the broker",
            )),
            Err(error) => Err(classify(&self.settings, DOING, error)),
        }
    }
}

/// Whether the broker has it. A message that no queue takes is returned, and confirmed all the same.
fn stored(confirmation: Confirmation, queue: &ShortString) -> Result<(), SourceError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => Err(refused(
            format!("the dead-letter queue \"{queue}\" does not exist any more"),
            "Declare it, or correct the name; idem declares no queues",
        )),
        Confirmation::Nack(_) => Err(unavailable(DOING, "the broker refused it: the queue may be full")),
        Confirmation::NotRequested => Err(unavailable(DOING, "the channel confirms nothing")),
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let mut place = self.open.lock().await;
        let open = place.take();
        let published = timeout(CONFIRMED_WITHIN, async {
            let open = self.connected(open).await?;
            self.confirmed(&open, dead_letter).await.map(|()| open)
        });
        *place = Some(published.await.unwrap_or_else(|late| Err(unavailable(DOING, late)))?);
        Ok(())
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

#[cfg(test)]
mod tests {
    use lapin::message::{BasicReturnMessage, Delivery};

    use super::*;

    #[test]
    fn g8_only_a_confirmation_without_a_returned_message_counts() {
        let returned = || {
            let delivery = Delivery::mock(0, "".into(), "dead".into(), false, Vec::new());
            Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
        };
        let stored = |confirmation| stored(confirmation, &"dead".into());
        assert!(stored(Confirmation::Ack(None)).is_ok());
        assert!(matches!(stored(Confirmation::Ack(returned())), Err(SourceError::Refused { .. })));
        for confirmation in [Confirmation::Nack(None), Confirmation::Nack(returned()), Confirmation::NotRequested] {
            assert!(matches!(stored(confirmation), Err(SourceError::Unavailable { .. })));
        }
    }
}
