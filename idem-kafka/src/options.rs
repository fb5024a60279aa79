//! Every setting with its default and limits. A setting that would break the guarantee is refused, with the reason.

use std::{fmt, sync::Arc, time::Duration};

use idem_core::ConfigError;
use rdkafka::{ClientConfig, config::RDKafkaLogLevel, error::KafkaError};

use crate::tokens::TokenSource;

/// Where a group without committed offsets starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// At the first record that the topic still has.
    Earliest,
    /// Behind the last record; earlier ones are never handled.
    Latest,
}

/// Which messages stay in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaneBy {
    /// Those of one record key within a partition; those without a key are ordered among themselves. A message that waits
    /// for its next attempt holds up its own key only.
    #[default]
    Key,
    /// Those of one partition. A message that waits for its next attempt holds up its whole partition.
    Partition,
}

/// The settings of a [`KafkaSource`](crate::KafkaSource).
#[derive(Clone)]
pub struct KafkaOptions {
    pub(crate) brokers: String,
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) reset: Option<Reset>,
    pub(crate) lane_by: LaneBy,
    pub(crate) commit_every: Duration,
    pub(crate) drain: Duration,
    pub(crate) stalled_after: Duration,
    pub(crate) tokens: Option<Arc<dyn TokenSource>>,
    settings: Vec<(String, String)>,
}

/// The name by which brokers know the client, where the program gives none. idem-service names group and host.
const CLIENT_ID: &str = "idem";

/// librdkafka's settings for which idem has other defaults. [`KafkaOptions::set`] changes them.
const DEFAULTS: [(&str, &str); 9] = [
    ("client.id", CLIENT_ID),
    // A member that joins or leaves interrupts only the partitions that move.
    ("partition.assignment.strategy", "cooperative-sticky"),
    ("socket.keepalive.enable", "true"),
    ("topic.metadata.refresh.interval.ms", "60000"),
    // Together with the buffer of the source these bound the memory: librdkafka's own would take some 100,000 messages
    // of each partition. The back-off must be as short as the queue, or it would run empty.
    ("queued.min.messages", "1000"),
    ("queued.max.messages.kbytes", "16384"),
    ("fetch.max.bytes", "1048576"),
    // Compressed data may be a thousand times as large here, and librdkafka unpacks all of a fetch at once.
    (PARTITION_BYTES, "262144"),
    ("fetch.queue.backoff.ms", "5"),
];

/// librdkafka's name for Kafka's `max.partition.fetch.bytes`, which it takes too.
const PARTITION_BYTES: &str = "fetch.message.max.bytes";

/// Settings that are decided, with the value they have and why [`KafkaOptions::set`] refuses them.
const DECIDED: [(&str, &str, &str); 10] = [
    ("enable.auto.commit", "false", "only what was handled may be committed: idem commits positions itself"),
    ("enable.auto.offset.store", "false", "only what was handled may be stored: idem keeps the positions itself"),
    ("auto.offset.reset", "error", "it would skip messages after an outage: use `reset`, which is for new groups only"),
    ("isolation.level", "read_committed", "records of aborted transactions must have no effect"),
    ("enable.partition.eof", "true", "idem needs the ends of partitions to know whether it is idle"),
    ("allow.auto.create.topics", "false", "idem never creates topics"),
    // librdkafka 2.12 stalls for minutes and loses commits under the new protocol; 2.15 fixes that.
    ("group.protocol", "classic", "the client library that is built in loses commits under the newer protocol"),
    ("statistics.interval.ms", "0", "nothing reads librdkafka's statistics: idem has metrics of its own"),
    ("auto.commit.enable", "", "only what was handled may be committed: idem commits positions itself"),
    ("group.remote.assignor", "", "it belongs to the newer group protocol, which is not used"),
];

/// Settings that the arguments of [`KafkaOptions::new`] hold.
const ARGUMENTS: [&str; 3] = ["bootstrap.servers", "metadata.broker.list", "group.id"];

/// The prefixes of the settings that say how to reach the brokers; producers get them too.
const CONNECTION: [&str; 13] = [
    "security.",
    "ssl.",
    "sasl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "client.",
    "socket.",
    "broker.",
    "connections.",
    "reconnect.",
    "message.max.bytes",
    "debug",
];

/// Settings that only producers know. The consumer does not get them, because librdkafka would warn of each.
const PRODUCER: [&str; 1] = ["compression."];

