//! The questions of a start to the brokers: whether the topic is there, where the group is in it, and how long it keeps records.

use std::{collections::BTreeMap, time::Duration};

use idem_core::{SourceError, source::Attached};
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer},
    error::{KafkaError, KafkaResult},
    metadata::Metadata,
    topic_partition_list::TopicPartitionListElem,
    types::{RDKafkaErrorCode as Code, RDKafkaRespErr},
};
use tokio::{runtime::Handle, time::Instant};

use crate::{
    context::Context,
    error::{classify, refusal, said, unauthenticated, unavailable, unavailable_because, words},
    options::{KafkaOptions, Reset},
};

/// How long one question to a broker may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long the brokers may take to answer at all: connections, TLS and a login are in it.
const REACHED: Duration = Duration::from_secs(10);

/// How long each request within it may take. Reports are read after each.
const ASKED: Duration = Duration::from_secs(1);
const LISTENED: Duration = Duration::from_millis(100);
/// How long a topic may be unknown to the broker that is asked, once another has made it.
const KNOWN: Duration = Duration::from_secs(3);

/// How often the start of a group is tried again when it was not taken.
const ROUNDS: usize = 5;

/// The offset at which each partition starts.
pub(crate) type Starts = BTreeMap<i32, i64>;

/// What was learned of the topic, and the starts that are left for a member of the group to commit.
pub(crate) fn attach(
    consumer: &BaseConsumer<Context>,
    options: &KafkaOptions,
    runtime: &Handle,
) -> Result<(Attached, Starts), SourceError> {
    let partitions = partitions(consumer, options)?;
    let cluster = consumer.client().fetch_cluster_id(ANSWER).ok_or_else(|| {
        unavailable("asking for the cluster's id", &KafkaError::MetadataFetch(Code::OperationTimedOut))
    })?;
    let starts = start(consumer, options, &partitions)?;
    let mut attached = Attached::new(format!("kafka:{cluster}/{}/{}", options.topic, options.group));
    attached.server = options.brokers.split(',').next().map(|server| without_protocol(server).to_owned());
    attached.client_id = Some(options.client_id().to_owned());
    warn_of_plaintext(&mut attached, options);
    match runtime.block_on(topic_config(options)) {
        Ok(config) => {
            attached.message_bytes_max = config.message_bytes_max;
            match config.horizon {
                Ok(horizon) => attached.redelivery_horizon = Some(horizon),
                Err(warning) => attached.warnings.push(warning),
            }
        }
        Err(warning) => attached.warnings.push(warning),
    }
    Ok((attached, starts))
}

/// A broker may be named with its protocol, which the client library compares with the setting.
fn without_protocol(broker: &str) -> &str {
    let broker = broker.trim();
    broker.split_once("://").map_or(broker, |(_, host)| host)
}

fn warn_of_plaintext(attached: &mut Attached, options: &KafkaOptions) {
    if !options.is_in_plaintext() {
        return;
    }
    let hosts = options.brokers.split(',').map(without_protocol);
    attached.warn_of_plaintext(hosts, "set security.protocol=ssl or sasl_ssl");
}

/// The topic's partitions. Waits for brokers that cannot be reached yet, but not for one that rejects our login.
fn partitions(consumer: &BaseConsumer<Context>, options: &KafkaOptions) -> Result<Vec<i32>, SourceError> {
    let until = Instant::now() + REACHED;
    if options.tokens.is_some() {
        // The client library asks for its first token from within a poll, and connects nowhere before.
        drop(consumer.poll(LISTENED));
    }
    let known = Instant::now() + KNOWN;
    let metadata = loop {
        match consumer.fetch_metadata(Some(&options.topic), ASKED) {
            Ok(metadata) if Instant::now() < known && is_unknown(&metadata) => drop(consumer.poll(LISTENED)),
            Ok(metadata) => break metadata,
            Err(error) => {
                // There is no subscription, so this only serves reports. A poll that does not wait ends after each log line,
                // and the reason for a rejected login follows several of them.
                let listened = Instant::now() + LISTENED;
                while consumer.context().not_let_in().is_none() && Instant::now() < listened {
                    drop(consumer.poll(LISTENED));
                }
                if let Some(reason) = consumer.context().not_let_in() {
                    return Err(unauthenticated(&reason));
                }
                if let Some(problem) = consumer.context().no_token() {
                    return Err(unavailable_because("asking for a token", problem));
                }
                if Instant::now() >= until
                    || error.rdkafka_error_code().is_some_and(|code| refusal(options, code).is_some())
                {
                    return Err(classify(options, "asking for the topic", error));
                }
            }
        }
    };
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == options.topic) else {
        return Err(unavailable("asking for the topic", &KafkaError::MetadataFetch(Code::UnknownTopic)));
    };
    if let Some(code) = topic.error() {
        return Err(classify(options, "asking for the topic", KafkaError::MetadataFetch(code.into())));
    }
    Ok(topic.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect())
}

