//! The answer to each decision.

use std::time::Duration;

use http::StatusCode;
use idem_core::{
    Decision, DedupConsumer, Message, Store,
    consumer::Decided,
    consumer::{Failure, Keep, SetAside},
    dead_letter::Reason,
};

/// An answer to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// When the sender is to try again.
    pub(super) after: Option<Duration>,
    /// A text for the sender's log.
    pub(super) text: &'static str,
    /// How the delivery ended, for metrics.
    pub(super) outcome: &'static str,
}

impl Reply {
    pub(super) const fn new(status: StatusCode, outcome: &'static str, text: &'static str) -> Self {
        Self { status, after: None, text, outcome }
    }

    /// Asks the sender to try again.
    pub(super) const fn later(seconds: u64, outcome: &'static str, text: &'static str) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, after: Some(Duration::from_secs(seconds)), text, outcome }
    }
}

const HELD: Reply = Reply::later(2, "busy", "another delivery of it is being handled");
const FAILED: Reply = Reply::later(10, "failed-for-now", "it could not be handled now");
pub(super) const DOWN: Reply = Reply::later(10, "unavailable", "it cannot be recorded now");
const NOT_KEPT: Reply = Reply::later(3_600, "unkeepable", "it cannot be handled, and not be kept either");

/// Hands the message to the consumer, keeps a message that can never be handled, and gives the answer for the sender.
pub(super) async fn decide<S: Store>(consumer: &DedupConsumer<S>, message: Message) -> Reply {
    let decided = match consumer.process([message]).await {
        Ok(mut decided) => decided.pop(),
        Err(error) => {
            tracing::error!(idem.consumer = %consumer.name(), error = &error as &dyn std::error::Error, "an event cannot be taken in");
            return DOWN;
        }
    };
    let Some(Decided { message, decision, .. }) = decided else { return FAILED };
    match &decision {
        Decision::Processed(_) => Reply::new(StatusCode::OK, "handled", "handled"),
        Decision::Duplicate(..) => Reply::new(StatusCode::OK, "duplicate", "handled before"),
        Decision::Busy => HELD,
        Decision::Conflict(..) => kept(consumer, &message, &decision).await,
        Decision::Failed(failure) if is_malformed(failure) => malformed(consumer, &message, &decision).await,
        Decision::Failed(failure) => {
            tracing::warn!(idem.consumer = %consumer.name(), idem.key = message.key().map(tracing::field::display), error = %failure, "an event failed");
            match failure.comes_again() {
                true => Reply { after: failure.retry_after.or(FAILED.after), ..FAILED },
                false => kept(consumer, &message, &decision).await,
            }
        }
        // A decision of a later release has an unknown meaning, so the sender keeps the message.
        _ => FAILED,
    }
}

/// Whether the sender is at fault.
fn is_malformed(failure: &Failure) -> bool {
    matches!(failure.reason, Reason::Malformed | Reason::MissingKey | Reason::TooLarge) && !failure.comes_again()
}

/// Keeps the message as a dead letter, so that the sender may forget it; if that fails, the sender keeps it.
async fn kept<S: Store>(consumer: &DedupConsumer<S>, message: &Message, decision: &Decision) -> Reply {
    match consumer.set_aside(message, decision, Keep::Payload).await {
        Ok(SetAside::Whole) => Reply::new(StatusCode::OK, "dead-lettered", "kept for a person to look at"),
        Ok(SetAside::Facts | SetAside::NoRoom) => NOT_KEPT,
        // A set-up error.
        Ok(SetAside::Nothing) => FAILED,
        Err(error) => {
            tracing::error!(idem.consumer = %consumer.name(), error = &error as &dyn std::error::Error, "an event cannot be set aside");
            DOWN
        }
    }
}

/// Refuses the message as malformed, which leaves the payload with the sender. A note of it is kept here.
async fn malformed<S: Store>(consumer: &DedupConsumer<S>, message: &Message, decision: &Decision) -> Reply {
    if let Err(error) = consumer.set_aside(message, decision, Keep::Facts).await {
        tracing::error!(idem.consumer = %consumer.name(), error = &error as &dyn std::error::Error, "a malformed event cannot be noted");
    }
    Reply::new(StatusCode::BAD_REQUEST, "malformed", "malformed")
}
