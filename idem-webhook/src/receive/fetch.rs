//! [`Fetch`]: gets the URLs in SNS's messages.

use async_trait::async_trait;
use bytes::Bytes;
use idem_core::BoxError;

/// Fetches the URLs in SNS's messages: certificates, and pages that confirm subscriptions. With the feature `reqwest`, `reqwest::Client` implements
/// it.
#[async_trait]
pub trait Fetch: Send + Sync + 'static {
    /// Fetches this `https` URL, and gives the body of an answer with 200. It must check the server's certificate, on which all trust in SNS's
    /// messages rests, contact no other host, and have a time limit.
    ///
    /// # Errors
    /// On any other outcome. SNS sends the message again.
    async fn get(&self, url: &str) -> Result<Bytes, BoxError>;
}

#[cfg(feature = "reqwest")]
mod reqwest {
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::{Bytes, BytesMut};
    use idem_core::BoxError;

    use super::Fetch;

    /// How long one fetch may take.
    const WITHIN: Duration = Duration::from_secs(5);

    /// The largest body that is read; a certificate has 2 KiB.
    const BYTES_MAX: usize = 64 << 10;

    #[async_trait]
    impl Fetch for ::reqwest::Client {
        async fn get(&self, url: &str) -> Result<Bytes, BoxError> {
            let mut response = self.get(url).timeout(WITHIN).send().await?.error_for_status()?;
            if ::reqwest::Url::parse(url)?.origin() != response.url().origin() {
                return Err("it was answered by another host".into());
            }
            let mut body = BytesMut::new();
            while let Some(chunk) = response.chunk().await? {
                if body.len() + chunk.len() > BYTES_MAX {
                    return Err("the answer is too large".into());
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body.freeze())
        }
    }
}