fn is_unknown(metadata: &Metadata) -> bool {
    metadata.topics().iter().any(|topic| topic.error() == Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART))
}

pub(crate) fn list(topic: &str, partitions: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

/// Partitions with their offsets.
pub(crate) fn list_of(topic: &str, offsets: &Starts) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    Ok(list)
}

/// The offset of an answer, where there is one.
pub(crate) fn known(element: &TopicPartitionListElem<'_>) -> Option<i64> {
    if let Offset::Offset(offset) = element.offset() { Some(offset) } else { None }
}

/// The offsets that the group has committed, where it has.
pub(crate) fn committed(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partitions: &[i32],
    patience: Duration,
) -> KafkaResult<TopicPartitionList> {
    let committed = consumer.committed_offsets(list(topic, partitions), patience)?;
    for element in committed.elements() {
        element.error()?;
    }
    Ok(committed)
}

/// The first offsets of these partitions, or those behind their last records. All leaders are asked at once: one after the
/// other, hundreds of partitions would take longer than a start may.
pub(crate) fn ends(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partitions: &[i32],
    which: Reset,
) -> KafkaResult<BTreeMap<i32, i64>> {
    ends_within(consumer, topic, partitions, which, ANSWER)
}

/// The same, waiting this long at most.
pub(crate) fn ends_within(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partitions: &[i32],
    which: Reset,
    waits: Duration,
) -> KafkaResult<BTreeMap<i32, i64>> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut asked = list(topic, partitions);
    // The protocol asks for these two as if they were times.
    asked.set_all_offsets(match which {
        Reset::Earliest => Offset::Beginning,
        Reset::Latest => Offset::End,
    })?;
    let answers = consumer.offsets_for_times(asked, waits)?;
    let end = |element: &TopicPartitionListElem<'_>| {
        element.error()?;
        let offset = known(element).ok_or(KafkaError::OffsetFetch(Code::NoOffset))?;
        Ok((element.partition(), offset))
    };
    answers.elements().iter().map(end).collect()
}

/// A group without committed offsets gets its start committed for every partition before any member joins: all members start
/// from the same place, whichever joins first and whenever the first crash is.
///
/// A group that has members takes positions from members alone, and may have some on other topics. Its starts in this topic are returned,
/// and the member that a partition is given to commits them before it begins (B24).
fn start(consumer: &BaseConsumer<Context>, options: &KafkaOptions, partitions: &[i32]) -> Result<Starts, SourceError> {
    let mut rounds = 0;
    loop {
        let doing = "asking for the group's positions";
        let theirs = committed(consumer, &options.topic, partitions, ANSWER);
        let theirs = theirs.map_err(|error| classify(options, doing, error))?;
        if theirs.elements().iter().any(|element| known(element).is_some()) {
            return Ok(Starts::new());
        }
        let Some(reset) = options.reset else { return Err(unknown_group(options)) };
        let doing = "asking for the ends of the topic";
        let starts = ends(consumer, &options.topic, partitions, reset);
        let starts = starts.map_err(|error| classify(options, doing, error))?;
        let list = list_of(&options.topic, &starts).map_err(|error| unavailable(doing, &error))?;
        match consumer.commit(&list, CommitMode::Sync) {
            Ok(()) => return Ok(Starts::new()),
            Err(error) if error.rdkafka_error_code().is_some_and(has_members) => return Ok(starts),
            Err(error) if rounds < ROUNDS => {
                tracing::debug!(error = said(&error), "the group's start was not taken; asking again")
            }
            Err(error) => return Err(classify(options, "committing the group's start", error)),
        }
        rounds += 1;
    }
}

/// The codes by which a group says that only its members may commit.
fn has_members(code: Code) -> bool {
    matches!(code, Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress)
}

fn unknown_group(options: &KafkaOptions) -> SourceError {
    let KafkaOptions { topic, group, .. } = options;
    SourceError::refused(
        format!("group {group:?} has no position in topic {topic:?}"),
        "Correct the names, or say where a new group starts: reset earliest handles what the topic still has, reset \
         latest only what is produced from now on",
    )
}

/// The topic's own settings.
struct TopicConfig {
    /// How long it keeps records, or a warning that says why there is no bound.
    horizon: Result<Duration, String>,
    /// The largest payload that it takes, where nothing is compressed.
    message_bytes_max: Option<u64>,
}

/// The bytes of a batch of one record beside the record.
const BATCH_BYTES: u64 = 61;

