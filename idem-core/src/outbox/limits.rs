//! [`DestinationLimits`], what a destination takes.

use std::time::Duration;

use crate::{retry::RetryPolicy, setters::setters};

/// How long receivers remember the ids of events, unless the route has another time: the default retention of a consumer.
pub const RECEIVER_KEEPS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The attempts of an event that its destination refuses, and the waits between them, unless the publisher or the route sets
/// others. An outage does not count as an attempt.
pub const EVENT_RETRY: RetryPolicy = RetryPolicy::new(10, Duration::from_millis(200), Duration::from_secs(5 * 60));

/// What a destination is, and how large its messages may be, as the [publisher](super::EventPublisher::limits) of its relay knows. The
/// relay leaves it in the destination's row, so that workers know it that have no relay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DestinationLimits {
    /// The kind of destination, in one word, such as `sqs`.
    pub kind: String,
    /// The largest message that it can ever take, in bytes; `None` where nobody knows.
    pub message_bytes_max: Option<u64>,
    /// Whether the payload of events that have a type goes there with the attributes around it.
    pub is_structured: bool,
}

impl DestinationLimits {
    /// A destination of this kind. How large its messages may be is not known.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), message_bytes_max: None, is_structured: false }
    }

    setters! {
        /// Sets the largest message, in bytes.
        message_bytes_max: Option<u64>,
        /// Sets whether events are sent in structured mode.
        is_structured: bool,
    }
}
