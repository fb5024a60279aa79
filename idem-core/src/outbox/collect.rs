//! Collects the events and results of handlers, which are appended to the unit before its seal.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

use crate::{
    bugs::{self, Bug},
    derive::derived_id,
    error::ErrorClass,
    handler_error::HandlerError,
    key::KEY_FIELD,
    message::{Message, headers::Headers},
    names::{IdempotencyKey, OrderingKey, Tenant},
    outbox::event::{Destination, Event, EventId, PublishError},
    results::result::{REFERENCE_BYTES_MAX, ResultBody},
    telemetry::{
        spans,
        trace_context::{TRACEPARENT, TRACESTATE, TraceContext},
    },
};

/// The largest [status](ResultBody::status) of a result: the largest number of its column.
const STATUS_MAX: u16 = i16::MAX.unsigned_abs();

/// The limits of one consumer's events and results.
#[derive(Debug, Clone)]
pub(crate) struct PublishRules {
    pub(crate) destinations: Vec<Destination>,
    /// The most events of one message.
    pub(crate) events_max: usize,
    /// The most bytes in payloads, headers and ordering keys of one message's events.
    pub(crate) events_bytes_max: usize,
    /// The largest result; `None` if no results are kept.
    pub(crate) result_bytes_max: Option<usize>,
}

/// The most events of one message, unless the consumer has another limit.
pub(crate) const EVENTS_MAX: usize = 64;

/// The most bytes of one message's events, unless the consumer has another limit.
pub(crate) const EVENTS_BYTES_MAX: usize = 4 << 20;

impl Default for PublishRules {
    fn default() -> Self {
        Self {
            destinations: Vec::new(),
            events_max: EVENTS_MAX,
            events_bytes_max: EVENTS_BYTES_MAX,
            result_bytes_max: None,
        }
    }
}

impl PublishRules {
    /// Refuses a result that is not kept, too large, or has what not every store can hold.
    pub(crate) fn check_result(&self, result: &ResultBody) -> Result<(), PublishError> {
        let max = self.result_bytes_max.ok_or(PublishError::NoResults)?;
        if let Some(bytes) = result.reference.as_deref().map(str::len).filter(|bytes| *bytes > REFERENCE_BYTES_MAX) {
            return Err(PublishError::ReferenceTooLong { bytes });
        }
        check_columns(result)?;
        let bytes = result.bytes();
        if bytes > max { Err(PublishError::ResultTooLarge { bytes, max }) } else { Ok(()) }
    }
}

/// An event that a handler has published.
#[derive(Debug)]
pub(crate) struct Collected {
    /// Its place among the consumer's destinations.
    pub(crate) destination: usize,
    pub(crate) key: IdempotencyKey,
    pub(crate) event: Event,
    /// The span that published it, where spans are exported.
    pub(crate) trace: Option<TraceContext>,
}

/// Refuses what a column of PostgreSQL cannot hold, on every store and before anything is written.
fn check_columns(result: &ResultBody) -> Result<(), PublishError> {
    if let Some(status) = result.status.filter(|status| *status > STATUS_MAX) {
        return Err(PublishError::invalid("the status of the result", &status.to_string(), "at most 32767"));
    }
    for (what, text) in
        [("the content type of the result", &result.content_type), ("the reference of the result", &result.reference)]
    {
        if let Some(text) = text.as_deref().filter(|text| text.contains('\0')) {
            return Err(PublishError::invalid(what, text, "a NUL character cannot be stored"));
        }
    }
    Ok(())
}

/// All events and the result of one message's handler.
#[derive(Debug, Default)]
pub(crate) struct HandedIn {
    pub(crate) events: Vec<Collected>,
    pub(crate) result: Option<ResultBody>,
    /// Whether the result is an error, which replaces all effects.
    pub(crate) is_error: bool,
    /// Whether what handed it in cannot run again.
    pub(crate) runs_once: bool,
    /// The error of a statement after which the work went on.
    pub(crate) noted: Option<HandlerError>,
    bytes: usize,
}

impl HandedIn {
    /// An error that is the outcome of the operation.
    pub(crate) fn of_error(result: ResultBody) -> Self {
        Self { result: Some(result), is_error: true, ..Self::default() }
    }

    /// Takes the result out, for a planted bug.
    #[cfg(idem_bugs)]
    pub(crate) fn result_apart(&mut self) -> Self {
        Self { result: self.result.take(), is_error: self.is_error, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.result.is_none()
    }
}

/// The events and results of one call of a handler. All copies of the call's [`Tx`](crate::Tx) share it. It only buffers: the
/// events of a failed call are dropped with it.
#[derive(Debug)]
pub(crate) struct Collector<'m> {
    rules: Rules<'m>,
    messages: Messages<'m>,
    buffer: Mutex<Buffer>,
}

#[derive(Debug)]
enum Rules<'m> {
    Lent(&'m PublishRules),
    Own(Arc<PublishRules>),
}

impl Deref for Rules<'_> {
    type Target = PublishRules;

    fn deref(&self) -> &PublishRules {
        match self {
            Self::Lent(rules) => rules,
            Self::Own(rules) => rules,
        }
    }
}

