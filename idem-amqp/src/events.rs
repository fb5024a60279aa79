//! [`AmqpPublisher`] as the publisher of events to a queue.

use std::time::Duration;

use async_trait::async_trait;
use idem_core::{
    Bytes, Message, SourceError,
    outbox::{DestinationLimits, Dispatch, EventError, EventPublisher, OutgoingEvent},
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::{
    message::is_the_brokers_own,
    properties::{AMONG_HEADERS, size, told},
    publisher::{AmqpPublisher, HEADERS_MAX},
};

/// How long the events of one call may wait for their confirmations: less than a relay waits for the publisher.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(7);

/// How many events a relay gives at once.
const EVENTS_MAX: usize = 500;

/// The binding of CloudEvents to AMQP, in the form that every client takes as the name of a header.
const PREFIX: &str = "cloudEvents_";

#[async_trait]
impl EventPublisher for AmqpPublisher {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let mut answers: Vec<Option<Result<(), EventError>>> = events.iter().map(|_| None).collect();
        let (mut messages, mut places) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
        for (place, event) in events.iter().enumerate() {
            match self.message(event) {
                Ok(message) => {
                    messages.push(message);
                    places.push(place);
                }
                Err(error) => answers[place] = Some(Err(error)),
            }
        }
        if !messages.is_empty() {
            let published = self.events.publish_all(&messages, CONFIRMED_WITHIN).await;
            for (place, answer) in places.into_iter().zip(published) {
                answers[place] = Some(answer);
            }
        }
        let unanswered = || Err(EventError::unconfirmed("the broker did not answer for this event").uncounted());
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: EVENTS_MAX }
    }

    async fn limits(&self) -> Option<DestinationLimits> {
        // A client is not told how large a message the broker takes.
        Some(DestinationLimits::new("rabbitmq"))
    }

    async fn look(&self) -> Result<(), EventError> {
        Ok(self.events.look().await?)
    }
}

impl AmqpPublisher {
    /// The payload and properties of the event. A header that is the broker's own, or a request to it, such as `CC`,
    /// is left out.
    fn message(&self, event: &OutgoingEvent) -> Result<(Bytes, BasicProperties), EventError> {
        let wire = self.cloud_events.on_wire(event, PREFIX);
        let mut table = FieldTable::default();
        for (name, value) in wire.headers.iter().filter(|(name, _)| !AMONG_HEADERS.contains(name)) {
            if is_the_brokers_own(name) {
                continue;
            }
            let value = value.map_or(AMQPValue::Void, |value| AMQPValue::LongString(value.into()));
            // Names of more than 255 bytes were refused as the event was published.
            if let Ok(name) = ShortString::try_new(name) {
                table.insert(name, value);
            }
        }
        if size(&table) > HEADERS_MAX {
            return Err(SourceError::does_not_fit(
                format!("the event has {} bytes of headers, and a frame takes {HEADERS_MAX}", size(&table)),
                "Give it fewer",
            )
            .into());
        }
        let mut properties = Message::new("").with_headers(wire.headers).with_id(event.key.as_str());
        properties = properties.with_sent_at(event.created_at);
        if let Some(kind) = &event.event_type {
            properties = properties.with_type(kind);
        }
        let mut properties = told(&properties).with_headers(table);
        if let Some(kind) = wire.content_type.as_deref().and_then(|kind| ShortString::try_new(kind).ok()) {
            properties = properties.with_content_type(kind);
        }
        Ok((wire.payload, properties))
    }
}
