//! The broker's management API, which shows the arguments and policies of a queue; the protocol does not.

use std::time::Duration;

use idem_core::{BoxError, ConfigError};
use lapin::uri::AMQPUri;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Its address, and the user to ask as.
#[derive(Clone)]
pub(crate) struct Management {
    base: Url,
    user: String,
    password: String,
    /// As PEM, and checked.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no https without it"))]
    authorities: Option<String>,
}

impl Management {
    /// User and password are those of the broker's URL where this one has none.
    pub(crate) fn new(url: &str, broker: &AMQPUri, authorities: Option<String>) -> Result<Self, ConfigError> {
        // The URL is left out of the error: it may hold a password.
        let rule = "it must be http:// or https://host:port, with user:password@ where they differ from the broker's";
        let wrong = || ConfigError::new("management_url", "no such URL", rule);
        let mut base: Url = url.parse().map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(wrong());
        }
        if base.scheme() == "https" && cfg!(not(feature = "tls")) {
            return Err(ConfigError::new(
                "management_url",
                "https://",
                "this build lacks the feature `tls` of idem-amqp",
            ));
        }
        let theirs = &broker.authority.userinfo;
        let decoded = |text: &str| percent_decoded(text).ok_or_else(wrong);
        let (user, password) = match base.username() {
            "" => (theirs.username.clone(), theirs.password.clone()),
            user => (decoded(user)?, decoded(base.password().unwrap_or_default())?),
        };
        base.set_username("").and_then(|()| base.set_password(None)).map_err(|()| wrong())?;
        Ok(Self { base, user, password, authorities })
    }

    /// The host to which user and password go without TLS.
    pub(crate) fn plaintext_host(&self) -> Option<&str> {
        self.base.host_str().filter(|_| self.base.scheme() == "http")
    }

    /// The API's answer about a queue.
    pub(crate) async fn queue(&self, vhost: &str, queue: &str) -> Result<Value, BoxError> {
        self.get(&["queues", vhost, queue]).await
    }

    /// The broker's version, as `[4, 1, 0]`.
    pub(crate) async fn version(&self) -> Result<Vec<u32>, BoxError> {
        let overview = self.get(&["overview"]).await?;
        let version = overview["rabbitmq_version"].as_str().ok_or("the overview names no version")?;
        Ok(version.split('.').map_while(|part| part.parse().ok()).collect())
    }

    #[cfg(feature = "tls")]
    fn client(&self) -> Result<Client, BoxError> {
        // For the process, unless it has one, as the broker's own connection does it. Without one the client panics.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = self.authorities.as_ref().map(|pem| reqwest::Certificate::from_pem_bundle(pem.as_bytes()));
        let authorities = pem.transpose()?.unwrap_or_default();
        Ok(Client::builder().timeout(ANSWER).tls_certs_merge(authorities).build()?)
    }

    #[cfg(not(feature = "tls"))]
    fn client(&self) -> Result<Client, BoxError> {
        Ok(Client::builder().timeout(ANSWER).build()?)
    }

    async fn get(&self, path: &[&str]) -> Result<Value, BoxError> {
        let mut url = self.base.clone();
        url.path_segments_mut().map_err(|()| "no such URL")?.pop_if_empty().push("api").extend(path);
        let client = self.client()?;
        // Errors of the client hold the URL, from which user and password were taken out.
        let answer = client.get(url).basic_auth(&self.user, Some(&self.password)).send().await?;
        match answer.status() {
            StatusCode::OK => Ok(serde_json::from_slice(&answer.bytes().await?)?),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(format!("the management API does not let user {:?} in: {}", self.user, answer.status()).into())
            }
            other => Err(format!("the management API answered {other}").into()),
        }
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            // `from_str_radix` takes a sign.
            let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_is_two_digits_without_a_sign() {
        assert_eq!(percent_decoded("%2fb").as_deref(), Some("/b"));
        assert_eq!((percent_decoded("%+1b"), percent_decoded("%2")), (None, None));
    }
}