#[derive(Debug)]
enum Messages<'m> {
    One(&'m Message),
    Many(&'m [&'m Message]),
    /// Of an operation, which is held as a value.
    Own(Message),
}

impl Collector<'static> {
    /// A buffer for an operation, which is held as a value.
    pub(crate) fn of_operation(rules: Arc<PublishRules>, message: Message) -> Self {
        Self { rules: Rules::Own(rules), messages: Messages::Own(message), buffer: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Buffer {
    /// By the place of the message in the call. Empty until a handler publishes, so that a call without events allocates nothing.
    by_message: Vec<HandedIn>,
    refused: Option<PublishError>,
    runs_once: bool,
    noted: Option<HandlerError>,
}

impl<'m> Collector<'m> {
    /// A buffer for a call with one message.
    pub(crate) fn of_one(rules: &'m PublishRules, message: &'m Message) -> Self {
        Self::new(rules, Messages::One(message))
    }

    /// A buffer for a call with several messages.
    pub(crate) fn of_many(rules: &'m PublishRules, messages: &'m [&'m Message]) -> Self {
        Self::new(rules, Messages::Many(messages))
    }

    fn new(rules: &'m PublishRules, messages: Messages<'m>) -> Self {
        Self { rules: Rules::Lent(rules), messages, buffer: Mutex::default() }
    }

    /// The message of the call, if there is only one.
    pub(crate) fn message(&self) -> Option<&Message> {
        match &self.messages {
            Messages::One(message) => Some(message),
            Messages::Own(message) => Some(message),
            Messages::Many(_) => None,
        }
    }

    pub(crate) fn publish(&self, message: &Message, event: Event) -> Result<EventId, PublishError> {
        self.noted(|buffer| self.add_event(buffer, message, event))
    }

    pub(crate) fn set_result(&self, message: &Message, result: ResultBody) -> Result<(), PublishError> {
        self.noted(|buffer| {
            self.rules.check_result(&result)?;
            let place = self.place_of(message)?;
            self.at(buffer, place).result = Some(result);
            Ok(())
        })
    }

    pub(crate) fn runs_once(&self) {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner).runs_once = true;
    }

    /// Notes an error. One that may pass is not replaced by another.
    pub(crate) fn note_error(&self, error: HandlerError) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.noted.as_ref().is_none_or(|noted| noted.class() == Some(ErrorClass::Permanent)) {
            buffer.noted = Some(error);
        }
    }

    /// Keeps a refusal: a handler that ignores it must not commit its effect without the event.
    fn noted<T>(&self, hand_in: impl FnOnce(&mut Buffer) -> Result<T, PublishError>) -> Result<T, PublishError> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        hand_in(&mut buffer).inspect_err(|error| {
            buffer.refused.get_or_insert_with(|| error.clone());
        })
    }

    fn add_event(&self, buffer: &mut Buffer, message: &Message, event: Event) -> Result<EventId, PublishError> {
        let place = self.place_of(message)?;
        let (tenant, consumer, cause) = message.cause().ok_or(PublishError::Unprotected)?;
        let name = &*event.destination;
        let destination = self.rules.destinations.iter().position(|declared| declared.name == name);
        let destination =
            destination.ok_or_else(|| PublishError::UnknownDestination { destination: name.to_owned() })?;
        let declared = &self.rules.destinations[destination];
        let (bytes, max) = (event.payload.len(), declared.payload_bytes_max);
        if bytes > max {
            return Err(PublishError::TooLarge { destination: name.to_owned(), bytes, max });
        }
        event.check()?;
        let key = if event.same_key {
            of_tenant(tenant, cause)?
        } else {
            let parts = [tenant.as_str(), consumer.as_str(), cause.as_str(), name, &*event.label];
            let id = if bugs::planted(Bug::RandomId) {
                uuid::Uuid::from_u128(fastrand::u128(..))
            } else {
                derived_id(std::iter::once(b"idem:event:v1".as_slice()).chain(parts.map(str::as_bytes)))
            };
            let text = declared.id_form.text(id);
            IdempotencyKey::new(&text).map_err(|_| PublishError::invalid("id", &text, "it must be a key"))?
        };
        let handed_in = self.at(buffer, place);
        if handed_in.events.iter().any(|other| other.destination == destination && other.key == key) {
            let (destination, label) = (name.to_owned(), event.label.to_string());
            return Err(PublishError::Repeated { destination, label });
        }
        handed_in.bytes += event.payload.len() + event.bytes_beside_the_payload();
        for (what, is, max) in [
            ("events", handed_in.events.len() + 1, self.rules.events_max),
            ("bytes", handed_in.bytes, self.rules.events_bytes_max),
        ] {
            if is > max {
                return Err(PublishError::TooMany { what, max });
            }
        }
        handed_in.events.push(Collected { destination, key: key.clone(), event, trace: spans::current() });
        Ok(EventId(key))
    }

    /// Messages are found by key, so a clone of one works: a unit holds no key twice.
    fn place_of(&self, message: &Message) -> Result<usize, PublishError> {
        let Some(cause) = message.cause() else {
            let is_unprotected = self.message().is_some_and(|own| own.cause().is_none());
            return Err(if is_unprotected { PublishError::Unprotected } else { PublishError::OtherMessage });
        };
        let is_it = |own: &Message| own.cause() == Some(cause);
        let place = match &self.messages {
            Messages::One(own) => is_it(own).then_some(0),
            Messages::Own(own) => is_it(own).then_some(0),
            Messages::Many(all) => all.iter().position(|own| is_it(own)),
        };
        place.ok_or(PublishError::OtherMessage)
    }

    fn at<'b>(&self, buffer: &'b mut Buffer, place: usize) -> &'b mut HandedIn {
        if buffer.by_message.is_empty() {
            let messages = match &self.messages {
                Messages::One(_) | Messages::Own(_) => 1,
                Messages::Many(all) => all.len(),
            };
            buffer.by_message.resize_with(messages, HandedIn::default);
        }
        &mut buffer.by_message[place]
    }

    /// The error of a statement that the work has noted.
    pub(crate) fn noted_error(self) -> Option<HandlerError> {
        self.buffer.into_inner().unwrap_or_else(PoisonError::into_inner).noted
    }

    /// The events and results, by the place of the message in the call; a message without any has no entry.
    pub(crate) fn finish(self) -> Result<Vec<HandedIn>, PublishError> {
        let buffer = self.buffer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Buffer { mut by_message, refused, runs_once, noted } = buffer;
        by_message.iter_mut().for_each(|handed_in| handed_in.runs_once = runs_once);
        if let Some(handed_in) = by_message.first_mut() {
            handed_in.noted = noted;
        }
        match refused {
            None => Ok(by_message),
            Some(refused) => Err(refused),
        }
    }
}

