//! [`EventPublisher`]: what brings events to a broker or an endpoint.

use std::time::Duration;

use async_trait::async_trait;

use super::{relay::EVENT_RETRY, rows::OutgoingEvent};
use crate::{
    error::{BoxError, SourceError},
    retry::RetryPolicy,
};

/// How a relay gives events to a publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dispatch {
    /// Many at once, the next ones when all of them have been answered: a broker, which serves all events alike.
    Batches {
        /// How many at most.
        events_max: usize,
    },
    /// Each by itself, so that one that takes long holds no other back: endpoints of different owners.
    Each {
        /// How many at once at most.
        at_once: usize,
    },
}

/// Why an event was not confirmed. Its text never holds a payload or a header's value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The destination did not confirm it now: unreachable, too slow, or it said so.
    #[error("the destination has not confirmed the event")]
    Later {
        /// What happened.
        #[source]
        source: BoxError,
        /// Whether the destination may have it all the same.
        may_be_sent: bool,
        /// When it wants the next try, where it said so.
        after: Option<Duration>,
        /// Whether this try counts. One that was not made, because the destination was busy, does not.
        counted: bool,
    },
    /// The destination takes nothing before somebody changes something: it is not there, or the rights are missing. All of its
    /// events wait, and none is charged.
    #[error("{problem}. {cure}")]
    Refused {
        /// What is wrong, with the destination's name.
        problem: String,
        /// What to do.
        cure: String,
    },
    /// The destination can never take this event. It waits for a person.
    #[error("{problem}")]
    DoesNotFit {
        /// Why.
        problem: String,
    },
}

impl EventError {
    /// The destination did not answer, or said that it could not now. It may have the event all the same.
    pub fn unconfirmed(source: impl Into<BoxError>) -> Self {
        Self::Later { source: source.into(), may_be_sent: true, after: None, counted: true }
    }

    /// The event was certainly not sent.
    pub fn not_sent(source: impl Into<BoxError>) -> Self {
        Self::Later { source: source.into(), may_be_sent: false, after: None, counted: true }
    }

    /// The same failure as one that the destination is to blame for and not the event, such as an outage: it is no attempt.
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
    /// A broker that is away is an outage, whatever it did with the event.
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Unavailable { .. } => Self::unconfirmed(error).uncounted(),
            SourceError::Refused { problem, cure } => Self::Refused { problem, cure },
            SourceError::DoesNotFit { problem, cure } => Self::DoesNotFit { problem: format!("{problem}. {cure}") },
        }
    }
}

/// Brings events to where they go.
#[async_trait]
pub trait EventPublisher: Send + Sync + 'static {
    /// Publishes these, in this order, and waits until each is confirmed or refused: one answer an event, in order. No two of
    /// them have one ordering key, unless the publisher [keeps order](Self::keeps_order).
    ///
    /// # Cancel safety
    /// A call that has not answered at the relay's deadline is dropped, its events count as perhaps sent, and
    /// [`purge`](Self::purge) is called.
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>>;

    /// How a relay gives events to it. Defaults to batches of a thousand.
    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: 1_000 }
    }

    /// The attempts of an event, and the waits between them, unless its route says otherwise. Only failures that
    /// [count](EventError::Later::counted) are attempts. Defaults to 10, with waits from 200 ms to 5 min.
    fn retry(&self) -> RetryPolicy {
        EVENT_RETRY
    }

    /// Whether an event that fails takes those with it that were given behind it under its ordering key. Where it does not, at
    /// most one unconfirmed event of an ordering key is with the publisher at a time.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Drops what a client library would go on sending by itself after its call was dropped.
    async fn purge(&self) {}
}
