//! [`KafkaPublisher`]: dead letters go to a topic.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use idem_core::{ConfigError, DeadLetter, Publisher, SourceError, dead_letter};
use rdkafka::{
    error::KafkaError,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
    types::RDKafkaErrorCode as Code,
};

use crate::{
    config::{KafkaOptions, check_topic, refused_by_library},
    context::Log,
    error::{refusal, refused, unavailable},
};

/// How long a dead letter may wait for its confirmation before it counts as not published.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// A [`Publisher`] to a topic, which must exist.
///
/// A dead letter counts as published once all in-sync replicas have it. It carries the record's own key and payload, and
/// the headers of [`dead_letter::headers`].
pub struct KafkaPublisher {
    producer: FutureProducer<Log>,
    options: KafkaOptions,
}

impl KafkaPublisher {
    /// A publisher to `topic` on the brokers of `options`, reached with its security settings.
    ///
    /// # Errors
    /// [`ConfigError`] where the topic's name or a setting is refused.
    pub fn new(options: &KafkaOptions, topic: &str) -> Result<Self, ConfigError> {
        check_topic("dead_letter_topic", topic)?;
        let mut config = options.connection_config();
        config.set("enable.idempotence", "true").set("acks", "all").set("allow.auto.create.topics", "false");
        config.set("message.timeout.ms", CONFIRMED_WITHIN.as_millis().to_string());
        // An unknown topic may be one that was created just now, but not for longer than this.
        config.set("topic.metadata.propagation.max.ms", "5000");
        // Nobody waits for company in a batch of dead letters.
        config.set("linger.ms", "0");
        let producer = config.create_with_context(Log).map_err(refused_by_library)?;
        let mut options = options.clone();
        options.topic = topic.to_owned();
        Ok(Self { producer, options })
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
        match self.producer.send(record, CONFIRMED_WITHIN).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(self.classify(error)),
        }
    }
}

impl KafkaPublisher {
    fn classify(&self, error: KafkaError) -> SourceError {
        let topic = &self.options.topic;
        match error.rdkafka_error_code() {
            Some(Code::TopicAuthorizationFailed) => refused(
                format!("dead letters may not be published to topic {topic:?}"),
                "Grant Write and Describe on the topic to this principal",
            ),
            Some(code @ (Code::MessageSizeTooLarge | Code::InvalidMessageSize)) => refused(
                format!("a dead letter is too large for topic {topic:?}: {code}"),
                "Raise max.message.bytes of the topic, and message.max.bytes here, above those of the consumed topic",
            ),
            Some(code) => {
                refusal(&self.options, code).unwrap_or_else(|| unavailable("publishing a dead letter", error))
            }
            None => unavailable("publishing a dead letter", error),
        }
    }
}

fn headers(dead_letter: &DeadLetter) -> OwnedHeaders {
    let headers = dead_letter::headers(dead_letter);
    headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value }))
}
