//! Kills at planned moments. An application needs none of this.
//!
//! A consumer runs in a tokio runtime of its own. At a planned moment the code that runs there stops, and the runtime is
//! dropped under it: nothing is rolled back, acknowledged, marked or closed in good order. Database and broker see the same
//! of a process that is killed.

use std::{
    fmt, future,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use idem_core::{
    BoxError, Handler, HandlerError, Message, Source, SourceError, Store, Tx,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{runtime, sync::Notify};

/// A moment to be killed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A message's effects are written, and their transaction is open.
    Written,
    /// A transaction is committed, and nothing is acknowledged.
    Acknowledging,
    /// The broker has confirmed events, and the outbox does not know it.
    Sent,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "written, not committed",
            Self::Acknowledging => "committed, not acknowledged",
            Self::Sent => "events sent, not marked",
        })
    }
}

/// The planned kills of one consumer, each with the count at which it comes. Each happens once.
#[derive(Debug)]
pub(crate) struct Kills {
    planned: Mutex<Vec<(Moment, usize)>>,
    happened: Mutex<Option<Moment>>,
    now: Notify,
}

impl Kills {
    pub(crate) fn planned(planned: impl Into<Vec<(Moment, usize)>>) -> Self {
        Self { planned: Mutex::new(planned.into()), happened: Mutex::default(), now: Notify::new() }
    }

    /// How many have not happened yet.
    pub(crate) fn left(&self) -> usize {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Counts this many more. Does not return from a kill.
    pub(crate) async fn at(&self, moment: Moment, count: usize) {
        let is_due = {
            let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
            let place = planned.iter().position(|(at, _)| *at == moment);
            place.is_some_and(|place| {
                planned[place].1 = planned[place].1.saturating_sub(count);
                planned[place].1 == 0 && planned.remove(place).0 == moment
            })
        };
        if is_due {
            *self.happened.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
            self.now.notify_one();
            future::pending().await
        }
    }

    /// Runs a consumer, and starts it again after each kill until it ends by itself.
    pub(crate) fn outlive<F>(&self, start: impl Fn() -> F, report: impl Fn(Moment)) -> Result<(), BoxError>
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        loop {
            let process = runtime::Builder::new_current_thread().enable_all().build()?;
            let consumer = process.spawn(start());
            let ended = process.block_on(async {
                tokio::select! {
                    ended = consumer => Some(ended),
                    () = self.now.notified() => None,
                }
            });
            drop(process);
            match ended {
                Some(ended) => return ended?,
                None => self
                    .happened
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
                    .iter()
                    .for_each(|at| report(*at)),
            }
        }
    }
}

/// A handler that may be killed after its writes.
pub(crate) struct Killed<T>(pub(crate) T, pub(crate) Arc<Kills>);

impl<S: Store, H: Handler<S>> Handler<S> for Killed<H> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.handle(message, tx).await?;
        self.1.at(Moment::Written, 1).await;
        Ok(())
    }
}

/// A source that may be killed before it acknowledges.
pub(crate) struct KilledSource<B>(pub(crate) B, pub(crate) Arc<Kills>);

impl<B: Source> Source for KilledSource<B> {
    type Handle = B::Handle;

    fn capabilities(&self) -> SourceCapabilities {
        self.0.capabilities()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.0.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<B::Handle>, SourceError> {
        self.0.receive(max).await
    }

    async fn settle(&self, settlements: Vec<(B::Handle, Settle)>) -> Vec<Settled> {
        self.1.at(Moment::Acknowledging, settlements.len()).await;
        self.0.settle(settlements).await
    }

    async fn flush(&self) -> Result<(), SourceError> {
        self.0.flush().await
    }

    fn holds_back(&self, handle: &B::Handle) -> bool {
        self.0.holds_back(handle)
    }

    fn is_held_back(&self, handle: &B::Handle) -> bool {
        self.0.is_held_back(handle)
    }

    async fn is_idle(&self) -> bool {
        self.0.is_idle().await
    }

    fn stop(&self) {
        self.0.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.0.close(deadline).await;
    }
}
