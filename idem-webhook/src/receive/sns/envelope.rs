//! The body that SNS posts, and the part of it that is signed.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;

/// A message of SNS. A body with a repeated member is refused.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Envelope {
    #[serde(rename = "Type")]
    pub(super) kind: Kind,
    pub(super) message_id: String,
    pub(super) topic_arn: String,
    subject: Option<String>,
    pub(super) message: String,
    pub(super) timestamp: String,
    pub(super) signature_version: String,
    signature: String,
    #[serde(rename = "SigningCertURL")]
    pub(super) signing_cert_url: String,
    #[serde(rename = "SubscribeURL")]
    pub(super) subscribe_url: Option<String>,
    token: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Notification,
    SubscriptionConfirmation,
    UnsubscribeConfirmation,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Notification => "Notification",
            Self::SubscriptionConfirmation => "SubscriptionConfirmation",
            Self::UnsubscribeConfirmation => "UnsubscribeConfirmation",
        }
    }
}

impl Envelope {
    /// Whether the owner of this certificate made the signature: RSA with PKCS #1 v1.5 and SHA-256.
    ///
    /// The signed text has no lengths. With a line end in another part than the message, it could be that of another message too; SNS sends none
    /// there.
    pub(super) fn is_signed_by(&self, certificate: &CertificateDer<'_>) -> bool {
        if self
            .parts()
            .into_iter()
            .skip(1)
            .any(|(_, value)| value.is_some_and(|value| value.contains(char::is_control)))
        {
            return false;
        }
        let (Ok(certificate), Ok(signature)) =
            (webpki::EndEntityCert::try_from(certificate), STANDARD.decode(&self.signature))
        else {
            return false;
        };
        let signed = self.signed();
        certificate.verify_signature(webpki::ring::RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature).is_ok()
    }

    /// The signed names and values, the message first.
    fn parts(&self) -> [(&'static str, Option<&str>); 7] {
        let (message, id) = (Some(&*self.message), Some(&*self.message_id));
        let (timestamp, topic, kind) = (Some(&*self.timestamp), Some(&*self.topic_arn), Some(self.kind.as_str()));
        match self.kind {
            Kind::Notification => [
                ("Message", message),
                ("MessageId", id),
                ("Subject", self.subject.as_deref()),
                ("Timestamp", timestamp),
                ("TopicArn", topic),
                ("Type", kind),
                ("", None),
            ],
            Kind::SubscriptionConfirmation | Kind::UnsubscribeConfirmation => [
                ("Message", message),
                ("MessageId", id),
                ("SubscribeURL", self.subscribe_url.as_deref()),
                ("Timestamp", timestamp),
                ("Token", self.token.as_deref()),
                ("TopicArn", topic),
                ("Type", kind),
            ],
        }
    }

    /// The signed text: names and values, each on a line.
    fn signed(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.parts() {
            if let Some(value) = value {
                for line in [name, value] {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        text
    }
}
