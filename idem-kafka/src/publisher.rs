//! [`KafkaPublisher`]: dead letters and events go to a topic.

use std::{
    fmt,
    sync::{Mutex, PoisonError, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    ConfigError, SourceError,
    dead_letter::{self, DeadLetter, Publisher},
    outbox::CloudEvents,
};
use rdkafka::{
    error::KafkaError,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer},
    types::RDKafkaErrorCode as Code,
};

use tokio::runtime::Handle;

use crate::{
    context::Log,
    error::{refusal, unavailable, words},
    options::{KafkaOptions, check_topic, refused_by_library},
    tokens::Login,
};

/// How long a dead letter may wait for its confirmation before it counts as not published.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// The header that says when the record was taken in first, in milliseconds since 1970, as Kafka counts. A dead letter has
/// a time-stamp of its own: with the first one it could be beyond the retention of the topic for dead letters at once.
const TIMESTAMP: &str = "idem-timestamp";

/// A [`Publisher`] to a topic, which must exist.
///
/// A dead letter counts as published once all in-sync replicas have it. It carries the record's own key, payload and
/// headers, why it was set aside (the headers of [`dead_letter::headers`]), and as `idem-timestamp` when the record was
/// taken in. It is compressed with lz4 unless the options say otherwise.
///
/// A dead letter that is too large for the topic, or that the topic refuses for another reason of its own, is
/// [`SourceError::DoesNotFit`].
///
/// An [`EventPublisher`] too: an event's ordering key is the record's key, and its attributes as a
/// [CloudEvent](Self::cloud_events) are headers that begin with `ce_`. Events go by a producer of their own, which gives one up
/// after 7 s, so that a relay can send it again.
///
/// [`EventPublisher`]: idem_core::outbox::EventPublisher
pub struct KafkaPublisher {
    producer: Mutex<FutureProducer<Log>>,
    /// Made with the first event, unless it was made for a relay.
    pub(crate) events: Mutex<Option<FutureProducer<Log>>>,
    /// Whether the last events that were handed to the library were answered by a broker.
    pub(crate) is_reached: AtomicBool,
    pub(crate) cloud_events: CloudEvents,
    pub(crate) options: KafkaOptions,
}

impl KafkaPublisher {
    /// A publisher to `topic` on the brokers of `options`, reached with its security settings. With
    /// [`tokens`](KafkaOptions::tokens) it is made within a Tokio runtime, on which they are asked for.
    ///
    /// # Errors
    /// [`ConfigError`] where the topic's name or a setting is refused.
    pub fn new(options: &KafkaOptions, topic: &str) -> Result<Self, ConfigError> {
        check_topic("dead_letter_topic", topic)?;
        let mut options = options.clone();
        options.topic = topic.to_owned();
        let producer = Mutex::new(producer(&options).map_err(refused_by_library)?);
        let (events, is_reached) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Self { producer, events, is_reached, cloud_events: CloudEvents::binary(), options })
    }

    /// Makes the producer of events now rather than with the first one, on which it would be waited for: it connects and gets its
    /// id from the broker, half a second. For a relay, which may stand by for hours and must then go on soon.
    ///
    /// # Errors
    /// [`ConfigError`] where the library refuses a setting.
    pub fn for_events(self) -> Result<Self, ConfigError> {
        self.event_producer().map(drop).map_err(refused_by_library)?;
        Ok(self)
    }

    /// Sets how events are written. Defaults to [`CloudEvents::binary`].
    #[must_use]
    pub fn cloud_events(self, cloud_events: CloudEvents) -> Self {
        Self { cloud_events, ..self }
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher").field("topic", &self.options.topic).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let message = &dead_letter.message;
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.options.topic).headers(headers(dead_letter));
        if let Some(key) = message.record_key() {
            record = record.key(key);
        }
        if let Some(payload) = message.payload() {
            record = record.payload(payload);
        }
        let producer = self.producer()?;
        match producer.send(record, CONFIRMED_WITHIN).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(self.classify(error)),
        }
    }
}

