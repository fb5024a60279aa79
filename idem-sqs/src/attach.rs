//! The facts that a start learns from the queue's attributes.

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName as Name;
use idem_core::{SourceError, source::Attached};

use crate::{
    error::{classify, is_denied},
    options::{VISIBILITY_MAX, queue_name},
    queue::{Attributes, Queue},
};

/// Below that a handful of deploys may take a message away for which nothing failed (F8).
const RECEIVES_MIN: u32 = 50;

/// Core gives a message back that it would hold for longer: an hour before SQS takes it.
const HOLD_MAX: Duration = VISIBILITY_MAX.saturating_sub(Duration::from_secs(3600));

pub(crate) async fn attach(queue: &Queue, needed: &[String]) -> Result<Attached, SourceError> {
    let doing = "asking for the queue's attributes";
    let mut attached = facts(&queue.name, &queue.attributes(doing).await?)?;
    if let Some(host) = queue.asked_in_plaintext() {
        attached.warn_of_plaintext([&*host], "use an endpoint with https:// (AWS_ENDPOINT_URL)");
    }
    for url in needed {
        match queue.attributes_of(url).await {
            Ok(_) => {}
            // The right to send to a queue does not include the right to read its attributes.
            Err(error) if is_denied(&error) => attached.warnings.push(format!(
                "whether queue {:?} exists is unknown: grant sqs:GetQueueAttributes on it",
                queue_name(url)
            )),
            Err(error) => return Err(classify(url, doing, error)),
        }
    }
    Ok(attached)
}

fn facts(name: &str, attributes: &Attributes) -> Result<Attached, SourceError> {
    let Some(arn) = attributes.get(&Name::QueueArn) else {
        return Err(SourceError::refused(
            format!("the server does not tell the ARN of queue {name:?}"),
            "Use one that speaks as SQS does",
        ));
    };
    // The ARN holds region, account and name, and does not change with the endpoint.
    let mut attached = Attached::new(format!("sqs:{arn}"));
    attached.hold_max = Some(HOLD_MAX);
    attached.message_bytes_max = message_bytes_max(attributes).map(|bytes| bytes as u64);
    let retention = attributes.get(&Name::MessageRetentionPeriod).and_then(|seconds| seconds.parse().ok());
    attached.redelivery_horizon = retention.map(Duration::from_secs);
    attached.delivery_limit = attributes.get(&Name::RedrivePolicy).and_then(|policy| receives_max(policy));
    if let Some(limit) = attached.delivery_limit.filter(|limit| *limit < RECEIVES_MIN) {
        attached.warnings.push(format!(
            "queue {name:?} moves a message away after {limit} receives, and deploys and crashes count: set its \
             maxReceiveCount to {RECEIVES_MIN} or more; idem counts the attempts itself and sets poison messages aside"
        ));
    }
    Ok(attached)
}

/// How large a message may be with its attributes.
pub(crate) fn message_bytes_max(attributes: &Attributes) -> Option<usize> {
    attributes.get(&Name::MaximumMessageSize)?.parse().ok()
}

/// `maxReceiveCount`, which is a number or, from some tools, a text.
fn receives_max(policy: &str) -> Option<u32> {
    let policy: serde_json::Value = serde_json::from_str(policy).ok()?;
    let limit = policy.get("maxReceiveCount")?;
    let limit = limit.as_u64().or_else(|| limit.as_str()?.parse().ok())?;
    Some(u32::try_from(limit).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn attributes(policy: &str) -> Attributes {
        let of = |name, value: &str| (name, value.to_owned());
        HashMap::from([
            of(Name::QueueArn, "arn:aws:sqs:eu-central-1:123456789012:orders"),
            of(Name::MessageRetentionPeriod, "345600"),
            of(Name::MaximumMessageSize, "262144"),
            of(Name::RedrivePolicy, policy),
        ])
    }

    #[test]
    fn f8_the_limit_of_receives_is_read_and_a_low_one_is_warned_of() {
        for (policy, limit, warned) in [
            (r#"{"deadLetterTargetArn":"a","maxReceiveCount":5}"#, Some(5), true),
            (r#"{"deadLetterTargetArn":"a","maxReceiveCount":"49"}"#, Some(49), true),
            (r#"{"deadLetterTargetArn":"a","maxReceiveCount":1000}"#, Some(1000), false),
            ("{}", None, false),
        ] {
            let attached = facts("orders", &attributes(policy)).unwrap();
            assert_eq!((attached.delivery_limit, attached.warnings.len()), (limit, usize::from(warned)), "{policy}");
        }
    }

    #[test]
    fn the_queue_is_bound_by_its_arn_and_its_retention_is_the_horizon() {
        let attached = facts("orders", &attributes("{}")).unwrap();
        assert_eq!(attached.bound_to, "sqs:arn:aws:sqs:eu-central-1:123456789012:orders");
        assert_eq!(attached.message_bytes_max, Some(262_144));
        assert_eq!(attached.redelivery_horizon, Some(Duration::from_secs(345_600)));
        assert!(attached.hold_max.unwrap() < VISIBILITY_MAX);
        assert!(matches!(facts("orders", &HashMap::new()), Err(SourceError::Refused { .. })));
    }
}
