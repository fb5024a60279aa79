//! Where a message's idempotency key comes from, and what a key may look like.

mod cloud_event;

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::cloud_event::CloudEvent;
pub use crate::names::{
    KEY_BYTES_MAX, KeyError,
    shown::{KEY_SECRET_BYTES_MIN, KeySecret, hide_keys_with},
};
use crate::{
    json::{self, MemberError},
    message::Message,
    names::IdempotencyKey,
};

/// The name of the header, attribute or JSON member that carries the key.
pub const KEY_FIELD: &str = "idempotencykey";

/// Finds a message's idempotency key.
pub trait KeySource: Send + Sync + fmt::Debug + 'static {
    /// The key; `Ok(None)` where this message has none here.
    ///
    /// # Errors
    /// [`KeyError`] where there is a key and it is malformed. Never a partial key: with half of a key missing the
    /// answer is `Ok(None)`.
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError>;

    /// The key as far as it stands outside the payload: for a message that is too large to be looked into, so that its
    /// dead letter is found under its key. It must never be another key than [`key`](Self::key) finds. The default knows
    /// nothing, and is right for every source that may read the payload.
    fn outside_payload(&self, _message: &Message) -> OutsidePayload {
        OutsidePayload::Unknown
    }

    /// The rule as text, by which a consumer is bound at its first start: `header:idempotencykey`. Two rules that can
    /// find different keys must not share a text.
    fn rule(&self) -> String;
}

/// The key that a [`KeySource`] finds outside the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutsidePayload {
    /// The key.
    Key(IdempotencyKey),
    /// This source has no key for the message, whatever the payload holds.
    NoKey,
    /// The key may stand in the payload, or is malformed.
    Unknown,
}

/// Of a source that does not read the payload.
fn outside(found: Result<Option<IdempotencyKey>, KeyError>) -> OutsidePayload {
    match found {
        Ok(Some(key)) => OutsidePayload::Key(key),
        Ok(None) => OutsidePayload::NoKey,
        Err(_) => OutsidePayload::Unknown,
    }
}

impl<K: KeySource + ?Sized> KeySource for Arc<K> {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        (**self).key(message)
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        (**self).outside_payload(message)
    }

    fn rule(&self) -> String {
        (**self).rule()
    }
}

/// The default: the header and the JSON member `idempotencykey`, which must agree where both are present, else the
/// CloudEvents attributes.
#[must_use]
pub fn default_key_source() -> Arc<dyn KeySource> {
    let field = Agree(vec![Arc::new(Header::new(KEY_FIELD)), Arc::new(JsonMember::field(KEY_FIELD))]);
    Arc::new(FirstOf(vec![Arc::new(field), Arc::new(CloudEvent)]))
}

/// A header or attribute, by its exact name.
#[derive(Debug, Clone)]
pub struct Header(String);

impl Header {
    /// The header `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl KeySource for Header {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        let mut values = message.headers().all(&self.0);
        let Some(first) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(KeyError::Repeated { place: self.rule() });
        }
        let text = std::str::from_utf8(first.unwrap_or_default()).map_err(|_| KeyError::NotUtf8)?;
        IdempotencyKey::new(text).map(Some)
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        outside(self.key(message))
    }

    fn rule(&self) -> String {
        format!("header:{}", self.0)
    }
}

/// A string in a JSON payload, by JSON pointer (RFC 6901). A member that repeats beside any step of the pointer is
/// refused; one that is `null` counts as absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonMember {
    pointer: String,
    path: Vec<String>,
}

impl JsonMember {
    /// The member at `pointer`, such as `/order/id`; `None` where the pointer is malformed.
    #[must_use]
    pub fn at(pointer: &str) -> Option<Self> {
        let path = json::pointer(pointer).filter(|path| !path.is_empty())?;
        Some(Self { pointer: pointer.to_owned(), path })
    }

    /// The member `name` at the top level.
    #[must_use]
    pub fn field(name: &str) -> Self {
        let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        Self { pointer, path: vec![name.to_owned()] }
    }

    pub(crate) fn pointer(&self) -> &str {
        &self.pointer
    }

    /// The text that stands there; `None` where the payload has none, or null.
    pub(crate) fn text(&self, message: &Message) -> Result<Option<String>, MemberError> {
        message.payload().map_or(Ok(None), |payload| json::text_at(payload, &self.path))
    }
}

