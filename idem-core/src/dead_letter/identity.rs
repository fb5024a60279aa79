//! The rules by which two dead letters are one, and two failures alike. Both are computed here alone, so that no two stores differ.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{
    dead_letter::{DeadLetter, Reason},
    error::ErrorClass,
    hash::PayloadHash,
    message::Message,
    names::HashRuleId,
};

/// The identity of a dead letter within its scope, as a SHA-256. Two with equal identities are copies of one
/// message that was set aside: one row, whose copies are counted. Two that differ are never folded, wherever they came
/// from.
///
/// - With a key it covers key, payload hash and reason. Copies may have other headers, and come from anywhere. A payload
///   that could not be hashed by the consumer's rule counts byte for byte.
/// - Without a key it covers the place it came from, payload, headers, record key and type: nothing but a redelivery of
///   the very same message is a copy. Where a broker uses a place again, as Kafka does with the offsets of a topic that
///   was created again, the message's id distinguishes the place from its earlier life.
///
/// Stores keep it, so it never changes for the same letter; the golden vectors hold it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterIdentity([u8; 32]);

impl DeadLetterIdentity {
    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for DeadLetterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetterIdentity({:02x}{:02x}{:02x}{:02x}…)", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

impl DeadLetter {
    /// The identity by which another dead letter of this scope is a copy of this one.
    #[must_use]
    pub fn identity(&self) -> DeadLetterIdentity {
        let mut parts = Parts::of(b"idem:dead-letter:v1");
        match &self.key {
            Some(key) => {
                let (hash, rule) = self.payload_hash();
                parts.add(b"key");
                parts.add(key.as_str().as_bytes());
                // The same 32 bytes mean something else under another rule.
                parts.add(if rule.is_some() { b"hash" } else { b"bytes" });
                parts.add(hash.as_bytes());
                parts.add(self.reason.as_str().as_bytes());
            }
            None => {
                parts.add(b"place");
                parts.add(self.message.place().as_bytes());
                parts.add_content(&self.message);
            }
        }
        DeadLetterIdentity(parts.digest())
    }

    /// The payload's hash under the consumer's rule, or the SHA-256 of its bytes under no rule where it was not hashed:
    /// [`PayloadHash::NONE`] where there is no payload.
    #[must_use]
    pub fn payload_hash(&self) -> (PayloadHash, Option<HashRuleId>) {
        match self.hash {
            Some((hash, rule)) => (hash, Some(rule)),
            None => (self.message.payload().map_or(PayloadHash::NONE, |payload| PayloadHash::of(payload)), None),
        }
    }
}

/// The parts of a [`Fingerprint`]: facts about the failure, and no value of a payload, key, header, statement or row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureKind<'a> {
    /// Why the message was set aside.
    pub reason: Reason,
    /// The class of the last error.
    pub class: ErrorClass,
    /// The code of its cause: an SQLSTATE, a result code of SQLite's, one of idem's own such as `missing-field`, or the handler's.
    pub code: Option<&'a str>,
    /// The handler's name, where it was given one.
    pub handler: Option<&'a str>,
    /// The message's type, by which a router picks the handler.
    pub message_type: Option<&'a str>,
}

impl FailureKind<'_> {
    /// A failure of which nothing else is known.
    #[must_use]
    pub const fn new(reason: Reason, class: ErrorClass) -> Self {
        Self { reason, class, code: None, handler: None, message_type: None }
    }
}

/// Which dead letters failed alike, so that an operator can count, list and replay them together: after one bad deploy
/// that is one fingerprint, however many messages met it.
///
/// Its text is `f1-` and 16 hexadecimal digits of a SHA-256 over the parts of [`FailureKind`], each with its length. A
/// later rule would have another number, so a text means the same for as long as a row is kept.
///
/// ```
/// use idem_core::{
///     ErrorClass,
///     dead_letter::{FailureKind, Fingerprint, Reason},
/// };
///
/// let failure = FailureKind { code: Some("23514"), ..FailureKind::new(Reason::Permanent, ErrorClass::Permanent) };
/// let fingerprint = Fingerprint::of(&failure);
/// assert_eq!(fingerprint.to_string(), "f1-8610f4b59159e689");
/// assert_eq!(Fingerprint::parse("f1-8610f4b59159e689"), Some(fingerprint));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u64);

/// The prefix of a fingerprint's text: the rule by which it was made.
const RULE: &str = "f1-";

impl Fingerprint {
    /// The fingerprint of a failure.
    #[must_use]
    pub fn of(failure: &FailureKind<'_>) -> Self {
        let FailureKind { reason, class, code, handler, message_type } = failure;
        let mut parts = Parts::of(b"idem:failure:v1");
        parts.add(reason.as_str().as_bytes());
        parts.add(class.to_string().as_bytes());
        for part in [code, handler, message_type] {
            parts.add_if_any(part.map(str::as_bytes));
        }
        let [a, b, c, d, e, f, g, h, ..] = parts.digest();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The fingerprint with this text; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(RULE)?;
        let is_ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(digits, 16).ok().filter(|_| is_ours).map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RULE}{:016x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A digest of several parts, each with its length, so that no two lists of parts are the same bytes.
struct Parts(Sha256);

impl Parts {
    fn of(rule: &[u8]) -> Self {
        let mut parts = Self(Sha256::new());
        parts.add(rule);
        parts
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    /// A part that is absent differs from an empty one.
    fn add_if_any(&mut self, part: Option<&[u8]>) {
        self.add(if part.is_some() { b"some" } else { b"none" });
        self.add(part.unwrap_or_default());
    }

    fn add_content(&mut self, message: &Message) {
        self.add_if_any(message.payload().map(|payload| payload.as_ref()));
        self.add(&(message.headers().len() as u64).to_be_bytes());
        for (name, value) in message.headers().iter() {
            self.add(name.as_bytes());
            self.add_if_any(value);
        }
        self.add_if_any(message.record_key().map(|key| key.as_ref()));
        self.add_if_any(message.message_type().map(str::as_bytes));
    }

    fn digest(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests;