/// Asks for the topic's settings; answers with a warning where they are not known.
async fn topic_config(options: &KafkaOptions) -> Result<TopicConfig, String> {
    let topic = &options.topic;
    let unknown = |error: &str| {
        format!(
            "how long topic {topic:?} keeps records is not known ({error}): grant DescribeConfigs on it, or see to it \
             that the retention of this consumer's records is longer"
        )
    };
    if options.tokens.is_some() {
        // rdkafka never serves the queue in which an administrative client asks for its token.
        return Err(unknown("a client that logs in by token cannot ask for it"));
    }
    let admin: AdminClient<DefaultClientContext> =
        options.connection_config().create().map_err(|e| unknown(&said(&e)))?;
    let resource = ResourceSpecifier::Topic(topic);
    let answers = admin.describe_configs([&resource], &AdminOptions::new().request_timeout(Some(ANSWER))).await;
    let mut answers = answers.map_err(|error| unknown(&said(&error)))?;
    let config = answers.pop().ok_or_else(|| unknown("no answer"))?.map_err(|code| unknown(&words(code)))?;
    let value = |name| config.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
    let largest: Option<u64> = value("max.message.bytes").parse().ok();
    Ok(TopicConfig {
        horizon: horizon(topic, &value("cleanup.policy"), &value("retention.ms"), &value("segment.ms")),
        message_bytes_max: largest.map(|bytes| bytes.saturating_sub(BATCH_BYTES)),
    })
}

/// How often a broker looks for segments that are to go, by default; the setting is its own and not the topic's.
const LOOKS_EVERY: Duration = Duration::from_secs(300);

/// How long the topic may keep a record, or a warning that says why that has no bound. Kafka removes whole segments, once
/// their last record has expired, so the first one of a segment stays for as long as it was written to, too.
fn horizon(topic: &str, policy: &str, retention: &str, segment: &str) -> Result<Duration, String> {
    if policy != "delete" {
        return Err(format!(
            "topic {topic:?} has cleanup.policy={policy}, so a record may be delivered again at any time: after a rewind \
             the effects of keys whose records have expired happen again; keep them for ever, or never rewind further than \
             they are kept"
        ));
    }
    // -1 is unlimited.
    let kept = retention.parse().map(Duration::from_millis);
    let segment = segment.parse().map_or(SEGMENT, Duration::from_millis);
    kept.map(|kept| kept.saturating_add(segment).saturating_add(LOOKS_EVERY)).map_err(|_| {
        format!(
            "topic {topic:?} keeps records without a limit of time, so a record may be delivered again at any time: keep this \
             consumer's records for ever, or never rewind further than they are kept"
        )
    })
}

/// How long a segment is written to where the broker does not say it: Kafka's own default.
const SEGMENT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether the broker says that there is no such topic any more.
pub(crate) fn is_gone(consumer: &BaseConsumer<Context>, topic: &str) -> bool {
    let gone = |code| code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    consumer
        .fetch_metadata(Some(topic), ANSWER)
        .is_ok_and(|metadata| metadata.topics().iter().all(|topic| topic.error().is_some_and(gone)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S9: messages, and with SASL the password too.
    #[test]
    fn s9_plaintext_to_another_machine_is_warned_of() {
        let far = "broker:9092";
        for (protocol, brokers, is_told) in [
            (None, far, true),
            (Some("plaintext"), "localhost:9092, broker:9092", true),
            (Some("SASL_PLAINTEXT"), far, true),
            (Some("plaintext"), "PLAINTEXT://broker:9092", true),
            (Some("sasl_plaintext"), "localhost:9092,127.0.0.1:9093,[::1]:9094", false),
            (Some("plaintext"), "PLAINTEXT://localhost:9092", false),
            (Some("ssl"), far, false),
            (Some("SASL_SSL"), far, false),
        ] {
            let options = KafkaOptions::new(brokers, "purchases", "ledger");
            let options =
                protocol.into_iter().fold(options, |options, protocol| options.set("security.protocol", protocol));
            let mut attached = Attached::new("q");
            warn_of_plaintext(&mut attached, &options);
            let told =
                "the connection to the broker at broker:9092 is in plaintext: set security.protocol=ssl or sasl_ssl";
            assert_eq!(attached.warnings, Vec::from_iter(is_told.then_some(told)), "{protocol:?} {brokers}");
        }
    }

    /// Kafka's defaults, and the pair that the guide gives for the default retention of 7 days.
    #[test]
    fn e24_a_record_stays_as_long_as_its_segment() {
        let week = "604800000";
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        assert_eq!(horizon("t", "delete", week, week), Ok(days(14) + LOOKS_EVERY));
        assert_eq!(horizon("t", "delete", week, ""), Ok(days(14) + LOOKS_EVERY));
        assert_eq!(horizon("t", "delete", "1000", "2000"), Ok(Duration::from_secs(3) + LOOKS_EVERY));
        assert_eq!(horizon("t", "delete", &u64::MAX.to_string(), week).map(|_| ()), Ok(()));
        assert!(horizon("t", "delete", "-1", week).is_err() && horizon("t", "compact", week, week).is_err());
        assert!(horizon("t", "delete", "518400000", "43200000").is_ok_and(|horizon| horizon < days(7)));
    }
}
