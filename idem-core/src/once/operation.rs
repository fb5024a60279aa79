//! [`Once`]: work that is done step by step, in a unit that a task holds for it.
//!
//! A unit borrows its connection, so a caller cannot own it and take it along. A task runs the steps that it is sent, in
//! its open transaction, until it is sent the outcome.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tracing::Instrument as _;

use crate::{
    dead_letter::Reason,
    error::ErrorClass,
    handler_error::CannotRepeat,
    message::Message,
    once::{Ran, RunOnce, RunOnceError, WorkError},
    outcome::Failure,
    results::result::ResultBody,
    spawn,
    store::{Store, tx::Tx},
};

/// The answer of [`RunOnce::once`](crate::RunOnce::once).
#[derive(Debug)]
pub enum Once<S: Store> {
    /// The operation is new, its key is claimed, and its transaction is open.
    First(Running<S>),
    /// It was done before, with this answer.
    Known(Ran),
}

/// An operation under way. Dropped before its end, it is rolled back, and its key is free again.
///
/// It has a connection of its own until its end, one of as many as there are [`lanes`](crate::RunOnceBuilder::lanes): a
/// task that has one and begins another may wait for itself. It takes at most the
/// [deadline of handlers](crate::RunOnceBuilder::handler_deadline), after which nothing of it is kept.
pub struct Running<S: Store> {
    message: Message,
    steps: mpsc::Sender<Step<S>>,
    ended: JoinHandle<Result<Ran, RunOnceError>>,
}

type StepFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

type StepFn<S> = dyn for<'a, 't> FnOnce(&'a mut Tx<'t, S>) -> StepFuture<'a, ()> + Send;

enum Step<S: Store> {
    Do(Box<StepFn<S>>),
    End(Result<ResultBody, WorkError>),
}

impl<S: Store> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl<S: Store> Running<S> {
    /// The operation as its steps have it in [`Tx::message`]: with its key, from which [derived keys](Message::derived_key) for others
    /// follow.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Runs a step in the transaction, and returns its answer. May be called several times; whether the transaction can go on
    /// after an error of the database is up to the database.
    ///
    /// # Errors
    /// The operation has ended meanwhile, at its deadline; nothing of it is kept.
    ///
    /// # Cancel safety
    /// A step that a dropped call has begun is finished before the next one.
    pub async fn with<T, F>(&mut self, step: F) -> Result<T, RunOnceError>
    where
        T: Send + 'static,
        F: for<'a, 't> FnOnce(&'a mut Tx<'t, S>) -> StepFuture<'a, T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let step = Step::Do(Box::new(move |tx| {
            Box::pin(async move {
                let done = step(tx).await;
                // The caller may have given up.
                let _ = answer.send(done);
            })
        }));
        if self.steps.send(step).await.is_ok()
            && let Ok(done) = answered.await
        {
            return Ok(done);
        }
        Err(over())
    }

    /// Commits the operation with this as its result.
    ///
    /// # Errors
    /// [`RunOnceError`]. Where the transaction could not be committed for another's sake, nothing of it is kept: ask again with
    /// the same key.
    ///
    /// # Cancel safety
    /// A dropped call lets the commit finish. Ask again with the same key to learn the outcome.
    pub async fn finish(self, value: ResultBody) -> Result<Ran, RunOnceError> {
        self.end(Ok(value)).await
    }

    /// Refuses the operation for good: see [`WorkError::final_result`].
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    ///
    /// # Cancel safety
    /// As for [`finish`](Self::finish).
    pub async fn refuse(self, value: ResultBody) -> Result<Ran, RunOnceError> {
        self.end(Err(WorkError::final_result(value))).await
    }

    /// Gives the operation up: it is rolled back, and its key is free again once this has returned.
    ///
    /// # Cancel safety
    /// A dropped call lets the end come by itself, as dropping the operation does.
    pub async fn give_up(self) {
        let Self { steps, ended, .. } = self;
        drop(steps);
        // It ends as given up, or has ended before.
        let _ = ended.await;
    }

    async fn end(self, outcome: Result<ResultBody, WorkError>) -> Result<Ran, RunOnceError> {
        let Self { steps, ended, .. } = self;
        // Where the task is over, its answer says why.
        let _ = steps.send(Step::End(outcome)).await;
        drop(steps);
        ended.await.unwrap_or_else(|_panicked| Err(over()))
    }
}

fn over() -> RunOnceError {
    let text =
        "the operation has ended meanwhile, at its deadline or because a step of it panicked; nothing of it is kept";
    RunOnceError::Failed(Failure::new(ErrorClass::Transient, Reason::Deadline, text))
}

/// Claims the key, and has a task hold its unit.
pub(super) async fn begin<S: Store>(runs: &RunOnce<S>, message: Message) -> Result<Once<S>, RunOnceError> {
    let (steps, to_do) = mpsc::channel(1);
    let (tell, begun) = oneshot::channel();
    // Taken by the first run. Where the engine runs the unit again, its steps are gone.
    let first = Arc::new(Mutex::new(Some((to_do, tell))));
    let runs = runs.clone();
    let work = async move {
        let work = runs.run_message(message, move |tx| {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            Box::pin(async move {
                let (to_do, tell) = first.ok_or(CannotRepeat)?;
                tx.runs_once();
                let message = tx.message().cloned().ok_or_else(|| WorkError::from("the operation has no message"))?;
                // The caller may have given up.
                let _ = tell.send(message);
                steps_of(to_do, tx).await
            })
        });
        work.await
    };
    // The spans of the unit stand under the caller's, as those of a call that waits.
    let mut ended = spawn::spawn(work.in_current_span());
    let running = |message, ended| Ok(Once::First(Running { message, steps, ended }));
    tokio::select! {
        biased;
        Ok(message) = begun => running(message, ended),
        end = &mut ended => Ok(Once::Known(end.unwrap_or_else(|_panicked| Err(over()))?)),
    }
}

/// Runs the steps that it is sent, until it is sent the outcome.
async fn steps_of<S: Store>(mut to_do: mpsc::Receiver<Step<S>>, tx: &mut Tx<'_, S>) -> Result<ResultBody, WorkError> {
    while let Some(step) = to_do.recv().await {
        match step {
            Step::Do(step) => step(tx).await,
            Step::End(outcome) => return outcome,
        }
    }
    Err(WorkError::from("the operation was given up"))
}
