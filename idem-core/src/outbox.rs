//! Messages out: the events that handlers publish are committed with their effects, and a relay brings each to its destination
//! under an id that is derived from the key of the message which caused it.
//!
//! Users need [`Event`] and [`Destination`], which the crate's root has too; the rest is for authors of stores and publishers.

mod cloud_events;
pub(crate) mod collect;
pub(crate) mod event;
pub(crate) mod limits;
pub(crate) mod publisher;
pub(crate) mod rows;

use sha2::{Digest, Sha256};

pub use self::{
    cloud_events::{CloudEvents, STRUCTURED, Wire},
    collect::{CAUSE, CAUSED_BY},
    event::{
        DESTINATION_BYTES_MAX, Destination, EVENT_PAYLOAD_BYTES_MAX, EventId, ORDERING_KEY_BYTES_MAX, PublishError,
    },
    limits::{DestinationLimits, EVENT_RETRY, RECEIVER_KEEPS},
    publisher::{Dispatch, EventError, EventPublisher},
    rows::{
        AppendError, Appended, Declared, DestinationId, EventEnd, EventName, EventNumber, EventState, LeaseRequest,
        Leased, NewEvent, Outbox, OutboxBacklog, OutgoingEvent, ParseEventNameError, StoredEvent, UNDER_WAY,
    },
};
pub use crate::derive::{IdForm, derived_id};

use crate::{
    hash::PayloadHash,
    message::{Message, headers::Headers},
    names::{IdempotencyKey, OrderingKey, ScopeId},
    outbox::event::Event,
    telemetry::trace_context::{TRACEPARENT, TRACESTATE},
};

impl NewEvent {
    /// The row of an event that the handler of `message` handed in.
    pub(crate) fn of(
        scope: ScopeId,
        ids: &[DestinationId],
        message: &Message,
        handed: collect::Collected,
    ) -> Option<Self> {
        let headers = collect::headers(&handed.event, message, handed.trace);
        Some(Self::row(scope, *ids.get(handed.destination)?, handed.key, handed.event, headers))
    }

    /// The row of an event under a key of the writer's own: a plain outbox, for code that has a transaction and no message.
    ///
    /// # Errors
    /// [`PublishError`] where no broker would carry it. Whether the destination takes so large a payload is not looked at.
    pub fn plain(
        scope: ScopeId,
        destination: DestinationId,
        key: IdempotencyKey,
        event: Event,
    ) -> Result<Self, PublishError> {
        event.check()?;
        let bytes = event.bytes_beside_the_payload();
        if bytes > collect::EVENTS_BYTES_MAX {
            let (size, rule) = (format!("of {bytes} bytes"), "at most 4 MiB: put what is large into the payload");
            return Err(PublishError::invalid("headers and ordering key", &size, rule));
        }
        let mut headers = event.headers.clone();
        headers.push(CAUSE, Some(key.as_str().to_owned().into()));
        Ok(Self::row(scope, destination, key, event, headers))
    }

    fn row(scope: ScopeId, destination: DestinationId, key: IdempotencyKey, event: Event, headers: Headers) -> Self {
        let ordering_key = collect::ordering_key(&event);
        let Event { event_type, content_type, payload, .. } = event;
        let mut hasher = Sha256::new();
        let mut part = |bytes: Option<&[u8]>| {
            // A part that is not there differs from one that is empty.
            hasher.update(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
            hasher.update(bytes.unwrap_or_default());
        };
        part(ordering_key.as_ref().map(OrderingKey::as_bytes));
        part(event_type.as_deref().map(str::as_bytes));
        part(content_type.as_deref().map(str::as_bytes));
        // The trace differs between two runs of one message.
        for (name, value) in headers.iter().filter(|(name, _)| ![TRACEPARENT, TRACESTATE].contains(name)) {
            part(Some(name.as_bytes()));
            part(value);
        }
        part(Some(&payload));
        let hash = PayloadHash::from_bytes(hasher.finalize().into());
        Self { scope, destination, key, ordering_key, event_type, content_type, headers, payload, hash }
    }
}

#[cfg(test)]
mod tests;
