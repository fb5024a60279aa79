//! [`DestinationLimits`], what a destination takes.

use crate::{
    outbox::{cloud_events::structured_bytes, rows::NewEvent},
    setters::setters,
};

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

    /// How many bytes the payload has on its way at least, where that is more than the destination can ever take. What goes beside it
    /// is not counted: only the publisher knows that.
    pub(crate) fn refuses(&self, event: &NewEvent) -> Option<usize> {
        let max = usize::try_from(self.message_bytes_max?).ok()?;
        let bytes = event.payload.len();
        if bytes > max {
            return Some(bytes);
        }
        // Whether it is JSON is looked at only where that decides.
        let grows = self.is_structured && event.event_type.is_some() && bytes.div_ceil(3) * 4 > max;
        let bytes = if grows { structured_bytes(event.content_type.as_deref(), &event.payload) } else { bytes };
        (bytes > max).then_some(bytes)
    }
}