impl KeySource for JsonMember {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        match self.text(message) {
            Ok(Some(text)) => IdempotencyKey::new(&text).map(Some),
            Ok(None) => Ok(None),
            Err(MemberError::NotJson) => Err(KeyError::NotJson { place: self.rule() }),
            Err(MemberError::Repeated) => Err(KeyError::Repeated { place: self.rule() }),
            Err(MemberError::NotText) => Err(KeyError::NotText { place: self.rule() }),
        }
    }

    fn rule(&self) -> String {
        format!("json:{}", self.pointer)
    }
}

/// The broker's record key (Kafka), where it is UTF-8.
#[derive(Debug, Clone, Copy)]
pub struct RecordKey;

impl KeySource for RecordKey {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        let Some(key) = message.record_key() else { return Ok(None) };
        let text = std::str::from_utf8(key).map_err(|_| KeyError::NotUtf8)?;
        IdempotencyKey::new(text).map(Some)
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        outside(self.key(message))
    }

    fn rule(&self) -> String {
        "record-key".to_owned()
    }
}

/// The message id that the broker or the producer's library set.
///
/// A weaker key, to be chosen on purpose: a producer that sends again, a dead letter that is moved back or a replay
/// may get a new id, and then the effect happens twice.
#[derive(Debug, Clone, Copy)]
pub struct MessageId;

impl KeySource for MessageId {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        message.id().map(IdempotencyKey::new).transpose()
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        outside(self.key(message))
    }

    fn rule(&self) -> String {
        "message-id".to_owned()
    }
}

/// The message's type, [`Message::message_type`]. It names no intent by itself; [`Join`] makes a key of it and another
/// where one key stands for several operations.
#[derive(Debug, Clone, Copy)]
pub struct MessageType;

impl KeySource for MessageType {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        message.message_type().map(IdempotencyKey::new).transpose()
    }

    fn rule(&self) -> String {
        "type".to_owned()
    }
}

/// Two keys as one: the length of the first keeps `a` + `bc` and `ab` + `c` apart. What would be longer than a key may
/// be is replaced by its SHA-256; both forms start differently, so neither can imitate the other.
fn join(first: &str, second: &str) -> Result<IdempotencyKey, KeyError> {
    if first.is_empty() || second.is_empty() {
        return Err(KeyError::Empty);
    }
    let joined = format!("{}:{first}:{second}", first.len());
    if joined.len() <= KEY_BYTES_MAX {
        return IdempotencyKey::new(&joined);
    }
    if joined.chars().any(char::is_control) {
        return Err(KeyError::ControlCharacter);
    }
    IdempotencyKey::new(&format!("sha256:{}", hex::encode(Sha256::digest(joined.as_bytes()))))
}

/// Two sources joined to one key; a message that lacks either has no key.
#[derive(Debug, Clone)]
pub struct Join(pub Arc<dyn KeySource>, pub Arc<dyn KeySource>);

impl KeySource for Join {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        match (self.0.key(message)?, self.1.key(message)?) {
            (Some(first), Some(second)) => join(first.as_str(), second.as_str()).map(Some),
            (Some(_) | None, None) | (None, Some(_)) => Ok(None),
        }
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        match (self.0.outside_payload(message), self.1.outside_payload(message)) {
            (OutsidePayload::Key(first), OutsidePayload::Key(second)) => {
                outside(join(first.as_str(), second.as_str()).map(Some))
            }
            (OutsidePayload::NoKey, _) | (_, OutsidePayload::NoKey) => OutsidePayload::NoKey,
            (OutsidePayload::Unknown, _) | (_, OutsidePayload::Unknown) => OutsidePayload::Unknown,
        }
    }

    fn rule(&self) -> String {
        format!("join({},{})", self.0.rule(), self.1.rule())
    }
}

/// A chain: the first source that has a key wins.
#[derive(Debug, Clone)]
pub struct FirstOf(pub Vec<Arc<dyn KeySource>>);

impl KeySource for FirstOf {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        let mut not_json = None;
        for source in &self.0 {
            match source.key(message) {
                Ok(None) => {}
                Ok(Some(key)) => return Ok(Some(key)),
                // Another encoding than JSON is no fault of a message whose key stands elsewhere.
                Err(error @ KeyError::NotJson { .. }) => not_json = not_json.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        not_json.map_or(Ok(None), Err)
    }

    /// A source that may have a key in the payload comes before those that follow it.
    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        let first = self.0.iter().map(|source| source.outside_payload(message));
        first.into_iter().find(|found| *found != OutsidePayload::NoKey).unwrap_or(OutsidePayload::NoKey)
    }