/// Producers' settings that idem decides, so that accepting them would mean ignoring them; the publisher of dead letters
/// waits for each confirmation. All of them stand in librdkafka's `CONFIGURATION.md`, marked with a P.
const OF_PRODUCERS: [&str; 27] = [
    "acks",
    "batch.num.messages",
    "batch.size",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "dr_cb",
    "dr_msg_cb",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "linger.ms",
    "message.send.max.retries",
    "message.timeout.ms",
    "msg_order_cmp",
    "partitioner",
    "partitioner_cb",
    "produce.offset.report",
    "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queuing.strategy",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "sticky.partitioning.linger.ms",
    "transaction.timeout.ms",
    "transactional.id",
];

/// A publisher's settings unless [`KafkaOptions::set`] says otherwise. Dead letters were consumed as they are, so they are
/// compressed as most records are, and the broker decides which are too large, rather than librdkafka by the size before
/// compression. A broker closes the connection of a request of more than 100 MiB (`socket.request.max.bytes`) without an
/// answer, so larger ones are refused here.
const PUBLISHER_DEFAULTS: [(&str, &str); 2] = [("compression.type", "lz4"), ("message.max.bytes", "100000000")];

const TOPIC_RULE: &str = "it must have 1 to 249 letters, digits, dots, hyphens or underscores";

impl KafkaOptions {
    /// One topic, consumed by one group. `brokers` is a list of `host:port`, separated by commas.
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            topic: topic.into(),
            group: group.into(),
            reset: None,
            lane_by: LaneBy::default(),
            commit_every: Duration::from_secs(5),
            drain: Duration::from_secs(25),
            stalled_after: Duration::from_secs(120),
            tokens: None,
            settings: Vec::new(),
        }
    }

    /// Where a group without committed offsets starts. Without it such a group is refused. A group that knows the
    /// topic goes on where it was, and takes partitions that were added later from their beginning.
    #[must_use]
    pub fn reset(mut self, reset: Reset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// Which messages stay in order. Defaults to those of one key.
    #[must_use]
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.lane_by = lane_by;
        self
    }

    /// How often changed positions are committed. Defaults to 5 s; from 10 ms to 5 minutes. Messages handled since are
    /// delivered again after a crash, as duplicates.
    #[must_use]
    pub fn commit_every(mut self, every: Duration) -> Self {
        self.commit_every = every;
        self
    }

    /// How long partitions that move to another member are kept while their messages are finished. Defaults to 25 s, a
    /// little more than the worker's own `drain`; at most half of `max.poll.interval.ms`, after which the group goes on
    /// without this member.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// How long records may be there without one being delivered before the consumer is replaced by a new one. Defaults to
    /// 2 minutes; from 1 s to 1 h.
    #[must_use]
    pub fn stalled_after(mut self, time: Duration) -> Self {
        self.stalled_after = time;
        self
    }

    /// Logs in by tokens, with SASL/OAUTHBEARER, also in a [`KafkaPublisher`](crate::KafkaPublisher). Sets
    /// `sasl.mechanisms=OAUTHBEARER` and `security.protocol=sasl_ssl`, unless [`set`](Self::set) sets them. Needs the feature
    /// `ssl`, which is on by default. How long the topic keeps records cannot be asked with a token, and is warned of.
    #[must_use]
    pub fn tokens(mut self, source: impl TokenSource) -> Self {
        self.tokens = Some(Arc::new(source));
        self
    }

    /// Sets any of librdkafka's consumer settings, as its `CONFIGURATION.md` lists them. Those that say how the brokers are
    /// reached, and `compression.*` and `message.max.bytes`, are also those of a [`KafkaPublisher`](crate::KafkaPublisher).
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let filled = |field, value: &String| {
            if value.trim().is_empty() {
                Err(ConfigError::new(field, format!("{value:?}"), "it must not be empty"))
            } else {
                Ok(())
            }
        };
        filled("brokers", &self.brokers)?;
        filled("group", &self.group)?;
        check_topic("topic", &self.topic)?;
        for (name, value) in &self.settings {
            check_setting(name, value)?;
        }
        self.consumer_config().create_native_config().map_err(refused_by_library)?;
        self.publisher_config().create_native_config().map_err(refused_by_library)?;
        let span = |field, value: Duration, min, max, rule| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::span(field, value, rule)) }
        };
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        span("commit_every", self.commit_every, ms(10), s(300), "it must be from 10 ms to 5 minutes")?;
        span("stalled_after", self.stalled_after, s(1), s(3600), "it must be from 1 s to 1 hour")?;
        let rule = "it must be from 1 ms to half of max.poll.interval.ms, or the group goes on without this member";
        span("drain", self.drain, ms(1), self.poll_interval_max() / 2, rule)
    }

    /// librdkafka's own default is 5 minutes.
    fn poll_interval_max(&self) -> Duration {
        let set = self.settings.iter().rev().find(|(name, _)| name == "max.poll.interval.ms");
        Duration::from_millis(set.and_then(|(_, value)| value.parse().ok()).unwrap_or(300_000))
    }

    pub(crate) fn consumer_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in DEFAULTS.into_iter().chain(self.login_defaults()) {
            config.set(name, value);
        }
        for (name, value) in &self.settings {
            if PRODUCER.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            if name == "max.partition.fetch.bytes" {
                // Two names of one setting; which of them wins is undefined.
                config.remove(PARTITION_BYTES);
            }
            config.set(name, value);
        }
        for (name, value, _) in DECIDED.into_iter().filter(|(_, value, _)| !value.is_empty()) {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers).set("group.id", &self.group);
        config.set_log_level(log_level());
        config
    }

    /// Whether the traffic to the brokers is unencrypted.
    pub(crate) fn is_in_plaintext(&self) -> bool {
        let config = self.connection_config();
        let protocol = config.get("security.protocol").unwrap_or("plaintext");
        !protocol.to_ascii_lowercase().ends_with("ssl")
    }

    /// The settings that a login by token needs and that are not set. Of the mechanism's two names only one may be there.
    fn login_defaults(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let is_set = |names: &[&str]| self.settings.iter().any(|(name, _)| names.contains(&&**name));
        let protocol =
            (self.tokens.is_some() && !is_set(&["security.protocol"])).then_some(("security.protocol", "sasl_ssl"));
        let mechanism = self.tokens.is_some() && !is_set(&["sasl.mechanism", "sasl.mechanisms"]);
        protocol.into_iter().chain(mechanism.then_some(("sasl.mechanisms", "OAUTHBEARER")))
    }

    /// That of a producer of dead letters, which has the connection's settings and its own.
    pub(crate) fn publisher_config(&self) -> ClientConfig {
        let mut config = self.connection_config();
        for (name, value) in PUBLISHER_DEFAULTS {
            if config.get(name).is_none() {
                config.set(name, value);
            }
        }
        for (name, value) in &self.settings {
            if PRODUCER.iter().any(|start| name.starts_with(start)) {
                config.set(name, value);
            }
        }
        config
    }

    /// The name by which brokers know the client: the last one that was set.
    pub(crate) fn client_id(&self) -> &str {
        let set = self.settings.iter().rev().find(|(name, _)| name == "client.id");
        set.map_or(CLIENT_ID, |(_, value)| value)
    }

    /// The settings with which producers and the administrative client reach the same brokers.
    pub(crate) fn connection_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("client.id", self.client_id()).set("socket.keepalive.enable", "true");
        for (name, value) in self.login_defaults() {
            config.set(name, value);
        }
        for (name, value) in &self.settings {
            if CONNECTION.iter().any(|start| name.starts_with(start)) {
                config.set(name, value);
            }
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set_log_level(log_level());
        config
    }
}

