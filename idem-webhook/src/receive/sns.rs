//! Subscriptions of SNS.

mod certificates;
mod envelope;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use idem_core::{Message, Store, consumer::DedupConsumerBuilder, key::MessageId};

use self::{
    certificates::Certificates,
    envelope::{Envelope, Kind},
};
use super::{
    clock::{is_near, of_iso_8601},
    fetch::Fetch,
    sender::{NotAdmitted, Opened, Sender},
    standard_webhooks::one,
};

/// SNS waits for 15 s.
const DEADLINE: Duration = Duration::from_secs(12);

/// SNS signs a message once, when it is published, and tries to deliver it for an hour at most.
const TRIED_FOR: Duration = Duration::from_secs(65 * 60);

/// How far the clock of SNS may be ahead of ours.
const AHEAD: Duration = Duration::from_secs(5 * 60);

/// HTTPS subscriptions to topics of SNS, without raw message delivery, which is not signed.
///
/// Signatures are of version 2 (SHA-256). Version 1, the default of topics, is refused, because it uses SHA-1, for which collisions can
/// be made: set the topic's attribute `SignatureVersion` to 2. The certificate comes from `https://sns.<region>.amazonaws.com`, the region being
/// that of the topic, and from nowhere else. Subscriptions to the topics that are named here are confirmed, at the same host;
/// messages of other topics are refused, because Amazon signs the messages of everyone's topics.
///
/// The key is `MessageId`, which is the same on every try; a producer that publishes again gets another one. The payload is `Message`. Attributes
/// and the subject are not handed over: SNS does not sign attributes.
///
/// Source: <https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html>.
pub struct Sns {
    topics: Vec<String>,
    certificates: Certificates,
    fetch: Box<dyn Fetch>,
}

impl Sns {
    /// Accepts messages of the topics with these ARNs. With none, every message is refused.
    pub fn new(topics: impl IntoIterator<Item = impl Into<String>>, fetch: impl Fetch) -> Self {
        let topics = topics.into_iter().map(Into::into).collect();
        Self { topics, certificates: Certificates::default(), fetch: Box::new(fetch) }
    }

    /// Makes `MessageId` the consumer's key.
    #[must_use]
    pub fn identify<S: Store>(consumer: DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> {
        consumer.key_source(MessageId)
    }

    fn is_ours(&self, topic: &str) -> bool {
        self.topics.iter().any(|ours| ours == topic)
    }

    async fn prove(&self, envelope: &Envelope) -> Result<(), NotAdmitted> {
        let refused = |why| Err(NotAdmitted::Unauthenticated(why));
        if !self.is_ours(&envelope.topic_arn) {
            return refused("the topic is none of ours");
        }
        if envelope.signature_version != "2" {
            return refused("signatures of version 2 are taken: set the topic's SignatureVersion to 2");
        }
        if !of_iso_8601(&envelope.timestamp).is_some_and(|at| is_near(at, TRIED_FOR, AHEAD)) {
            return refused("the message is older than SNS tries, or has no time");
        }
        if !is_certificate_of(&envelope.topic_arn, &envelope.signing_cert_url) {
            return refused("the certificate is not at the host of the topic's region");
        }
        let certificate = self.certificates.get(&envelope.signing_cert_url, &*self.fetch).await;
        let certificate = certificate.map_err(NotAdmitted::Unavailable)?;
        match envelope.is_signed_by(&certificate) {
            true => Ok(()),
            false => refused("the signature is wrong"),
        }
    }

    /// Confirms a subscription to one of our topics.
    async fn confirm(&self, envelope: &Envelope) -> Result<Opened, NotAdmitted> {
        let url = envelope.subscribe_url.as_deref().filter(|url| path_at_host(&envelope.topic_arn, url).is_some());
        let Some(url) = url else {
            return Err(NotAdmitted::Unauthenticated("the confirmation is not at the host of the topic's region"));
        };
        self.fetch.get(url).await.map_err(NotAdmitted::Unavailable)?;
        tracing::info!(topic = envelope.topic_arn, "a subscription was confirmed");
        Ok(Opened::Settled)
    }
}

/// The host of a topic's region.
fn host(topic: &str) -> Option<String> {
    let mut parts = topic.split(':');
    let (Some("arn"), Some(partition), Some("sns"), Some(region)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let is_region = !region.is_empty()
        && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    is_region.then(|| format!("sns.{region}.{domain}"))
}

/// The rest of a URL behind its host, if the URL is `https` at the host of the topic's region, without a port or a user.
fn path_at_host<'u>(topic: &str, url: &'u str) -> Option<&'u str> {
    url.strip_prefix("https://")?.strip_prefix(&*host(topic)?)?.strip_prefix('/')
}

fn is_certificate_of(topic: &str, url: &str) -> bool {
    let name =
        path_at_host(topic, url).and_then(|path| path.strip_prefix("SimpleNotificationService-")?.strip_suffix(".pem"));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[async_trait]
impl Sender for Sns {
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted> {
        if head.headers.contains_key("x-amz-sns-rawdelivery") {
            return Err(NotAdmitted::Unauthenticated("raw deliveries are not signed: switch raw message delivery off"));
        }
        one(&head.headers, "x-amz-sns-message-type")?;
        match self.is_ours(one(&head.headers, "x-amz-sns-topic-arn")?) {
            true => Ok(()),
            false => Err(NotAdmitted::Unauthenticated("the topic is none of ours")),
        }
    }

    async fn open(&self, _head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted> {
        let Ok(envelope) = serde_json::from_slice::<Envelope>(&body) else {
            return Err(NotAdmitted::Unauthenticated("it is no message of SNS's"));
        };
        self.prove(&envelope).await?;
        match envelope.kind {
            Kind::Notification => {
                Ok(Opened::Message(Box::new(Message::new(envelope.message).with_id(&envelope.message_id))))
            }
            Kind::SubscriptionConfirmation => self.confirm(&envelope).await,
            Kind::UnsubscribeConfirmation => {
                tracing::warn!(
                    topic = envelope.topic_arn,
                    "a subscription was ended; nothing more comes of this topic"
                );
                Ok(Opened::Settled)
            }
        }
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }
}

impl fmt::Debug for Sns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sns").field("topics", &self.topics).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W44: only the host of the topic's own region has certificates.
    #[test]
    fn w44_certificates_are_at_the_host_of_the_topics_region() {
        let topic = "arn:aws:sns:eu-west-1:123456789012:payments";
        assert!(is_certificate_of(topic, "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb.pem"));
        let china = "arn:aws-cn:sns:cn-north-1:123456789012:payments";
        assert!(is_certificate_of(
            china,
            "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-f3ecfb.pem"
        ));
        for url in [
            "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb.pem",
            "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-f3ecfb.pem",
            "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-f3ecfb.pem",
            "https://evil.example/sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb.pem",
            "https://sns.eu-west-1.amazonaws.com@evil.example/SimpleNotificationService-f3ecfb.pem",
            "https://sns.eu-west-1.amazonaws.com:8443/SimpleNotificationService-f3ecfb.pem",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-../x.pem",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb.pem?x=.pem",
            "https://sns.eu-west-1.amazonaws.com/other.pem",
            "https://bucket.s3.amazonaws.com/SimpleNotificationService-f3ecfb.pem",
        ] {
            assert!(!is_certificate_of(topic, url), "{url}");
        }
        let strange = "arn:aws:sns:x/../evil.example:1:t";
        assert_eq!(host(strange), None);
    }
}
