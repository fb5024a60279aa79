//! Fetches the URLs in SNS's messages, over reqwest.

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
impl Fetch for reqwest::Client {
    async fn get(&self, url: &str) -> Result<Bytes, BoxError> {
        let mut response = self.get(url).timeout(WITHIN).send().await?.error_for_status()?;
        if reqwest::Url::parse(url)?.origin() != response.url().origin() {
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
