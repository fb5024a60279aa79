//! Sessions of units: a consumer's own, opening one, and how long the store may take to answer.

use std::{
    future::Future,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{sync::OwnedSemaphorePermit, time::error::Elapsed};

use crate::{
    config::ConsumerSettings,
    error::StoreError,
    failpoint::Injected,
    names::RunId,
    store::{Store, UnitOptions},
    unit::engine::Engine,
};

/// The lane number of units outside of a worker.
pub(super) const NO_LANE: i32 = -1;

/// A session of the consumer's own, or the right to open one. If it is still sound afterwards, it is kept for the next call.
pub(crate) struct OwnSession<S: Store> {
    pub(crate) engine: Arc<Engine<S>>,
    pub(crate) session: Option<S::Session>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl<S: Store> OwnSession<S> {
    pub(crate) async fn of(engine: &Arc<Engine<S>>) -> Self {
        // The semaphore is never closed.
        let slot = Arc::clone(&engine.slots).acquire_owned().await.ok();
        let session = engine.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self { engine: Arc::clone(engine), session, _slot: slot }
    }
}

impl<S: Store> Drop for OwnSession<S> {
    fn drop(&mut self) {
        self.engine.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.session.take());
    }
}

pub(super) fn is_lost(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { source, .. } if !source.is::<Elapsed>())
}

pub(super) async fn session_or_open<S: Store>(
    engine: &Engine<S>,
    session: Option<S::Session>,
) -> Result<S::Session, StoreError> {
    if let Some(session) = session {
        return Ok(session);
    }
    let session = answered(engine.settings.answer_timeout, "connecting", engine.store.open()).await?;
    // Boxed, because it is rare and every unit's future would have room for it.
    answered(engine.settings.answer_timeout, "interning names", Box::pin(engine.interned_there())).await?;
    Ok(session)
}

/// Waits for the store's answer at most this long. A server that is gone without a word would otherwise hold the session
/// for as long as TCP does, which is hours. The connection must be closed after a time-out.
pub(super) fn answered<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> impl Future<Output = Result<T, StoreError>> {
    // An async function would hold the call twice, as its parameter and as the future that it awaits.
    tokio::time::timeout(limit, call).map(move |answer| match answer {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
    })
}

pub(super) fn options(settings: &ConsumerSettings, run: RunId, lane: i32) -> UnitOptions {
    UnitOptions {
        run,
        lane,
        busy_timeout: settings.busy_timeout,
        idle_timeout: settings.handler_deadline + Duration::from_secs(5),
        alone: false,
    }
}

pub(super) fn inject(injected: Injected) -> StoreError {
    StoreError::Unavailable { doing: "passing a failpoint", source: Box::new(injected) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::RunId;

    /// A18, A20: the server ends an idle transaction only after the handler's own deadline has passed, with time for the
    /// engine to notice; otherwise both would race for every slow handler.
    #[test]
    fn a20_the_servers_idle_limit_is_five_seconds_behind_the_handlers_deadline() {
        let settings = ConsumerSettings { handler_deadline: Duration::from_secs(30), ..ConsumerSettings::new(None) };
        let options = options(&settings, RunId(1), 2);
        assert_eq!(options.idle_timeout, Duration::from_secs(35));
        assert_eq!((options.lane, options.busy_timeout), (2, settings.busy_timeout));
    }
}