/// The key of an event that has the key of its message: joined with the tenant, where there is one, because receivers know an event by its key
/// alone and two tenants may send the same key (O108). As for a request, the length keeps the two apart, and what is too long is hashed.
fn of_tenant(tenant: &Tenant, key: &IdempotencyKey) -> Result<IdempotencyKey, PublishError> {
    let tenant = tenant.as_str();
    if tenant.is_empty() {
        return Ok(key.clone());
    }
    let joined = format!("{}:{tenant} {}", tenant.len(), key.as_str());
    let hashed = || IdempotencyKey::new(&format!("sha256:{}", hex::encode(Sha256::digest(&joined))));
    let key = IdempotencyKey::new(&joined).or_else(|_| hashed());
    key.map_err(|_| PublishError::invalid("key", &joined, "it must be a key"))
}

/// The header that names the first cause of an event: the key of the message at the beginning of a chain of consumers. It is
/// copied from the handled message, or is that message's key, as its sender gave it, if it has no such header.
pub const CAUSE: &str = "idemcause";

/// The header of an event that names the key of the message whose handler published it, as its sender gave it.
pub const CAUSED_BY: &str = "idemcausedby";

/// The largest `tracestate` that is passed on: the least that the recommendation (W3C Trace Context, 3.3.1.5) asks for.
const TRACESTATE_BYTES_MAX: usize = 512;

/// The headers that are stored with an event: the handler's own, the causes, and the trace of the span that handled the message, or of
/// the message itself where no spans are exported. What the message's sender wrote is passed on only where it is well formed: the event
/// must not fail at its destination for a header that its handler never saw.
pub(crate) fn headers(event: &Event, message: &Message, trace: Option<TraceContext>) -> Headers {
    let incoming = message.headers();
    let key = message.senders_key();
    let mut headers = event.headers.clone();
    let first = incoming.text(CAUSE).filter(|cause| IdempotencyKey::new(cause).is_ok());
    headers.push(CAUSE, Some(first.unwrap_or(key).to_owned().into()));
    headers.push(CAUSED_BY, Some(key.to_owned().into()));
    let is_own = |name: &str| event.headers.text(name).is_some();
    let sender = TraceContext::of(message);
    let parent = match trace {
        Some(own) => Some(own.to_string()),
        None => sender.and_then(|_| incoming.text(TRACEPARENT)).map(str::to_owned),
    };
    if let (Some(parent), false) = (parent, is_own(TRACEPARENT)) {
        // What the systems of another trace added says nothing of this one.
        let is_one = trace.is_none_or(|own| sender.is_some_and(|sender| sender.trace_id == own.trace_id));
        let is_passed =
            |value: &&str| value.len() <= TRACESTATE_BYTES_MAX && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let state = incoming.text(TRACESTATE).filter(is_passed).filter(|_| is_one && !is_own(TRACESTATE));
        headers.push(TRACEPARENT, Some(parent.into()));
        if let Some(state) = state {
            headers.push(TRACESTATE, Some(state.to_owned().into()));
        }
    }
    debug_assert!(event.headers.text(KEY_FIELD).is_none(), "refused by Event::check");
    headers
}

pub(crate) fn ordering_key(event: &Event) -> Option<OrderingKey> {
    event.ordering_key.clone().map(OrderingKey::new)
}
