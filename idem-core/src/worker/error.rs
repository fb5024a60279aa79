//! [`WorkerError`].

use std::time::Duration;

use crate::{
    error::{BoxError, SourceError, StoreError},
    relay::RelayError,
};

/// Why a worker ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The store refused; the text has the cure.
    #[error("the store refused")]
    Store(#[source] StoreError),
    /// The source refused; the text has the cure.
    #[error("the broker refused")]
    Source(#[source] SourceError),
    /// The database or the broker could not be reached, or did not answer as it must, for the start-up time-out.
    #[error("{what} could not be reached for {tried_for:?}")]
    Unreachable {
        /// Which of the two.
        what: &'static str,
        /// The start-up time-out.
        tried_for: Duration,
        /// The last error.
        #[source]
        source: BoxError,
    },
    /// Units that were running when the stop came did not end in time, and were given up with their transactions; their
    /// messages go back to the broker.
    #[error(
        "the drain deadline of {drain:?} passed with {in_flight} messages in flight; the broker delivers them again"
    )]
    DrainDeadline {
        /// The deadline.
        drain: Duration,
        /// Messages received and not settled.
        in_flight: usize,
    },
    /// The consumer was halted, and the run was to end when idle, which it never would.
    #[error("the consumer was halted; look at its audit trail, and resume it with `idem consumers resume`")]
    Halted,
    /// Its relay ended; the text has the cure.
    #[error("the relay of the worker ended")]
    Relay(#[source] RelayError),
    /// A task of the worker died.
    #[error("the task {task} of the worker died, which is a bug in idem; every unsettled message comes back")]
    TaskDied {
        /// Its name.
        task: &'static str,
    },
}
