//! [`Event`], a message that a handler publishes, and [`Destination`], where it goes.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;

use crate::{
    config_error::ConfigError,
    derive::IdForm,
    key::KEY_FIELD,
    message::headers::Headers,
    names::{IdempotencyKey, KEY_BYTES_MAX},
    results::result::REFERENCE_BYTES_MAX,
    setters::setters,
};

/// The longest name of a destination, in bytes: the URL of a queue is one.
pub const DESTINATION_BYTES_MAX: usize = 500;

/// The largest payload of an event, in bytes, unless its destination has another limit. Kafka and SQS accept it by default.
pub const EVENT_PAYLOAD_BYTES_MAX: usize = 1_000_000;

/// The longest ordering key of an event, in bytes. Relays find what waits behind a failed event by an index, and PostgreSQL indexes
/// nothing above 2,704 bytes: the outcome of such an event could not be noted, and its destination would stand still (O82).
pub const ORDERING_KEY_BYTES_MAX: usize = 1_024;

/// A destination of events: a name, and the form and size of its events. The relay knows the topic, queue or endpoint behind
/// the name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Destination {
    /// The name, of 1 to 500 bytes without control characters.
    pub name: String,
    /// The form of its events' ids. Fixed when the destination is first declared. Defaults to [`IdForm::V8`].
    pub id_form: IdForm,
    /// The largest payload of an event for it, in bytes. A larger one is refused when the handler publishes it, because the
    /// broker would never accept it. Defaults to 1,000,000.
    pub payload_bytes_max: usize,
}

impl Destination {
    /// A destination of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), id_form: IdForm::default(), payload_bytes_max: EVENT_PAYLOAD_BYTES_MAX }
    }

    setters! {
        /// Sets the form of its events' ids.
        id_form: IdForm,
        /// Sets the largest payload of an event for it, in bytes.
        payload_bytes_max: usize,
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let is_fine =
            (1..=DESTINATION_BYTES_MAX).contains(&self.name.len()) && !self.name.chars().any(char::is_control);
        let rule = "the name of a destination has 1 to 500 bytes without control characters";
        if is_fine { Ok(()) } else { Err(ConfigError::new("publish_to", format!("{:?}", self.name), rule)) }
    }
}

impl From<&str> for Destination {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Destination {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// The id of a published event, which its receivers get as its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) IdempotencyKey);

impl EventId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<EventId> for IdempotencyKey {
    fn from(id: EventId) -> Self {
        id.0
    }
}

/// A message that a handler publishes: [`Tx::publish`](crate::Tx::publish) puts it into the outbox, in the handler's
/// transaction, and a relay sends it to its destination.
///
/// ```
/// use idem_core::Event;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let event = Event::to("payments").event_type("PaymentCharged").ordering_key("account-7").json(&("account-7", 1177))?;
/// # let _ = event;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Event {
    pub(super) destination: Box<str>,
    pub(super) label: Box<str>,
    pub(super) same_key: bool,
    pub(super) ordering_key: Option<Bytes>,
    pub(super) event_type: Option<Box<str>>,
    pub(super) content_type: Option<Box<str>>,
    pub(super) headers: Headers,
    pub(super) payload: Bytes,
}

impl Event {
    /// An event for this destination, which the consumer has
    /// [declared](crate::consumer::DedupConsumerBuilder::publish_to). It has no payload yet.
    pub fn to(destination: &str) -> Self {
        Self {
            destination: destination.into(),
            label: Box::default(),
            same_key: false,
            ordering_key: None,
            event_type: None,
            content_type: None,
            headers: Headers::default(),
            payload: Bytes::new(),
        }
    }

    /// The name of the destination.
    #[must_use]
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Sets the label that distinguishes it from another event of the same message for the same destination. Both events need
    /// labels, and the labels must stay the same in all versions of the handler, because the ids are derived from them.
    pub fn label(mut self, label: &str) -> Self {
        self.label = label.into();
        self
    }

    /// Gives it the key of the handled message in place of a derived one, for a handler that forwards a message unchanged. Only
    /// one event of a message for a destination can have it.
    ///
    /// A consumer with tenants joins the tenant with the key, as in `4:acme order-1`, and a request over HTTP has tenant, route and the client's
    /// key in one. Two tenants may send the same key, and a receiver that knows keys alone would take the second event for a copy of the
    /// first. A joined key of more than 255 bytes is `sha256:` and the digest of that text.
    pub fn same_key(mut self) -> Self {
        self.same_key = true;
        self
    }

    /// Sets the ordering key, of at most 1,024 bytes: events with the same one stay in order at their destination. On Kafka it becomes
    /// the record's key. A longer one is refused when the event is published.
    ///
    /// Pass a literal or an owned key. A borrowed one does not compile ("must outlive 'static"): write `ordering_key(parcel.to_owned())`.
    pub fn ordering_key(mut self, key: impl Into<Bytes>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Sets the kind of event, by which receivers distinguish events: the `type` of a CloudEvent.
    pub fn event_type(mut self, event_type: &str) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// The media type of the payload.
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Appends a header. Reserved names are refused when the event is published: `idempotencykey`, and names that begin with
    /// `idem`, `ce_`, `ce-` or `cloudEvents`.
    pub fn header(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, Some(value.into()));
        self
    }

