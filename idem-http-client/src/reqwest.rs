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
/// It follows no redirects and tries nothing again by itself: after a 301, 302 or 303 the order would be a GET, whose 200 says nothing
/// about the order, and an uncounted try is outside the [provider's memory](super::Profile::memory).
#[derive(Debug, Clone)]
pub struct Reqwest(reqwest::Client);

impl Reqwest {
    /// Sends over a client of these settings. Set no timeout: that of [`Retries`](super::Retries) holds.
    ///
    /// # Errors
    /// Those of [`reqwest::ClientBuilder::build`].
    pub fn new(settings: reqwest::ClientBuilder) -> Result<Self, reqwest::Error> {
        let settings = settings.redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never());
        settings.build().map(Self)
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
