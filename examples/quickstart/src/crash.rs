//! Crashes at planned moments, the same for every consumer. An application needs none of this.
//!
//! A consumer runs in a tokio runtime of its own. At a planned moment the code that runs there stops, and the runtime
//! is dropped under it: nothing is rolled back, acknowledged, handed back or closed in good order. The database and
//! the broker see the same of a process that dies: connections that end.

use std::{
    fmt,
    future::{self, Future},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    BoxError, Handler, HandlerError, Message, Source, SourceError, Store, Tx,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{runtime, sync::Notify};

/// A moment to crash at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The purchase of this key is written, and its transaction is open.
    InTheTransaction(String),
    /// A transaction was committed, not before that of this key was begun, and nothing was acknowledged yet.
    BeforeTheAcknowledgement(String),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InTheTransaction(key) => write!(f, "{key} written, not committed"),
            Self::BeforeTheAcknowledgement(key) => write!(f, "{key} committed, not acknowledged"),
        }
    }
}

/// The planned crashes of one consumer. Each happens once.
#[derive(Debug)]
pub(crate) struct Crashes {
    state: Mutex<State>,
    happened: Notify,
}

#[derive(Debug)]
struct State {
    planned: Vec<Moment>,
    /// The crash that the next acknowledgement meets.
    next_acknowledgement: Option<Moment>,
    happened: Option<Moment>,
}

impl Crashes {
    pub(crate) fn planned(moments: Vec<Moment>) -> Self {
        let state = State { planned: moments, next_acknowledgement: None, happened: None };
        Self { state: Mutex::new(state), happened: Notify::new() }
    }

    /// The purchase of this key was written. Does not return from a crash.
    pub(crate) async fn written(&self, key: &str) {
        let moment = {
            let mut state = self.lock();
            let planned = state.planned.iter().position(|moment| match moment {
                Moment::InTheTransaction(at) | Moment::BeforeTheAcknowledgement(at) => at == key,
            });
            match planned.map(|index| state.planned.remove(index)) {
                Some(moment @ Moment::BeforeTheAcknowledgement(_)) => {
                    state.next_acknowledgement = Some(moment);
                    None
                }
                moment @ (Some(Moment::InTheTransaction(_)) | None) => moment,
            }
        };
        self.crash(moment).await;
    }

    /// Something is about to be acknowledged. Does not return from a crash.
    pub(crate) async fn acknowledging(&self) {
        let moment = self.lock().next_acknowledgement.take();
        self.crash(moment).await;
    }

    async fn crash(&self, moment: Option<Moment>) {
        if moment.is_some() {
            self.lock().happened = moment;
            self.happened.notify_one();
            future::pending().await
        }
    }

    async fn happened(&self) -> Option<Moment> {
        self.happened.notified().await;
        self.lock().happened.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a consumer, and starts it again after each crash until it ends by itself.
pub(crate) fn outlive<F>(
    crashes: &Crashes,
    start: impl Fn() -> F,
    mut report: impl FnMut(&Moment),
) -> Result<(), BoxError>
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    loop {
        let process = runtime::Builder::new_current_thread().enable_all().build()?;
        let consumer = process.spawn(start());
        let crash = process.block_on(async {
            tokio::select! {
                ended = consumer => Err(ended),
                crash = crashes.happened() => Ok(crash),
            }
        });
        drop(process);
        match crash {
            Ok(moment) => moment.iter().for_each(&mut report),
            Err(ended) => return ended?,
        }
    }
}

/// A handler with crashes after its writes.
pub(crate) struct CrashingHandler<H>(pub(crate) H, pub(crate) Arc<Crashes>);

impl<S: Store, H: Handler<S>> Handler<S> for CrashingHandler<H> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        self.0.handle(message, tx).await?;
        if let Some(key) = message.key() {
            self.1.written(key.as_str()).await;
        }
        Ok(())
    }
}

/// A source with crashes before it acknowledges.
pub(crate) struct CrashingSource<B>(pub(crate) B, pub(crate) Arc<Crashes>);

impl<B: Source> Source for CrashingSource<B> {
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
        self.1.acknowledging().await;
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
