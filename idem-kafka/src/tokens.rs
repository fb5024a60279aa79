//! Logins by token, SASL/OAUTHBEARER: where tokens come from, and how the client library asks for them.

use std::{
    fmt,
    sync::{Arc, mpsc},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{BoxError, internal::chain};
use rdkafka::client::OAuthToken;
use tokio::runtime::Handle;

/// How long a token may take to come. Nothing is polled meanwhile.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// The token that a client shows the brokers in place of a password. Its value is in no log and no message.
#[derive(Clone)]
pub struct Token {
    value: String,
    principal: String,
    expires_at: SystemTime,
}

impl Token {
    /// `value` is the token that the broker reads, mostly a JSON web token. `principal` is its owner, for the client library's
    /// own messages; brokers read the value. After `expires_at` it is of no use; another one is asked for once four fifths of
    /// the time until then have passed.
    pub fn new(value: impl Into<String>, principal: impl Into<String>, expires_at: SystemTime) -> Self {
        Self { value: value.into(), principal: principal.into(), expires_at }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("principal", &self.principal)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Makes tokens for [`KafkaOptions::tokens`](crate::KafkaOptions::tokens): asks an identity provider, reads a file that another
/// program renews, or signs one.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// A token that is valid now. Asked for before the first connection and then before each one runs out, by the consumer
    /// and by each publisher for itself, on the runtime in which they were made. It has 10 s.
    ///
    /// # Errors
    /// The reason why none came. It is reported, and a token is asked for again after 10 s; a token that was given before is used for
    /// as long as it is valid, so this ends no worker.
    async fn token(&self) -> Result<Token, BoxError>;
}

/// A source of tokens, for threads of the client library's.
#[derive(Clone)]
pub(crate) struct Login {
    source: Arc<dyn TokenSource>,
    runtime: Handle,
}

impl Login {
    pub(crate) fn new(source: Arc<dyn TokenSource>, runtime: Handle) -> Self {
        Self { source, runtime }
    }

    /// The next token, or why none could be had. Called on a thread that no runtime needs.
    pub(crate) fn token(&self) -> Result<OAuthToken, String> {
        let (answer, answered) = mpsc::channel();
        let source = Arc::clone(&self.source);
        self.runtime.spawn(async move {
            let token = tokio::time::timeout(COMES_WITHIN, source.token()).await;
            // There is no listener any more if it came too late.
            drop(answer.send(token));
        });
        // A runtime that stands still, or ends, does not keep this thread.
        let token = match answered.recv_timeout(COMES_WITHIN + Duration::from_secs(1)) {
            Ok(Ok(Ok(token))) => token,
            Ok(Ok(Err(error))) => return Err(chain(&*error).map(ToString::to_string).collect::<Vec<_>>().join(": ")),
            Ok(Err(_)) | Err(_) => return Err(format!("none came within {} s", COMES_WITHIN.as_secs())),
        };
        let left = token.expires_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(OAuthToken {
            token: token.value,
            principal_name: token.principal,
            lifetime_ms: i64::try_from(left.as_millis()).unwrap_or(i64::MAX),
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "msk-iam"))]
pub(crate) fn value(token: &Token) -> &str {
    &token.value
}
