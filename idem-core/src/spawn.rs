//! The one place where the engine spawns tasks, so that a test can have all tasks of a process die between two polls: see
//! [`failpoint::Life`](crate::failpoint). Without the feature `failpoints` a task is spawned as it is.

use std::future::Future;

use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::TaskTracker;

#[cfg(feature = "failpoints")]
use crate::failpoint::mortal;

#[cfg(not(feature = "failpoints"))]
fn mortal<F: Future>(future: F) -> F {
    future
}

/// Spawns a task that somebody waits for.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(mortal(future))
}

/// Spawns a task that is waited for with the others of `tasks`, and can be ended from outside.
pub(crate) fn spawn_on(tasks: &TaskTracker, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tasks.spawn(mortal(future)).abort_handle()
}
