//! The hash of a payload, by which a reused key with another payload is distinguished from a duplicate.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};

use crate::{
    json::{self, exact},
    key::JsonMember,
    message::Message,
    message_type::TypePlace,
};

/// The SHA-256 of a payload under one rule. Two hashes mean something only under the same rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    /// The hash of a message without a payload, which no SHA-256 is expected to hit.
    pub const NONE: Self = Self([0; 32]);

    /// A hash of these bytes, as read from a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PayloadHash {
    /// Enough of it to tell two apart, and too little to find a payload by trying.
    pub(crate) fn prefix(&self) -> String {
        let [a, b, c, d, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

impl fmt::Display for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadHash({})", self.prefix())
    }
}

/// A payload that the rule cannot hash; the message is dead-lettered as malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the payload cannot be hashed by the rule {rule}: {problem}")]
pub struct HashPayloadError {
    /// The rule's text.
    pub rule: String,
    /// The problem, without a word of the payload.
    pub problem: String,
}

/// Hashes payloads by one rule.
pub trait PayloadHasher: Send + Sync + fmt::Debug + 'static {
    /// The hash of the message's payload.
    ///
    /// # Errors
    /// [`HashPayloadError`] where the payload lacks the form that the rule needs, such as JSON.
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError>;

    /// Name, version and parameters as one text. It is interned and stored with every record, so a rule that can give
    /// another hash for the same payload needs another text.
    fn rule(&self) -> String;

    /// Further hashes that a record of this payload may have under this very rule, such as one from before a change of the
    /// rule's settings. Asked for only when [`hash`](Self::hash) is not the record's. Defaults to none.
    fn also(&self, message: &Message) -> Vec<PayloadHash> {
        let _ = message;
        Vec::new()
    }

    /// Whether the hash covers the type by which a [`Router`](crate::Router) picks, so that it need not be added.
    /// Defaults to no.
    fn covers_type(&self) -> bool {
        false
    }
}

/// The default: the payload's bytes as they came. A redelivery is byte for byte the same.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawPayload;

impl PayloadHasher for RawPayload {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        Ok(message.payload().map_or(PayloadHash::NONE, |payload| PayloadHash::of(payload)))
    }

    fn rule(&self) -> String {
        "raw/1".to_owned()
    }
}

/// Some members of a JSON payload, or all but some, in a canonical form: for producers that write the same message
/// anew with another order of members, another spacing or a new timestamp.
///
/// Members are named by JSON pointer. Two payloads are equal when the members that count are; a member that is absent
/// differs from one that is `null`. Numbers are equal when their exact decimal values are, however they are written: `1.0`
/// is `1`, and two that merely share a double differ. Payloads with repeated members are refused, because they have no
/// single meaning.
#[derive(Debug, Clone)]
pub struct JsonMembers {
    pointers: Vec<(String, Vec<String>)>,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Only,
    Without,
}

impl JsonMembers {
    /// Only these members count. `None` where a pointer is malformed.
    #[must_use]
    pub fn only<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        Self::new(pointers, Mode::Only)
    }

    /// All members but these count. `None` where a pointer is malformed.
    #[must_use]
    pub fn without<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        Self::new(pointers, Mode::Without)
    }

    fn new<'a>(pointers: impl IntoIterator<Item = &'a str>, mode: Mode) -> Option<Self> {
        let mut parsed = pointers
            .into_iter()
            .map(|pointer| {
                json::pointer(pointer).filter(|path| !path.is_empty()).map(|path| (pointer.to_owned(), path))
            })
            .collect::<Option<Vec<_>>>()?;
        // The order in which a program names the members must not make another rule of it.
        parsed.sort();
        parsed.dedup();
        Some(Self { pointers: parsed, mode })
    }

    fn canonical(&self, payload: &[u8]) -> Result<String, String> {
        let mut tree = exact::exact(payload)?;
        let mut out = String::with_capacity(payload.len());
        match self.mode {
            Mode::Without => {
                self.pointers.iter().for_each(|(_, path)| tree.remove(path));
                tree.write(&mut out);
            }
            Mode::Only => {
                for (pointer, path) in &self.pointers {
                    if let Some(member) = tree.at(path) {
                        out.push_str(&format!("{}:{pointer}=", pointer.len()));
                        member.write(&mut out);
                        out.push('\n');
                    }
                }
            }
        }
        Ok(out)
    }
}

impl PayloadHasher for JsonMembers {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        let Some(payload) = message.payload() else { return Ok(PayloadHash::NONE) };
        let canonical = self.canonical(payload).map_err(|problem| HashPayloadError { rule: self.rule(), problem })?;
        Ok(PayloadHash::of(canonical.as_bytes()))
    }

    fn rule(&self) -> String {
        let name = match self.mode {
            Mode::Only => "json-only",
            Mode::Without => "json-without",
        };
        let pointers: Vec<&str> = self.pointers.iter().map(|(pointer, _)| pointer.as_str()).collect();
        format!("{name}/1:{}", serde_json::Value::from(pointers))
    }
}

/// Another rule's hash together with the message's type, so that one payload under two types is two things.
///
/// A consumer whose handler is a [`Router`](crate::Router) hashes so by itself. It is named by hand as a former rule,
/// where a consumer had a router and has none any more:
/// `HashRules::new(RawPayload).and_formerly(WithType::new(RawPayload))`.
#[derive(Debug, Clone)]
pub struct WithType {
    rule: Arc<dyn PayloadHasher>,
    place: TypePlace,
}

impl WithType {
    /// `rule`, with [`Message::message_type`].
    #[must_use]
    pub fn new(rule: impl PayloadHasher) -> Self {
        Self { rule: Arc::new(rule), place: TypePlace::Message }
    }

