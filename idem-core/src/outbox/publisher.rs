//! [`EventPublisher`], which sends events to a broker or an endpoint.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    error::{BoxError, SourceError},
    outbox::{
        limits::{DestinationLimits, EVENT_RETRY},
        rows::OutgoingEvent,
    },
    retry::RetryPolicy,
};

/// How a relay gives events to a publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dispatch {
    /// In batches, the next one once all events of the last have an answer: for a broker, which treats all events alike.
    Batches {
        /// The most events of a batch.
        events_max: usize,
    },
    /// Each event by itself, so that a slow one delays no other: for endpoints of different owners.
    Each {
        /// The most events at once.
        at_once: usize,
    },
}

/// Why an event was not confirmed. Its text never holds a payload or a header's value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The destination did not confirm it now: it is unreachable, too slow, or said so.
    #[error("the destination has not confirmed the event")]
    Later {
        /// The problem.
        #[source]
        source: BoxError,
        /// Whether the destination may have received it nevertheless.
        may_be_sent: bool,
        /// When the destination wants the next try, if it said so.
        after: Option<Duration>,
        /// Whether this try counts. A try that was not made, because the destination was busy, does not.
        counted: bool,
    },
    /// The destination accepts nothing until a person acts: it does not exist, or rights are missing. All of its events wait, and
    /// none is charged an attempt.
    #[error("{problem}. {cure}")]
    Refused {
        /// The problem, with the destination's name.
        problem: String,
        /// The cure.
        cure: String,
    },
    /// The destination can never accept this event. It waits for a person.
    #[error("{problem}")]
    DoesNotFit {
        /// The reason.
        problem: String,
    },
}

impl EventError {
    /// The destination did not answer, or could not accept the event now. It may have received it nevertheless.
    pub fn unconfirmed(source: impl Into<BoxError>) -> Self {
        Self::Later { source: source.into(), may_be_sent: true, after: None, counted: true }
    }

    /// The event was certainly not sent.
    pub fn not_sent(source: impl Into<BoxError>) -> Self {
        Self::Later { source: source.into(), may_be_sent: false, after: None, counted: true }
    }

    /// The same failure, but caused by the destination and not by the event, such as an outage: it does not count as an attempt.
    #[must_use]
    pub fn uncounted(self) -> Self {
        match self {
            Self::Later { source, may_be_sent, after, counted: _ } => {
                Self::Later { source, may_be_sent, after, counted: false }
            }
            Self::Refused { .. } | Self::DoesNotFit { .. } => self,
        }
    }
}

impl From<SourceError> for EventError {
    /// An unreachable broker is an outage, whether or not it received the event.
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Unavailable { .. } => Self::unconfirmed(error).uncounted(),
            SourceError::Refused { problem, cure } => Self::Refused { problem, cure },
            SourceError::DoesNotFit { problem, cure } => Self::DoesNotFit { problem: format!("{problem}. {cure}") },
        }
    }
}

/// Sends events to a destination.
#[async_trait]
pub trait EventPublisher: Send + Sync + 'static {
    /// Publishes these events, in this order, and waits until each is confirmed or refused. Returns one answer for each event, in
    /// order. No two of them share an ordering key, unless the publisher [keeps order](Self::keeps_order).
    ///
    /// # Cancel safety
    /// A call that has not returned at the relay's deadline is dropped. Its events count as possibly sent, and
    /// [`purge`](Self::purge) is called.
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>>;

    /// How a relay hands events to this publisher. Defaults to batches of a thousand.
    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: 1_000 }
    }

    /// The attempts of an event, and the waits between them, unless its route sets others. Only failures that
    /// [count](EventError::Later::counted) are attempts. Defaults to 10, with waits from 200 ms to 5 min.
    fn retry(&self) -> RetryPolicy {
        EVENT_RETRY
    }

    /// Whether a failed event also fails the events of its ordering key that were handed over after it. If not, the relay gives
    /// the publisher at most one unconfirmed event of an ordering key at a time.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Looks whether the destination is there, and sends nothing. A relay asks once, at its start, so that a name that is wrong is
    /// warned of before the first event. Defaults to no look.
    ///
    /// # Errors
    /// [`EventError::Refused`] where a person must act; no other error is warned of.
    ///
    /// # Cancel safety
    /// A call that has not returned within five seconds is dropped.
    async fn look(&self) -> Result<(), EventError> {
        Ok(())
    }

    /// What the destination is and takes, which workers that have no relay then know too: they refuse an event in its handler's
    /// transaction that could never be sent. A relay asks once, at its start. Defaults to nothing.
    ///
    /// # Cancel safety
    /// A call that has not returned within five seconds is dropped.
    async fn limits(&self) -> Option<DestinationLimits> {
        None
    }

    /// Drops the events that a client library would still send on its own after the call was dropped.
    async fn purge(&self) {}
}
