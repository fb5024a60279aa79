//! What can be seen of a worker from outside of it: by the admin endpoints, and by the summary at its end.

use std::{fmt, sync::OnceLock};

use idem_core::{CancellationToken, CleanupState, CleanupView, ControlState, Pause, Summary, WorkerView};
use serde::Serialize;
use tokio::time::Instant;

/// What the source has now, such as partitions.
type Partitions = Box<dyn Fn() -> Option<Vec<String>> + Send + Sync>;

/// The state of one worker, from before it is built until after it has ended.
pub(crate) struct Status {
    pub(crate) consumer: String,
    /// Cancelled when the worker shall stop.
    pub(crate) stop: CancellationToken,
    pub(crate) began: Instant,
    worker: OnceLock<(WorkerView, Partitions)>,
    cleanup: OnceLock<CleanupView>,
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// The JSON of `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    /// Whether the worker has joined, and was not asked to stop.
    pub(crate) ready: bool,
    consumer: String,
    partitions: Option<Vec<String>>,
    database: &'static str,
    /// Why intake waits, and who says so.
    pause: Option<String>,
    breaker: &'static str,
}

impl Readiness {
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }
}

impl Status {
    pub(crate) fn new(consumer: &str, stop: CancellationToken) -> Self {
        Self {
            consumer: consumer.to_owned(),
            stop,
            began: Instant::now(),
            worker: OnceLock::new(),
            cleanup: OnceLock::new(),
        }
    }

    /// The worker is built.
    pub(crate) fn built(&self, view: WorkerView, partitions: impl Fn() -> Option<Vec<String>> + Send + Sync + 'static) {
        // There is one worker, so this is the first call.
        let _ = self.worker.set((view, Box::new(partitions)));
    }

    /// Cleanup was started.
    pub(crate) fn cleaning(&self, view: CleanupView) {
        // It is started once.
        let _ = self.cleanup.set(view);
    }

    /// What cleanup has done; nothing where it is off.
    pub(crate) fn cleanup(&self) -> Option<CleanupState> {
        self.cleanup.get().map(CleanupView::state)
    }

    /// What was done so far; nothing where there is no worker yet.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = self.worker.get().map_or_else(Summary::default, |(view, _)| view.summary());
        summary.ran_for = self.began.elapsed();
        summary.cleaned += self.cleanup().map_or(0, |cleanup| cleanup.removed);
        summary
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let worker = self.worker.get();
        let has_joined = worker.is_some_and(|(view, _)| view.has_joined());
        let pause = worker.and_then(|(view, _)| view.pause());
        Readiness {
            ready: has_joined && !self.stop.is_cancelled(),
            consumer: self.consumer.clone(),
            partitions: worker.filter(|_| has_joined).and_then(|(_, partitions)| partitions()),
            database: match pause {
                _ if !has_joined => "unknown",
                Some(Pause::StoreDown(_)) => "down",
                Some(Pause::Control(..) | Pause::Breaker) | None => "up",
            },
            breaker: if pause == Some(Pause::Breaker) { "open" } else { "closed" },
            pause: pause.map(|pause| match pause {
                Pause::Control(ControlState::Halted, why) => format!("halted by {why}"),
                Pause::Control(ControlState::Paused | ControlState::Running, why) => format!("paused by {why}"),
                Pause::StoreDown(lanes) => format!("{lanes} lanes cannot reach the database"),
                Pause::Breaker => "more than half of the last 50 fresh messages became dead letters".to_owned(),
            }),
        }
    }
}