    fn rule(&self) -> String {
        self.0.iter().map(KeySource::rule).collect::<Vec<_>>().join("|")
    }
}

/// Sources that must hold the same key where more than one of them has one.
#[derive(Debug, Clone)]
pub struct Agree(pub Vec<Arc<dyn KeySource>>);

impl KeySource for Agree {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        let mut agreed: Option<(IdempotencyKey, &Arc<dyn KeySource>)> = None;
        let mut not_json = None;
        for source in &self.0 {
            let key = match source.key(message) {
                Ok(Some(key)) => key,
                Ok(None) => continue,
                Err(error @ KeyError::NotJson { .. }) => {
                    not_json = not_json.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            match &agreed {
                Some((first, place)) if *first != key => {
                    return Err(KeyError::Disagree { first: place.rule(), second: source.rule() });
                }
                Some(_) => {}
                None => agreed = Some((key, source)),
            }
        }
        match (agreed, not_json) {
            (Some((key, _)), _) => Ok(Some(key)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// One that stands in the payload can only be the same, or the message is malformed.
    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        let mut agreed = OutsidePayload::NoKey;
        for source in &self.0 {
            agreed = match (agreed, source.outside_payload(message)) {
                (OutsidePayload::Key(first), OutsidePayload::Key(other)) if first != other => {
                    return OutsidePayload::Unknown;
                }
                (OutsidePayload::Key(key), _) | (_, OutsidePayload::Key(key)) => OutsidePayload::Key(key),
                (OutsidePayload::Unknown, _) | (_, OutsidePayload::Unknown) => OutsidePayload::Unknown,
                (OutsidePayload::NoKey, OutsidePayload::NoKey) => OutsidePayload::NoKey,
            };
        }
        agreed
    }

    fn rule(&self) -> String {
        self.0.iter().map(KeySource::rule).collect::<Vec<_>>().join("&")
    }
}

/// A function of the user's, with the name by which the consumer is bound.
pub struct KeyFn<F> {
    name: String,
    function: F,
}

/// A key source from a function. `name` goes into the consumer's binding: change it when the function finds other keys.
pub fn key_fn<F>(name: &str, function: F) -> KeyFn<F>
where
    F: Fn(&Message) -> Result<Option<IdempotencyKey>, KeyError> + Send + Sync + 'static,
{
    KeyFn { name: name.to_owned(), function }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFn({})", self.name)
    }
}

impl<F> KeySource for KeyFn<F>
where
    F: Fn(&Message) -> Result<Option<IdempotencyKey>, KeyError> + Send + Sync + 'static,
{
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        (self.function)(message)
    }

    fn rule(&self) -> String {
        format!("fn:{}", self.name)
    }
}

/// The form that a key must have beyond being a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyPolicy {
    /// Any token of 1 to 255 bytes.
    #[default]
    Token,
    /// A UUID in RFC 9562's notation, written in lower case whatever the case it came in; nil and max are refused,
    /// because an unset id would make every message a duplicate.
    Uuid,
    /// As [`KeyPolicy::Uuid`], and the version (1 to 8) and variant must be those of RFC 9562.
    UuidStrict,
}

impl KeyPolicy {
    /// The key in the form of this policy.
    ///
    /// # Errors
    /// [`KeyError::NotUuid`] where it has none.
    pub fn apply(self, key: IdempotencyKey) -> Result<IdempotencyKey, KeyError> {
        if self == Self::Token {
            return Ok(key);
        }
        // The crate also reads braces, URNs and bare hex digits; RFC 9562 §4 knows only the hyphenated form.
        let id = Some(key.as_str())
            .filter(|text| text.len() == 36)
            .and_then(|text| Uuid::try_parse(text).ok())
            .filter(|id| !id.is_nil() && !id.is_max())
            .ok_or(KeyError::NotUuid)?;
        let standard = (1..=8).contains(&id.get_version_num()) && id.get_variant() == uuid::Variant::RFC4122;
        if self == Self::UuidStrict && !standard {
            return Err(KeyError::NotUuid);
        }
        IdempotencyKey::new(&id.hyphenated().to_string())
    }

    pub(crate) fn rule(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Uuid => "uuid",
            Self::UuidStrict => "uuid-strict",
        }
    }
}

#[cfg(test)]
mod tests;
