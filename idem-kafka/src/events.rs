//! [`KafkaPublisher`] as the publisher of events to a topic.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    SourceError,
    outbox::{DestinationLimits, Dispatch, EventError, EventPublisher, OutgoingEvent},
};
use rdkafka::{
    error::KafkaError,
    message::{Header, OwnedHeaders},
    metadata::MetadataTopic,
    producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer, PurgeConfig},
    types::RDKafkaErrorCode as Code,
};
use tokio::time::Instant;

use crate::{
    context::Log,
    error::{classify, said, words},
    publisher::{KafkaPublisher, producer_with},
};

/// How long a record may wait for its confirmation: less than a relay waits for the publisher, so that it learns the
/// result of each event.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(7);

/// For how long parts of a batch that was too large may begin. The last of them may wait for its confirmation too, and all of it
/// takes less than a relay waits.
const SPLIT_WITHIN: Duration = Duration::from_secs(2);

/// How long the brokers may take to answer before events are handed to the library: with the confirmations less than a relay waits.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// How long the broker may take to answer whether it has the topic.
const LOOKED_WITHIN: Duration = Duration::from_secs(4);

/// How long a record waits for company in its batch. They are handed over all at once.
const LINGER_MS: &str = "1";

/// How many events a relay gives at once.
const EVENTS_MAX: usize = 2_000;

/// The binding of CloudEvents to Kafka.
const PREFIX: &str = "ce_";

