//! The names that all other modules use: of consumers, tenants, keys, orders and deliveries, and the numbers of interned rows.

pub(crate) mod shown;

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::names::shown::in_text;

/// The name that scopes a consumer's keys: two consumers with one database each run every message.
///
/// 1 to 100 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(Arc<str>);

/// The tenant whose key space a message belongs to; the default, empty tenant means that there is only one.
///
/// It must come from configuration or from an authenticated identity, never from the payload alone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Arc<str>);

/// A consumer or tenant name that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is refused: it must have 1 to 100 bytes of UTF-8 without control characters")]
pub struct ParseNameError {
    what: &'static str,
    value: String,
}

const NAME_BYTES_MAX: usize = 100;

fn parse_name(what: &'static str, value: &str) -> Result<Arc<str>, ParseNameError> {
    match check_text(value) {
        Ok(()) if value.len() <= NAME_BYTES_MAX => Ok(value.into()),
        Ok(()) | Err(_) => Err(ParseNameError { what, value: value.chars().take(NAME_BYTES_MAX).collect() }),
    }
}

impl ConsumerName {
    /// # Errors
    /// When the name is empty, longer than 100 bytes or holds control characters.
    pub fn new(value: &str) -> Result<Self, ParseNameError> {
        parse_name("consumer name", value).map(Self)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Tenant {
    /// # Errors
    /// When the name is empty, longer than 100 bytes or holds control characters.
    pub fn new(value: &str) -> Result<Self, ParseNameError> {
        parse_name("tenant", value).map(Self)
    }

    /// The name as text; empty for the single tenant.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

macro_rules! text_newtype_fmt {
    ($($name:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    )*};
}

text_newtype_fmt!(ConsumerName, Tenant);

/// Messages with equal ordering keys are handled one after the other, in the order of their delivery.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderingKey(Bytes);

impl OrderingKey {
    /// An ordering key of these bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes that are compared.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for OrderingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderingKey({} bytes)", self.0.len())
    }
}

/// Where a delivery came from, in the broker's own terms: `topic/partition/offset`, `queue/message id`.
///
/// A redelivery of the same message has the same origin; a producer's second send has another. `Display` and `Debug` hide
/// a key that it quotes, where [keys are hidden](crate::key::hide_keys_with).
#[derive(Clone)]
pub struct Origin {
    text: Arc<str>,
    /// The text shown to people, where it differs.
    shown: Option<Arc<str>>,
}

impl Origin {
    /// An origin of this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), shown: None }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Hides the key from those who see it, where keys are hidden; `id` is the message's, `key` is `None` where none was found.
    pub(crate) fn hide(&mut self, id: Option<&str>, key: Option<&IdempotencyKey>) {
        if let Cow::Owned(shown) = in_text(&self.text, id, key) {
            self.shown = Some(shown.into());
        }
    }
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Origin {}

impl Hash for Origin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped, so that the producer's part of it cannot forge a line of a log.
        write!(f, "{}", self.shown.as_ref().unwrap_or(&self.text).escape_debug())
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Origin").field(self.shown.as_ref().unwrap_or(&self.text)).finish()
    }
}

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The key that identifies one intent of a producer, however often it is sent and delivered.
///
/// 1 to 255 bytes of UTF-8 without control characters, compared byte for byte: nothing is trimmed, folded or
/// normalised. It is printed escaped, so that it cannot forge a line of a log, or as its keyed hash where
/// [`hide_keys_with`](crate::key::hide_keys_with) was called.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// # Errors
    /// When the text is empty, longer than 255 bytes or holds control characters. It is never cut or cleaned, because
    /// two keys would then become one and a message would be lost.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        check_text(text)?;
        Ok(Self(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown::write(&self.0, f)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

pub(crate) fn check_text(text: &str) -> Result<(), KeyError> {
    if text.is_empty() {
        Err(KeyError::Empty)
    } else if text.len() > KEY_BYTES_MAX {
        Err(KeyError::TooLong { bytes: text.len() })
    } else if text.chars().any(char::is_control) {
        Err(KeyError::ControlCharacter)
    } else {
        Ok(())
    }
}

/// Why a message's key is malformed. Such a message is dead-lettered, because a partial or invented key would make
/// another message its duplicate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is the empty text.
    #[error("the idempotency key is empty")]
    Empty,
    /// The key is longer than [`KEY_BYTES_MAX`].
    #[error("the idempotency key has {bytes} bytes, and at most 255 are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The key holds a control character, NUL included.
    #[error("the idempotency key holds a control character")]
    ControlCharacter,
    /// The key is not UTF-8.
    #[error("the idempotency key is not UTF-8")]
    NotUtf8,
    /// The member exists, but is no string.
    #[error("the idempotency key in {place} is no string")]
    NotText {
        /// The key source, as it is configured.
        place: String,
    },
    /// The header or member occurs more than once, so readers may disagree about which one counts.
    #[error("the idempotency key in {place} is repeated, or a member beside it is")]
    Repeated {
        /// The key source.
        place: String,
    },
    /// Two places that must agree hold different keys.
    #[error("the idempotency key in {first} and the one in {second} differ")]
    Disagree {
        /// The first key source.
        first: String,
        /// The second key source.
        second: String,
    },
    /// The payload is no JSON object that could hold the key.
    #[error("the payload is no JSON object that could hold {place}")]
    NotJson {
        /// The key source.
        place: String,
    },
    /// The key is no UUID of RFC 9562, or it is the nil or the max UUID.
    #[error("the idempotency key is no UUID of RFC 9562 (nil and max are refused)")]
    NotUuid,
}

impl KeyError {
    /// The cause, for the group of the dead letter.
    pub(crate) const fn cause(&self) -> &'static str {
        match self {
            Self::Empty => "key-empty",
            Self::TooLong { .. } => "key-too-long",
            Self::ControlCharacter => "key-control-character",
            Self::NotUtf8 => "key-not-utf8",
            Self::NotText { .. } => "key-not-text",
            Self::Repeated { .. } => "key-repeated",
            Self::Disagree { .. } => "keys-differ",
            Self::NotJson { .. } => "key-not-json",
            Self::NotUuid => "key-not-uuid",
        }
    }
}

macro_rules! interned_id {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub i32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

interned_id!(
    /// A (tenant, consumer) pair, interned by the store: the scope in which a key is unique.
    ScopeId,
    /// A rule by which payloads are hashed, interned by the store.
    HashRuleId,
    /// One start of a worker, as the store numbers it.
    RunId
);

/// How long a record is kept, as a lower bound: an expired record still counts until cleanup removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At least this long, counted by the database's clock from the commit's transaction.
    For(Duration),
    /// For ever.
    Forever,
}

#[cfg(test)]
mod tests;
