//! The endpoints of a destination's events.

use std::future::Future;

use async_trait::async_trait;
use idem_core::{BoxError, outbox::OutgoingEvent};

use crate::signature::Secret;

/// The endpoint of an event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Endpoint {
    /// The URL.
    pub url: String,
    /// The secrets that sign its requests: one, or several while a new one replaces an old one.
    pub secrets: Vec<Secret>,
    /// Whose endpoint it is, such as a customer's number: at most eight events at once are with all endpoints of one owner. Where it is
    /// `None`, the registrable domain of the URL's host stands for it, so give it where a customer may have endpoints at several.
    pub owner: Option<String>,
}

impl Endpoint {
    /// An endpoint with these secrets.
    pub fn new(url: impl Into<String>, secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self { url: url.into(), secrets: secrets.into_iter().collect(), owner: None }
    }

    /// The same of this owner.
    #[must_use]
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self { owner: Some(owner.into()), ..self }
    }
}

/// Finds the endpoint of each event, at each try, for example in a table in which customers change their URLs and secrets. An
/// async function of an event implements it, if its future does not borrow the event.
#[async_trait]
pub trait Endpoints: Send + Sync + 'static {
    /// The endpoint of this event; `None` if it no longer exists or was switched off. The event then waits for a person.
    ///
    /// It has 2 s. Beyond that the call is dropped, and the event is tried again later.
    ///
    /// # Errors
    /// If it could not be found now. The event is tried again later, and the try does not count.
    async fn of(&self, event: &OutgoingEvent) -> Result<Option<Endpoint>, BoxError>;

    /// Called when the endpoint answered 410, which means that it wants no more events. Switch it off, so that [`of`](Self::of)
    /// returns `None` for it. Does nothing by default.
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
