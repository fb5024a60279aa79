//! The meaning of the client library's errors: the broker refuses, or it cannot be reached now.

use idem_core::SourceError;
use rdkafka::{error::KafkaError, types::RDKafkaErrorCode as Code};

use crate::options::KafkaOptions;

/// The client library's error in words for a person.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Said(String);

/// The library's words for an error. rdkafka prints a code as the name of its Rust variant with the words behind it in
/// parentheses, and once more for each error around it.
pub(crate) fn said(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| error.to_string(), words)
}

/// The words of one code, such as `Broker: Not coordinator`.
pub(crate) fn words(code: Code) -> String {
    let text = code.to_string();
    let inner = text.split_once(" (").and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or_else(|| text.clone(), str::to_owned)
}

pub(crate) fn unavailable(doing: &'static str, error: &KafkaError) -> SourceError {
    unavailable_because(doing, said(error))
}

/// Unavailable, with a text that says more than the client library's code does.
pub(crate) fn unavailable_because(doing: &'static str, text: String) -> SourceError {
    SourceError::Unavailable { doing, source: Box::new(Said(text)) }
}

/// No broker answers: which ones were asked belongs to that, because it is the first thing to look at.
pub(crate) fn unreachable(options: &KafkaOptions, doing: &'static str, error: &KafkaError) -> SourceError {
    unavailable_because(doing, format!("none of the brokers {} answers: {}", options.brokers, said(error)))
}

/// Refused where only a person can help, else unavailable.
pub(crate) fn classify(options: &KafkaOptions, doing: &'static str, error: KafkaError) -> SourceError {
    if let KafkaError::ClientCreation(reason) = error {
        // Nothing was asked of a broker yet: it is a file that cannot be read, or settings that contradict each other.
        return SourceError::refused(
            format!("librdkafka cannot work with its settings: {reason}"),
            "Correct the setting, or make the file readable for this process",
        );
    }
    let Some(code) = error.rdkafka_error_code() else { return unavailable(doing, &error) };
    let is_unreachable = matches!(code, Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve);
    refusal(options, code).unwrap_or_else(|| {
        if is_unreachable { unreachable(options, doing, &error) } else { unavailable(doing, &error) }
    })
}

/// The codes by which a broker says that it will not, however often it is asked.
#[allow(clippy::wildcard_enum_match_arm, reason = "the codes are the client library's, which adds to them")]
pub(crate) fn refusal(options: &KafkaOptions, code: Code) -> Option<SourceError> {
    let KafkaOptions { topic, group, .. } = options;
    let words = words(code);
    if matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownTopicId | Code::InvalidTopic) {
        return Some(unknown_topic(topic));
    }
    match code {
        Code::TopicAuthorizationFailed => Some(SourceError::refused(
            format!("topic {topic:?} may not be used: {words}"),
            "Grant Read and Describe on the topic to this principal",
        )),
        Code::GroupAuthorizationFailed => Some(SourceError::refused(
            format!("group {group:?} may not be used: {words}"),
            "Grant Read on the group to this principal",
        )),
        Code::ClusterAuthorizationFailed => Some(SourceError::refused(
            format!("the cluster may not be used: {words}"),
            "Grant the right that the broker's authorizer log names to this principal",
        )),
        Code::FencedInstanceId => Some(SourceError::refused(
            format!("another member of group {group:?} has the same group.instance.id"),
            "Give each worker a group.instance.id of its own, or none",
        )),
        _ if is_authentication(code) => Some(unauthenticated(&words)),
        _ => None,
    }
}

/// The meaning of an error that the client library repeats while it goes on trying, and the cure; `None` for
/// one that mostly passes.
#[allow(clippy::wildcard_enum_match_arm, reason = "the codes are the client library's, which adds to them")]
pub(crate) fn cure(options: &KafkaOptions, code: Code) -> Option<String> {
    let KafkaOptions { topic, group, .. } = options;
    match code {
        Code::NotImplemented | Code::BadCompression | Code::UnsupportedCompressionType => Some(format!(
            "records of topic {topic:?} cannot be unpacked, and their partition stands still: if they are compressed with \
             zstd, build this program with the feature zstd of idem-kafka; if they are damaged, move group {group:?} past \
             them with kafka-consumer-groups --reset-offsets"
        )),
        Code::InconsistentGroupProtocol => Some(format!(
            "group {group:?} has members that share no assignment strategy with this one, which is therefore not let in: set \
             partition.assignment.strategy to theirs (such as --kafka partition.assignment.strategy=range,roundrobin), or \
             stop them"
        )),
        Code::InvalidSessionTimeout => Some(
            "session.timeout.ms is not within group.min.session.timeout.ms and group.max.session.timeout.ms of the brokers: \
             set it so"
                .to_owned(),
        ),
        Code::GroupMaxSizeReached => Some(format!(
            "group {group:?} has as many members as the brokers allow: raise their group.max.size, or start fewer workers"
        )),
        _ => None,
    }
}

pub(crate) fn unknown_topic(topic: &str) -> SourceError {
    SourceError::refused(
        format!("topic {topic:?} does not exist"),
        "Create it, or correct the name; idem creates no topics",
    )
}

/// The codes under which librdkafka reports that it was not let in. It then goes on trying.
pub(crate) fn is_authentication(code: Code) -> bool {
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL)
}

pub(crate) fn unauthenticated(reason: &str) -> SourceError {
    SourceError::refused(
        format!("the brokers do not let this client in: {reason}"),
        "Check security.protocol and the sasl. and ssl. settings",
    )
}