    /// `rule`, with the type that stands in this header or attribute.
    #[must_use]
    pub fn by_header(name: &str, rule: impl PayloadHasher) -> Self {
        Self { rule: Arc::new(rule), place: TypePlace::Header(name.to_owned()) }
    }

    /// `rule`, with the type that is this text in the JSON payload.
    #[must_use]
    pub fn by_json(member: JsonMember, rule: impl PayloadHasher) -> Self {
        Self { rule: Arc::new(rule), place: TypePlace::Json(member) }
    }

    fn typed(&self, message: &Message, payload: PayloadHash) -> PayloadHash {
        let mut hasher = Sha256::new_with_prefix(payload.as_bytes());
        // A message without a type differs from one with an empty one.
        if let Some(message_type) = self.place.of(message) {
            hasher.update([1]);
            hasher.update(message_type.as_bytes());
        }
        PayloadHash(hasher.finalize().into())
    }
}

impl PayloadHasher for WithType {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        Ok(self.typed(message, self.rule.hash(message)?))
    }

    fn also(&self, message: &Message) -> Vec<PayloadHash> {
        self.rule.also(message).into_iter().map(|payload| self.typed(message, payload)).collect()
    }

    /// `raw/1` becomes `raw+type/1`, `raw+type(9:EventType)/1` where a header has the type, and `raw+type(json:5:/type)/1`
    /// where the payload has.
    fn rule(&self) -> String {
        let inner = self.rule.rule();
        let (name, rest) = inner.split_at(inner.find(['/', ':']).unwrap_or(inner.len()));
        match &self.place {
            TypePlace::Message => format!("{name}+type{rest}"),
            // With its length, so that no header's name can imitate another rule.
            TypePlace::Header(header) => format!("{name}+type({}:{header}){rest}", header.len()),
            TypePlace::Json(member) => {
                format!("{name}+type(json:{}:{}){rest}", member.pointer().len(), member.pointer())
            }
        }
    }

    fn covers_type(&self) -> bool {
        true
    }
}

/// The rule of records that were copied from another system, without a hash: every payload equals
/// [`PayloadHash::NONE`], so that the key alone makes a redelivery a duplicate. Every build knows it.
#[derive(Debug, Clone, Copy)]
pub struct Unhashed;

impl PayloadHasher for Unhashed {
    fn hash(&self, _: &Message) -> Result<PayloadHash, HashPayloadError> {
        Ok(PayloadHash::NONE)
    }

    fn rule(&self) -> String {
        "unhashed/1".to_owned()
    }
}

/// A function of the user's.
pub struct HashFn<F> {
    name: String,
    function: F,
}

/// A hash from a function that writes the parts of a message that count; its SHA-256 is taken here. `name` is stored
/// with every record: change it when the function writes something else for the same payload.
pub fn hash_fn<F>(name: &str, function: F) -> HashFn<F>
where
    F: Fn(&Message) -> Result<Vec<u8>, HashPayloadError> + Send + Sync + 'static,
{
    HashFn { name: name.to_owned(), function }
}

impl<F> fmt::Debug for HashFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashFn({})", self.name)
    }
}

impl<F> PayloadHasher for HashFn<F>
where
    F: Fn(&Message) -> Result<Vec<u8>, HashPayloadError> + Send + Sync + 'static,
{
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        (self.function)(message).map(|bytes| PayloadHash::of(&bytes))
    }

    fn rule(&self) -> String {
        format!("fn:{}", self.name)
    }
}

/// The rule by which new messages are hashed, and those by which older records may have been.
#[derive(Debug, Clone)]
pub struct HashRules {
    pub(crate) current: Arc<dyn PayloadHasher>,
    pub(crate) former: Vec<Arc<dyn PayloadHasher>>,
}

impl Default for HashRules {
    fn default() -> Self {
        Self::new(RawPayload)
    }
}

impl HashRules {
    /// New messages are hashed by `current`.
    pub fn new(current: impl PayloadHasher) -> Self {
        Self { current: Arc::new(current), former: vec![Arc::new(Unhashed)] }
    }

    /// Records that were hashed by `rule` can still be compared: a message that meets one is hashed by it again.
    #[must_use]
    pub fn and_formerly(self, rule: impl PayloadHasher) -> Self {
        self.with_former(Arc::new(rule))
    }

    /// The same rules for a handler that goes by the type at `place`. Records without it are compared without it.
    pub(crate) fn with_type(self, place: &TypePlace) -> Self {
        if self.current.covers_type() {
            return self;
        }
        let typed = |rule: &Arc<dyn PayloadHasher>| -> Arc<dyn PayloadHasher> {
            Arc::new(WithType { rule: Arc::clone(rule), place: place.clone() })
        };
        let unhashed = Unhashed.rule();
        let (current, untyped) = (typed(&self.current), Arc::clone(&self.current));
        let typed: Vec<_> =
            self.former.iter().filter(|rule| !rule.covers_type() && rule.rule() != unhashed).map(typed).collect();
        let rules = Self { current, former: self.former };
        std::iter::once(untyped).chain(typed).fold(rules, Self::with_former)
    }

    /// Each rule once: every one is interned at a start.
    fn with_former(mut self, rule: Arc<dyn PayloadHasher>) -> Self {
        let text = rule.rule();
        if self.all().all(|known| known.rule() != text) {
            self.former.push(rule);
        }
        self
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<dyn PayloadHasher>> {
        std::iter::once(&self.current).chain(&self.former)
    }
}

#[cfg(test)]
mod tests;