/// rdkafka would ask the `log` crate instead.
fn log_level() -> RDKafkaLogLevel {
    let debug = tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG);
    if debug { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values of settings may be passwords.
        let names: Vec<&str> = self.settings.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("reset", &self.reset)
            .field("lane_by", &self.lane_by)
            .field("commit_every", &self.commit_every)
            .field("drain", &self.drain)
            .field("stalled_after", &self.stalled_after)
            .field("settings", &names)
            .finish()
    }
}

/// A name that begins with `^` would be a pattern, and others no broker takes.
pub(crate) fn check_topic(field: &'static str, topic: &str) -> Result<(), ConfigError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=249).contains(&topic.len()) && topic.bytes().all(legal) && topic != "." && topic != ".." {
        Ok(())
    } else {
        Err(ConfigError::new(field, format!("{topic:?}"), TOPIC_RULE))
    }
}

fn check_setting(name: &str, value: &str) -> Result<(), ConfigError> {
    if ARGUMENTS.contains(&name) {
        return Err(ConfigError::new("set", name, "it is an argument of KafkaOptions::new"));
    }
    if OF_PRODUCERS.contains(&name) {
        let rule = "only producers know it, and the one of dead letters has its own: of a producer's settings those of \
                    compression can be set";
        return Err(ConfigError::new("set", name, rule));
    }
    match DECIDED.iter().find(|(decided, ..)| *decided == name) {
        Some((_, decided, rule)) if *decided != value => {
            Err(ConfigError::new("set", format!("{name} = {value:?}"), rule))
        }
        Some(_) | None => Ok(()),
    }
}

/// The value is left out: it may be a password.
pub(crate) fn refused_by_library(error: KafkaError) -> ConfigError {
    let rule =
        "librdkafka refuses it: its CONFIGURATION.md lists names and values, and some need a feature of this crate";
    if let KafkaError::ClientConfig(_, _, name, _) = error {
        return ConfigError::new("set", name, rule);
    }
    ConfigError::new("set", error.to_string(), rule)
}

#[cfg(test)]
mod tests;
