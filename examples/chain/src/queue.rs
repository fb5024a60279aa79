//! A publisher of events to a queue of the broker in this process. For Kafka, RabbitMQ and SQS the adapters have
//! one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use idem_core::{
    Message,
    key::KEY_FIELD,
    outbox::{EventError, EventPublisher, OutgoingEvent},
};
use idem_testkit::memory::Queue;

use crate::kill::{Kills, Moment};

/// How often the broker was given each id, over all lives of the relay.
#[derive(Debug, Default)]
pub(crate) struct Sent(Mutex<HashMap<String, u32>>);

impl Sent {
    fn note(&self, events: &[&OutgoingEvent]) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            *sent.entry(event.key.as_str().to_owned()).or_default() += 1;
        }
    }

    /// How many ids there are, and how many of them were given more than once.
    pub(crate) fn ids(&self) -> (usize, usize) {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (sent.len(), sent.values().filter(|times| **times > 1).count())
    }
}

/// Publishes events, and may be killed before it says so.
pub(crate) struct ToQueue {
    pub(crate) queue: Queue,
    pub(crate) sent: Arc<Sent>,
    pub(crate) kills: Arc<Kills>,
}

#[async_trait]
impl EventPublisher for ToQueue {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let publish = |event: &&OutgoingEvent| {
            let headers = event.headers.clone();
            let message = Message::new(event.payload.clone()).with_headers(headers);
            let message = message.with_header(KEY_FIELD, event.key.as_str().to_owned());
            let message = match &event.ordering_key {
                Some(key) => message.with_record_key(key.as_bytes().to_vec()),
                None => message,
            };
            self.queue.publish(message).map(|_| ()).map_err(EventError::not_sent)
        };
        let published = events.iter().map(publish).collect();
        self.sent.note(events);
        self.kills.at(Moment::Sent, events.len()).await;
        published
    }
}
