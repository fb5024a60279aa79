//! Tokens for Amazon MSK with IAM: a signed URL that the brokers send to IAM themselves.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials, SharedCredentialsProvider},
};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use idem_core::BoxError;

use crate::tokens::{Token, TokenSource};

/// How long a signed URL is valid: as long as AWS takes one for.
const VALID_FOR: Duration = Duration::from_secs(900);

/// Logs in to Amazon MSK, provisioned or serverless, as the owner of the credentials; a source for
/// [`KafkaOptions::tokens`](crate::KafkaOptions::tokens). The brokers are those of the cluster's IAM endpoints, on port 9098.
///
/// The principal needs `kafka-cluster:Connect` on the cluster, `DescribeTopic` and `ReadData` on the topic, `DescribeGroup` and
/// `AlterGroup` on the group, and `WriteData` and `WriteDataIdempotently` where dead letters are published.
#[derive(Debug, Clone)]
pub struct MskIam {
    region: String,
    credentials: SharedCredentialsProvider,
}

impl MskIam {
    /// For a cluster in `region`, such as `eu-central-1`. Credentials are asked for with each token, so those of a role may
    /// change; a provider that caches them, as the AWS SDK's own do, is asked every 12 minutes by each client.
    pub fn new(region: impl Into<String>, credentials: impl ProvideCredentials + 'static) -> Self {
        Self { region: region.into(), credentials: SharedCredentialsProvider::new(credentials) }
    }
}

#[async_trait]
impl TokenSource for MskIam {
    async fn token(&self) -> Result<Token, BoxError> {
        let credentials = self.credentials.provide_credentials().await?;
        #[allow(clippy::disallowed_methods, reason = "AWS compares the time of the signature with its own clock")]
        let now = SystemTime::now();
        signed(credentials, &self.region, now)
    }
}

fn signed(credentials: Credentials, region: &str, now: SystemTime) -> Result<Token, BoxError> {
    let (principal, theirs) = (credentials.access_key_id().to_owned(), credentials.expiry());
    let identity = credentials.into();
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(VALID_FOR);
    let signing = v4::SigningParams::builder().identity(&identity).region(region).name("kafka-cluster");
    let signing = signing.time(now).settings(settings).build()?.into();
    let url = format!("https://kafka.{region}.amazonaws.com/?Action=kafka-cluster%3AConnect");
    let signable = SignableRequest::new("GET", &url, std::iter::empty(), SignableBody::Bytes(&[]))?;
    let (instructions, _signature) = sign(signable, &signing)?.into_parts();
    let mut request = http::Request::builder().uri(&url).body(())?;
    instructions.apply_to_request_http1x(&mut request);
    // Brokers tell clients apart by it in their logs; it is not signed.
    let url = format!("{}&User-Agent=idem-kafka%2F{}", request.uri(), env!("CARGO_PKG_VERSION"));
    let expires_at = theirs.map_or(now + VALID_FOR, |theirs| theirs.min(now + VALID_FOR));
    Ok(Token::new(URL_SAFE_NO_PAD.encode(url), principal, expires_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(1_767_225_600);

    fn url(session: Option<&str>) -> String {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIDEXAMPLE", secret, session.map(str::to_owned), None, "test");
        let token = signed(credentials, "eu-central-1", SystemTime::UNIX_EPOCH + DAY).unwrap();
        let value = crate::tokens::value(&token);
        String::from_utf8(URL_SAFE_NO_PAD.decode(value).unwrap()).unwrap()
    }

    /// Against signatures that another implementation of AWS's signing made.
    #[test]
    fn e28_a_token_for_msk_is_the_url_that_aws_describes() {
        let url_of_user = url(None);
        assert!(
            url_of_user.starts_with("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&"),
            "{url_of_user}"
        );
        for part in [
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=AKIDEXAMPLE%2F20260101%2Feu-central-1%2Fkafka-cluster%2Faws4_request",
            "X-Amz-Date=20260101T000000Z",
            "X-Amz-Expires=900",
            "X-Amz-SignedHeaders=host",
            "X-Amz-Signature=42f794d62c0c10d20b5bc9075f7af80c2b7c3fc23d4fd90babfc70162694c110",
            "User-Agent=idem-kafka",
        ] {
            assert!(url_of_user.contains(part), "{part} is not in {url_of_user}");
        }
        let of_role = url(Some("a+session/token=="));
        for part in [
            "X-Amz-Security-Token=a%2Bsession%2Ftoken%3D%3D",
            "X-Amz-Signature=c878e2ee9a0b5bb0538efd4243bffbff5eb89f26d9e9443fcad2e725ea9a766a",
        ] {
            assert!(of_role.contains(part), "{part} is not in {of_role}");
        }
    }
}
