//! Where the events of one destination go: an endpoint for each event.

use std::future::Future;

use async_trait::async_trait;
use idem_core::{BoxError, outbox::OutgoingEvent};

use crate::signature::Secret;

/// Where an event goes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Endpoint {
    /// The URL.
    pub url: String,
    /// The secrets that sign its requests: one, or several while one takes another's place.
    pub secrets: Vec<Secret>,
}

impl Endpoint {
    /// An endpoint with these secrets.
    pub fn new(url: impl Into<String>, secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self { url: url.into(), secrets: secrets.into_iter().collect() }
    }
}

/// Finds the endpoint of each event, at each try: from a table in which customers change their URLs and secrets. An async
/// function of an event that keeps nothing of it is one.
#[async_trait]
pub trait Endpoints: Send + Sync + 'static {
    /// The endpoint of this event; `None` where there is none any more, or it was switched off. The event then waits for a
    /// person.
    ///
    /// # Errors
    /// Where it could not be found now: the event is tried again later, and the try does not count.
    async fn of(&self, event: &OutgoingEvent) -> Result<Option<Endpoint>, BoxError>;

    /// The endpoint answered 410: it wants no more. Switch it off, so that [`of`](Self::of) answers `None` for it. Does nothing by
    /// default.
    async fn gone(&self, event: &OutgoingEvent, url: &str) {
        let _ = (event, url);
    }
}

#[async_trait]
impl<F, Found> Endpoints for F
where
    F: Fn(&OutgoingEvent) -> Found + Send + Sync + 'static,
    Found: Future<Output = Result<Option<Endpoint>, BoxError>> + Send,
{
    async fn of(&self, event: &OutgoingEvent) -> Result<Option<Endpoint>, BoxError> {
        self(event).await
    }
}