#[async_trait]
impl EventPublisher for KafkaPublisher {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let producer = match self.event_producer() {
            Ok(producer) => producer,
            Err(error) => {
                let refused = || classify(&self.options, "making a producer of events", error.clone()).into();
                return events.iter().map(|_| Err(refused())).collect();
            }
        };
        if let Err(error) = self.reach(&producer).await {
            let told = idem_core::internal::chain(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
            let not_sent = || {
                if let SourceError::Refused { problem, cure } = &error {
                    return EventError::Refused { problem: problem.clone(), cure: cure.clone() };
                }
                EventError::not_sent(told.clone()).uncounted()
            };
            return events.iter().map(|_| Err(not_sent())).collect();
        }
        let begun = Instant::now();
        let in_parts = || Err(EventError::not_sent("the topic accepts only smaller batches of events").uncounted());
        let mut answers: Vec<_> = events.iter().map(|_| in_parts()).collect();
        // The broker refuses a batch as a whole, and the library splits none (librdkafka#1716). So events that were refused for
        // their size go again in halves, and only one that is refused alone is too large itself. None overtakes another of its
        // ordering key: a call has no two of one key.
        let mut groups = vec![(0..events.len()).collect::<Vec<_>>()];
        while begun.elapsed() < SPLIT_WITHIN
            && let Some(group) = groups.pop()
        {
            // All are handed over before the first is waited for. The library sends those of one partition in this order, and
            // with idempotence keeps it over its own retries.
            let sent: Vec<_> = group.iter().map(|place| (*place, self.send(&producer, events[*place]))).collect();
            let mut refused = Vec::new();
            for (place, sent) in sent {
                answers[place] = match sent {
                    Ok(delivery) => match delivery.await {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err((error, _))) if group.len() > 1 && is_too_large(&error) => {
                            refused.push(place);
                            in_parts()
                        }
                        Ok(Err((error, _))) => Err(self.failed(error)),
                        Err(_cancelled) => {
                            Err(EventError::unconfirmed("the producer ended before the broker had answered")
                                .uncounted())
                        }
                    },
                    Err(error) => Err(error),
                };
            }
            let second = refused.split_off(refused.len().div_ceil(2));
            groups.extend([second, refused].into_iter().filter(|half| !half.is_empty()));
        }
        let is_silent =
            |answer: &Result<(), EventError>| matches!(answer, Err(EventError::Later { may_be_sent: true, .. }));
        if answers.iter().any(is_silent) {
            self.is_reached.store(false, Ordering::Relaxed);
        }
        answers
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: EVENTS_MAX }
    }

    async fn limits(&self) -> Option<DestinationLimits> {
        // The library measures a record before it is compressed, the broker afterwards: what that refuses is not known before.
        let bytes_max = self.options.publisher_config().get("message.max.bytes").and_then(|bytes| bytes.parse().ok());
        let limits = DestinationLimits::new("kafka").is_structured(self.cloud_events.is_structured());
        Some(limits.message_bytes_max(bytes_max))
    }

    async fn look(&self) -> Result<(), EventError> {
        let refused = |error| EventError::from(classify(&self.options, "looking for the topic", error));
        let (producer, topic) = (self.event_producer().map_err(refused)?, self.options.topic.clone());
        // The library waits for the answer on the thread that asks. By the producer's settings, no topic is made by that.
        let looking = move || producer.client().fetch_metadata(Some(&topic), LOOKED_WITHIN);
        let found = tokio::task::spawn_blocking(looking).await.map_err(EventError::not_sent)?.map_err(refused)?;
        match found.topics().iter().find_map(MetadataTopic::error) {
            None => Ok(()),
            Some(code) => Err(refused(KafkaError::Global(code.into()))),
        }
    }

    async fn purge(&self) {
        // With its sequence of records broken a producer with idempotence is of no use any more.
        let purged = self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(producer) = purged {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

impl KafkaPublisher {
    /// Asks for the topic where no broker has answered last. An event that was handed to the library counts as possibly sent when its
    /// time is over, so that a broker which is away for longer than receivers remember would fail all that waits (O100).
    async fn reach(&self, producer: &FutureProducer<Log>) -> Result<(), SourceError> {
        if self.is_reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (producer, topic) = (producer.clone(), self.options.topic.clone());
        let doing = "looking for the brokers";
        let asking = move || producer.client().fetch_metadata(Some(&topic), REACHED_WITHIN).map(drop);
        let asked =
            tokio::task::spawn_blocking(asking).await.map_err(|error| SourceError::unavailable(doing, error))?;
        asked.map_err(|error| classify(&self.options, doing, error))?;
        self.is_reached.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn event_producer(&self) -> Result<FutureProducer<Log>, KafkaError> {
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((code, reason)) = kept.as_ref().and_then(|producer| producer.client().fatal_error()) {
            tracing::warn!(
                topic = self.options.topic,
                code = words(code),
                reason,
                "the producer of events failed for good; a new one takes its place"
            );
            *kept = None;
        }
        if let Some(producer) = kept.as_ref() {
            return Ok(producer.clone());
        }
        let producer = producer_with(&self.options, CONFIRMED_WITHIN, LINGER_MS)?;
        Ok(kept.insert(producer).clone())
    }

    fn send(&self, producer: &FutureProducer<Log>, event: &OutgoingEvent) -> Result<DeliveryFuture, EventError> {
        let wire = self.cloud_events.on_wire(event, PREFIX);
        let mut headers =
            wire.headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value }));
        if let Some(kind) = &wire.content_type {
            headers = headers.insert(Header { key: "content-type", value: Some(kind.as_bytes()) });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.options.topic).headers(headers).payload(&wire.payload);
        if let Some(key) = &event.ordering_key {
            record = record.key(key.as_bytes());
        }
        producer.send_result(record).map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(Code::QueueFull) => EventError::not_sent(said(&error)).uncounted(),
            _ => self.failed(error),
        })
    }

    fn failed(&self, error: KafkaError) -> EventError {
        let topic = &self.options.topic;
        match error.rdkafka_error_code() {
            Some(code) if is_too_large(&error) => SourceError::does_not_fit(
                format!("the event is too large for topic {topic:?}: {}", words(code)),
                "Raise max.message.bytes of the topic, or declare the destination with a smaller payload_bytes_max",
            )
            .into(),
            // Such as one without a key, where the topic is compacted.
            Some(code @ Code::InvalidRecord) => SourceError::does_not_fit(
                format!("topic {topic:?} does not take the event: {}", words(code)),
                "Give the event an ordering key, which becomes the record's key, or the topic cleanup.policy=delete",
            )
            .into(),
            Some(Code::TopicAuthorizationFailed) => SourceError::refused(
                format!("events may not be published to topic {topic:?}"),
                "Grant Write and Describe on the topic to this principal",
            )
            .into(),
            Some(_) | None => classify(&self.options, "publishing events", error).into(),
        }
    }
}

/// Whether an event, or the batch that it was in, is too large for its topic.
fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge)
    )
}
