//! The client over reqwest.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

/// A [`reqwest::Client`] as the service under an [`IdempotentClient`](super::IdempotentClient).
///
/// Build the client without retries or a timeout of its own: those of [`Retries`](super::Retries) hold. A redirect that it follows carries
/// the same key.
#[derive(Debug, Clone)]
pub struct Reqwest(reqwest::Client);

impl Reqwest {
    /// Sends over this client.
    #[must_use]
    pub fn new(client: reqwest::Client) -> Self {
        Self(client)
    }
}

impl Service<Request<Bytes>> for Reqwest {
    type Response = Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { Ok(client.execute(request.try_into()?).await?.into()) })
    }
}
