//! [`Relay`], which sends committed events to their destinations.

mod carrier;
mod each;
mod ends;
mod lease;
mod measure;
mod rounds;
pub(crate) mod settings;
pub(crate) mod state;
mod unconfirmed;

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    settings::{RelayBuilder, RelaySettings, Route, is_stale},
    state::{RelayStanding, RelayView, Relayed},
};
use crate::{
    error::{ErrorClass, StoreError, chain},
    outbox::rows::Outbox,
    relay::{carrier::Carrier, state::State},
    spawn,
};

/// Why a relay ended without being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The store refused at the start; the text has the cure. After its start a relay waits and tries again on every error.
    #[error("the store refused")]
    Store(#[source] StoreError),
    /// A task of the relay died.
    #[error("the relay's task for {what} died, which is a bug in idem; its events stay in the outbox")]
    TaskDied {
        /// The destination, or the task's purpose.
        what: String,
    },
}

/// Sends the events of an outbox to their destinations: each at least once, always under the same id, and the events of one
/// ordering key in the order of their commits.
///
/// One relay at a time serves a destination, by a lease. Any number of relays may run, in workers or alone, and another takes
/// over within two seconds of a kill. Each destination has a task of its own, so that its failures delay no other. Events that
/// a destination has confirmed are removed from the outbox. Events that it cannot accept wait for a person, and none is ever
/// discarded.
///
/// A worker gets one by [`WorkerBuilder::relay`](crate::worker::WorkerBuilder::relay). A relay can be run once.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use idem_core::{
///     outbox::{EventPublisher, Outbox},
///     relay::Relay,
/// };
///
/// # async fn doctest(outbox: Arc<dyn Outbox>, kafka: impl EventPublisher, shutdown: impl Future<Output = ()>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// Relay::builder(outbox).to("payments", kafka).named("host-7").build()?.run(shutdown).await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Relay {
    routes: Vec<Route>,
    settings: RelaySettings,
    name: Arc<str>,
    state: Arc<State>,
    /// Notified after commits in this process.
    published: Option<Arc<Notify>>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("name", &self.name)
            .field("routes", &self.routes)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// When a relay stops: first it sends the remaining events, then it ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stopping {
    /// Once cancelled, the relay ends as soon as no event may go.
    pub(crate) drain: CancellationToken,
    /// Once cancelled, the relay begins nothing more.
    pub(crate) stop: CancellationToken,
}

impl Stopping {
    fn is_asked(&self) -> bool {
        self.drain.is_cancelled() || self.stop.is_cancelled()
    }
}

impl Relay {
    /// Begins a relay of this outbox, which [`Store::outbox`](crate::Store::outbox) gives.
    pub fn builder(outbox: Arc<dyn Outbox>) -> RelayBuilder {
        RelayBuilder::new(outbox)
    }

    /// A view of this relay, which outlives the call of [`run`](Self::run).
    #[must_use]
    pub fn view(&self) -> RelayView {
        RelayView(Arc::clone(&self.state))
    }

    /// A relay that is woken by commits, and need not poll for them.
    pub(crate) fn woken_by(mut self, published: Arc<Notify>) -> Self {
        self.published = Some(published);
        self
    }

    /// Runs until `shutdown` is ready. Then it waits for the publishers' answers, up to the publish deadline, notes them, and
    /// releases the destinations.
    ///
    /// # Errors
    /// [`RelayError`]. An unreachable database or destination is not an error: the relay waits and tries again.
    ///
    /// # Cancel safety
    /// A dropped call ends the relay's tasks. The next relay sends the events that were with publishers again, under the same
    /// ids.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        let stopping = Stopping::default();
        let mut run = Box::pin(self.run_until(stopping.clone()));
        tokio::select! {
            ended = &mut run => return ended,
            () = shutdown => stopping.stop.cancel(),
        }
        run.await
    }

    pub(crate) async fn run_until(self, stopping: Stopping) -> Result<(), RelayError> {
        let Self { routes, settings, name, state, published } = self;
        measure::first(&state, &stopping).await?;
        let (tasks, ended) = (TaskTracker::new(), Arc::new(Ended::default()));
        let running = Running(Arc::clone(&ended));
        let (waker, woken) = watch::channel(0);
        // The other tasks end with those of the destinations.
        let aside = CancellationToken::new();
        let beside = TaskTracker::new();
        if let Some(published) = published {
            running.spawn(&beside, "waking", aside.clone(), wake(published, waker.clone()));
        }
        running.spawn(&beside, "counting", aside.clone(), measure::run(Arc::clone(&state), settings, waker));
        for (route, line) in routes.into_iter().zip(&state.lines) {
            let what = route.destination.clone();
            let carrier =
                Carrier::new(route, settings, Arc::clone(&name), &state, line, woken.clone(), stopping.clone());
            running.spawn(&tasks, what, CancellationToken::new(), carrier.run());
        }
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = ended.died.cancelled() => {}
        }
        aside.cancel();
        let died = ended.what.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(running);
        died.map_or(Ok(()), |what| Err(RelayError::TaskDied { what }))
    }
}

/// Forwards the notice of a commit to all destinations.
async fn wake(published: Arc<Notify>, waker: watch::Sender<u64>) {
    loop {
        published.notified().await;
        waker.send_modify(|commits| *commits += 1);
    }
}

/// The task that died first.
#[derive(Default)]
struct Ended {
    /// The run is over, and ends its tasks itself.
    over: AtomicBool,
    died: CancellationToken,
    what: Mutex<Option<String>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Ends every task when the run returns or is dropped.
struct Running(Arc<Ended>);

impl Running {
    /// Runs a task until it ends or `until` is cancelled. A task that dies ends the relay, which would otherwise stop silently.
    fn spawn(
        &self,
        tasks: &TaskTracker,
        what: impl Into<String>,
        until: CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        struct Died(Option<(Arc<Ended>, String)>);
        impl Drop for Died {
            fn drop(&mut self) {
                if let Some((ended, what)) = self.0.take().filter(|(ended, _)| !ended.over.load(Ordering::Relaxed)) {
                    ended.what.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
                    ended.died.cancel();
                }
            }
        }
        let guard = Died(Some((Arc::clone(&self.0), what.into())));
        let handle = spawn::spawn_on(tasks, async move {
            let mut guard = guard;
            tokio::select! {
                () = task => {}
                () = until.cancelled() => {}
            }
            guard.0 = None;
        });
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        for task in self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

/// Sleeps for this long, unless the relay is to stop.
async fn rest(time: Duration, stopping: &Stopping) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = stopping.drain.cancelled() => {}
        () = stopping.stop.cancelled() => {}
    }
}

/// Whether only a person can cure this error of a store.
fn is_refused(error: &StoreError) -> bool {
    match error.class() {
        ErrorClass::Fatal | ErrorClass::Permanent => true,
        ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure => false,
    }
}

/// The texts of a publisher's error and its sources, none of which quotes a value.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    const CHARS_MAX: usize = 500;
    let mut texts: Vec<String> = Vec::new();
    for link in chain(error) {
        let text = link.to_string();
        if texts.last().is_none_or(|before| !before.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ").chars().map(|c| if c.is_control() { ' ' } else { c }).take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