    /// The payload.
    pub fn body(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets the payload to this value as JSON, and the media type to that of JSON.
    ///
    /// # Errors
    /// If JSON cannot represent the value, such as a map whose keys are not text.
    pub fn json(self, value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(self.content_type("application/json").body(serde_json::to_vec(value)?))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the payload nor the value of a header (S4).
        f.debug_struct("Event")
            .field("destination", &self.destination)
            .field("label", &self.label)
            .field("event_type", &self.event_type)
            .field("headers", &self.headers)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}

/// Why an event or a result was refused. After a refusal the handler's unit cannot commit, whatever the handler answers,
/// because its effect must not be committed without the event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The consumer has not declared the destination.
    #[error("destination {destination:?} is not declared: add it to .publish_to([…]) of the consumer")]
    UnknownDestination {
        /// Its name.
        destination: String,
    },
    /// The message is not one of those in this call of the handler.
    #[error("the message is none of those that this call handles: publish for the message that was handed in")]
    OtherMessage,
    /// The message's type opted out of protection, so there is no record to commit the event with.
    #[error("the message is of an unprotected type and has no record: its handler cannot publish or keep a result")]
    Unprotected,
    /// An event with the same id was published for this message already.
    #[error(
        "a second event {label:?} for destination {destination:?}: give each event of a message a label of its own, and only one of them .same_key()"
    )]
    Repeated {
        /// The destination.
        destination: String,
        /// The label that both have.
        label: String,
    },
    /// The payload is larger than the destination allows.
    #[error("the payload has {bytes} bytes, and destination {destination:?} takes {max}")]
    TooLarge {
        /// The destination.
        destination: String,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The message has published more events or bytes than allowed.
    #[error("the message publishes more than {max} {what}: .events_max(…) and .events_bytes_max(…) set the limits")]
    TooMany {
        /// `events` or `bytes`.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A name or a value that brokers do not allow, that idem reserves, or that no column can hold.
    #[error("{what} {value:?} is refused: {rule}")]
    Invalid {
        /// The part of the event or of the result.
        what: &'static str,
        /// The value, cut after 100 characters; never the payload.
        value: String,
        /// The rule for it.
        rule: &'static str,
    },
    /// The consumer keeps no results.
    #[error("this consumer keeps no results: build it with .keep_results(…)")]
    NoResults,
    /// The result is larger than the limit.
    #[error("the result has {bytes} bytes, and {max} are allowed: .keep_results(…) sets the limit")]
    ResultTooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The reference of a result is longer than [`REFERENCE_BYTES_MAX`](crate::results::REFERENCE_BYTES_MAX).
    #[error(
        "the reference of the result has {bytes} bytes, and {REFERENCE_BYTES_MAX} are allowed: leave it out, or use a shorter one"
    )]
    ReferenceTooLong {
        /// Its size in bytes.
        bytes: usize,
    },
}

impl PublishError {
    pub(crate) fn invalid(what: &'static str, value: &str, rule: &'static str) -> Self {
        Self::Invalid { what, value: value.chars().take(100).collect(), rule }
    }

    /// The cause, for the group of the dead letter.
    pub(crate) const fn cause(&self) -> &'static str {
        match self {
            Self::UnknownDestination { .. } => "unknown-destination",
            Self::OtherMessage => "other-message",
            Self::Unprotected => "unprotected",
            Self::Repeated { .. } => "event-repeated",
            Self::TooLarge { .. } => "event-too-large",
            Self::TooMany { .. } => "too-many-events",
            Self::Invalid { .. } => "event-invalid",
            Self::NoResults => "no-results",
            Self::ResultTooLarge { .. } => "result-too-large",
            Self::ReferenceTooLong { .. } => "reference-too-long",
        }
    }
}

/// Headers with these prefixes belong to idem or to CloudEvents.
const RESERVED: [&str; 4] = ["idem", "ce_", "ce-", "cloudevents"];

impl Event {
    /// The bytes of headers and ordering key, which the destination's limit of the payload leaves out.
    pub(super) fn bytes_beside_the_payload(&self) -> usize {
        self.headers.bytes() + self.ordering_key.as_ref().map_or(0, Bytes::len)
    }

    /// Refuses names and values that brokers do not allow.
    pub(super) fn check(&self) -> Result<(), PublishError> {
        let has_controls = |text: &str| text.chars().any(char::is_control);
        let invalid = PublishError::invalid;
        if self.label.len() > KEY_BYTES_MAX || has_controls(&self.label) {
            return Err(invalid("label", &self.label, "at most 255 bytes without control characters"));
        }
        if self.label.starts_with("idem:") {
            return Err(invalid("label", &self.label, "labels that begin with idem: are idem's own"));
        }
        if let Some(bytes) = self.ordering_key.as_ref().map(Bytes::len).filter(|bytes| *bytes > ORDERING_KEY_BYTES_MAX)
        {
            let size = format!("of {bytes} bytes");
            return Err(invalid("ordering key", &size, "at most 1,024 bytes: use a digest of a longer one"));
        }
        let rule = "1 to 255 bytes without control characters";
        for (what, text) in [("event type", &self.event_type), ("content type", &self.content_type)] {
            if let Some(text) = text
                && (text.is_empty() || text.len() > 255 || has_controls(text))
            {
                return Err(invalid(what, text, rule));
            }
        }
        for (name, value) in self.headers.iter() {
            if name.is_empty() || name.len() > 255 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(invalid("header", name, "a name has 1 to 255 visible characters of ASCII"));
            }
            let lower = name.to_ascii_lowercase();
            if lower == KEY_FIELD || RESERVED.iter().any(|reserved| lower.starts_with(reserved)) {
                return Err(invalid("header", name, "names of idem and of CloudEvents are set by idem"));
            }
            let value = value.map(std::str::from_utf8);
            if !matches!(value, None | Some(Ok(_))) || value.and_then(Result::ok).is_some_and(has_controls) {
                return Err(invalid("the value of header", name, "text without control characters"));
            }
        }
        Ok(())
    }
}