/// A producer with idempotence, so that its own retries store nothing twice.
fn producer(options: &KafkaOptions) -> Result<FutureProducer<Log>, KafkaError> {
    // A dead letter does not wait for company in a batch.
    producer_with(options, CONFIRMED_WITHIN, "0")
}

pub(crate) fn producer_with(
    options: &KafkaOptions,
    confirmed_within: Duration,
    linger_ms: &str,
) -> Result<FutureProducer<Log>, KafkaError> {
    let mut config = options.publisher_config();
    config.set("enable.idempotence", "true").set("acks", "all").set("allow.auto.create.topics", "false");
    config.set("message.timeout.ms", confirmed_within.as_millis().to_string());
    // An unknown topic may be one that was created just now, but not for longer than this.
    config.set("topic.metadata.propagation.max.ms", "5000");
    config.set("linger.ms", linger_ms);
    // As Java's clients do: the library's own puts a key elsewhere, and two events of it into two partitions (O80).
    config.set("partitioner", "murmur2_random");
    // Without a runtime no token can come, and each try to publish reports that.
    let login = options.tokens.clone().zip(Handle::try_current().ok());
    config.create_with_context(Log { login: login.map(|(source, runtime)| Login::new(source, runtime)) })
}

impl KafkaPublisher {
    /// The producer, or a new one: one that has met a fatal error refuses everything from then on.
    fn producer(&self) -> Result<FutureProducer<Log>, SourceError> {
        let mut kept = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((code, reason)) = kept.client().fatal_error() {
            tracing::warn!(
                topic = self.options.topic,
                code = words(code),
                reason,
                "the producer of dead letters failed for good; a new one takes its place"
            );
            let doing = "making a producer of dead letters";
            *kept = producer(&self.options).map_err(|error| unavailable(doing, &error))?;
        }
        Ok(kept.clone())
    }

    fn classify(&self, error: KafkaError) -> SourceError {
        let topic = &self.options.topic;
        match error.rdkafka_error_code() {
            Some(Code::TopicAuthorizationFailed) => SourceError::refused(
                format!("dead letters may not be published to topic {topic:?}"),
                "Grant Write and Describe on the topic to this principal",
            ),
            Some(code @ (Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge)) => {
                SourceError::DoesNotFit {
                    problem: format!("a dead letter is too large for topic {topic:?}: {}", words(code)),
                    cure:
                        "Raise max.message.bytes of the topic, and message.max.bytes here, above those of the consumed \
                           topic"
                            .to_owned(),
                }
            }
            // Such as one without a key, where the topic is compacted.
            Some(code @ Code::InvalidRecord) => SourceError::DoesNotFit {
                problem: format!("topic {topic:?} does not take a dead letter: {}", words(code)),
                cure: "Give dead letters a topic with cleanup.policy=delete".to_owned(),
            },
            Some(code) => {
                refusal(&self.options, code).unwrap_or_else(|| unavailable("publishing a dead letter", &error))
            }
            None => unavailable("publishing a dead letter", &error),
        }
    }
}

fn headers(dead_letter: &DeadLetter) -> OwnedHeaders {
    let headers = dead_letter::headers(dead_letter);
    let theirs =
        headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value }));
    // One that comes by for the second time has it already.
    let millis = dead_letter.message.sent_at().filter(|_| headers.all(TIMESTAMP).next().is_none()).and_then(|time| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_millis().to_string())
    });
    match millis {
        Some(millis) => theirs.insert(Header { key: TIMESTAMP, value: Some(&millis) }),
        None => theirs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// O46: a relay that takes a destination over does not wait for a producer, which takes half a second to be of use.
    #[test]
    fn o46_a_relays_producer_is_there_before_its_first_event() {
        let options = KafkaOptions::new("localhost:1", "purchases", "ledger");
        let has_one = |publisher: &KafkaPublisher| publisher.events.lock().unwrap().is_some();
        let of_dead_letters = KafkaPublisher::new(&options, "payments").unwrap();
        assert!(!has_one(&of_dead_letters), "one of dead letters alone needs none");
        assert!(has_one(&of_dead_letters.for_events().unwrap()));
    }
}
