//! What an error of the client library means: the broker refuses, or it cannot be reached now.

use idem_core::SourceError;
use rdkafka::{error::KafkaError, types::RDKafkaErrorCode as Code};

use crate::config::KafkaOptions;

pub(crate) fn refused(problem: impl Into<String>, cure: impl Into<String>) -> SourceError {
    SourceError::Refused { problem: problem.into(), cure: cure.into() }
}

pub(crate) fn unavailable(doing: &'static str, error: KafkaError) -> SourceError {
    SourceError::Unavailable { doing, source: Box::new(error) }
}

/// Refused where only a person can help, else unavailable.
pub(crate) fn classify(options: &KafkaOptions, doing: &'static str, error: KafkaError) -> SourceError {
    if let KafkaError::ClientCreation(reason) = error {
        // Nothing was asked of a broker yet: it is a file that cannot be read, or settings that contradict each other.
        return refused(
            format!("librdkafka cannot work with its settings: {reason}"),
            "Correct the setting, or make the file readable for this process",
        );
    }
    let Some(code) = error.rdkafka_error_code() else { return unavailable(doing, error) };
    refusal(options, code).unwrap_or_else(|| unavailable(doing, error))
}

/// The codes by which a broker says that it will not, however often it is asked.
#[allow(clippy::wildcard_enum_match_arm, reason = "the codes are the client library's, which adds to them")]
pub(crate) fn refusal(options: &KafkaOptions, code: Code) -> Option<SourceError> {
    let KafkaOptions { topic, group, .. } = options;
    if matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownTopicId | Code::InvalidTopic) {
        return Some(unknown_topic(topic));
    }
    match code {
        Code::TopicAuthorizationFailed => Some(refused(
            format!("topic {topic:?} may not be used: {code}"),
            "Grant Read and Describe on the topic to this principal",
        )),
        Code::GroupAuthorizationFailed => Some(refused(
            format!("group {group:?} may not be used: {code}"),
            "Grant Read on the group to this principal",
        )),
        Code::ClusterAuthorizationFailed => Some(refused(
            format!("the cluster may not be used: {code}"),
            "Grant the right that the broker's authorizer log names to this principal",
        )),
        Code::FencedInstanceId => Some(refused(
            format!("another member of group {group:?} has the same group.instance.id"),
            "Give each worker a group.instance.id of its own, or none",
        )),
        _ if is_authentication(code) => Some(unauthenticated(&code.to_string())),
        _ => None,
    }
}

pub(crate) fn unknown_topic(topic: &str) -> SourceError {
    refused(format!("topic {topic:?} does not exist"), "Create it, or correct the name; idem creates no topics")
}

/// The codes under which librdkafka reports that it was not let in. It then goes on trying.
pub(crate) fn is_authentication(code: Code) -> bool {
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL)
}

pub(crate) fn unauthenticated(reason: &str) -> SourceError {
    refused(
        format!("the brokers do not let this client in: {reason}"),
        "Check security.protocol and the sasl. and ssl. settings",
    )
}
