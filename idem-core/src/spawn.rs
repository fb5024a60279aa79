//! The one place where the engine spawns tasks, so that a test can have all tasks of a process die between two polls: see
//! [`failpoint::Life`](crate::failpoint). Without the feature `failpoints` a task is spawned as it is.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinHandle},
};
use tokio_util::task::TaskTracker;

#[cfg(feature = "failpoints")]
use crate::failpoint::life::mortal;

#[cfg(not(feature = "failpoints"))]
fn mortal<F: Future>(future: F) -> F {
    future
}

/// Runs in the task that waits for it, and in a task of its own once that is dropped: work begun on a connection comes to its
/// end. A call then costs no task, and no switch to another thread and back.
pub fn finished<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + Unpin {
    Finished { rest: Some(Box::pin(mortal(future))), runtime: Handle::current() }
}

struct Finished<T: Send + 'static> {
    rest: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out meanwhile, because a future that has panicked must not be polled again.
        let Some(mut rest) = self.rest.take() else { return Poll::Pending };
        let polled = rest.as_mut().poll(context);
        if polled.is_pending() {
            self.rest = Some(rest);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finished<T> {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            drop(self.runtime.spawn(rest));
        }
    }
}

/// Spawns a task that is waited for.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(mortal(future))
}

/// Spawns a task without waiting for it, as a destructor does. Without a runtime the future is dropped.
pub(crate) fn detached(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(mortal(future)));
    }
}

/// Spawns a task that is waited for with the others of `tasks`, and can be ended from outside.
pub(crate) fn spawn_on(tasks: &TaskTracker, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tasks.spawn(mortal(future)).abort_handle()
}
