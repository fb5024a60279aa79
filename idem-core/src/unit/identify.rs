//! Finds a message's tenant, key and hash. A message that cannot be identified is a poison message and never gets a new key.

use crate::{
    bugs::{self, Bug},
    caught::caught,
    config::ConsumerSettings,
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    hash::PayloadHash,
    key::OutsidePayload,
    message::{Identity, Message, UNREADABLE_HEADERS},
    names::{ConsumerName, HashRuleId, IdempotencyKey, ScopeId, Tenant},
    outcome::Failure,
    store::{Store, claim::Claim, describe::one_line},
    unit::engine::{Engine, Tenants},
};

/// A message with the claim of its key.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) message: Message,
    /// `None` for a type that opted out of protection.
    pub(crate) claim: Option<Claim>,
    /// Whether it is a row: then no other row of its ordering key keeps it waiting.
    pub(crate) from_row: bool,
}

/// A message that could not be identified.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) message: Message,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) failure: Failure,
}

impl<S: Store> Engine<S> {
    /// Identifies a message. `key` is the one to use whatever the message says: that of a replayed dead letter.
    pub(crate) async fn identify(&self, message: Message, key: Option<IdempotencyKey>) -> Result<Item, Rejected> {
        let mut identified = self.find(message, key).await;
        match &mut identified {
            Ok(item) => item.message.hide(item.claim.as_ref().map(|claim| &claim.key)),
            Err(rejected) => rejected.message.hide(rejected.key.as_ref()),
        }
        identified
    }

    async fn find(&self, message: Message, key: Option<IdempotencyKey>) -> Result<Item, Rejected> {
        let poison = |reason, text: String, cause: &str| Failure::new(ErrorClass::Permanent, reason, text).of(cause);
        if message.headers().iter().any(|(name, _)| name == UNREADABLE_HEADERS) {
            let text =
                format!("its headers cannot be read; they are kept as bytes, in the header {UNREADABLE_HEADERS}");
            return Err(Rejected { message, key, failure: poison(Reason::Malformed, text, "headers-unreadable") });
        }
        // Before anything is parsed, and before any function of the user's sees its payload.
        if let Some((text, cause)) = too_large(&message, &self.settings) {
            let key = key.or_else(|| self.key_outside_payload(&message));
            return Err(Rejected { message, key, failure: poison(Reason::TooLarge, text, cause) });
        }
        if let Some(problem) = message.problem() {
            let text = format!("the message cannot be read: {problem}");
            return Err(Rejected { message, key, failure: poison(Reason::Malformed, text, "unreadable") });
        }
        let tenant = match &self.tenants {
            Tenants::One(tenant) => tenant.clone(),
            Tenants::Of(function) => match caught(|| function(&message)) {
                Some(Some(tenant)) => tenant,
                none => {
                    let (text, cause) = match none {
                        Some(_) => ("the message has no tenant", "no-tenant"),
                        None => ("the tenant function panicked", "tenant-panic"),
                    };
                    return Err(Rejected { message, key, failure: poison(Reason::Malformed, text.to_owned(), cause) });
                }
            },
        };
        let identity = |key| Identity { tenant: tenant.clone(), derives_as: self.derives_as().clone(), key };
        let is_unprotected = |message_type| self.unprotected.contains(message_type);
        if !self.unprotected.is_empty() && message.message_type().is_some_and(is_unprotected) {
            return Ok(Item { message: message.with_identity(identity(None)), claim: None, from_row: false });
        }
        let key = match key.map_or_else(|| self.key(&message), Ok) {
            Ok(key) => key,
            Err(failure) if bugs::planted(Bug::MakesKeysUp) => {
                let made_up = IdempotencyKey::new(message.place());
                made_up.map_err(|_| Rejected { message: message.clone(), key: None, failure })?
            }
            Err(failure) => return Err(Rejected { message, key: None, failure }),
        };
        let hash = match self.hash(&message) {
            Ok(hash) => hash,
            Err((text, cause)) => {
                return Err(Rejected { message, key: Some(key), failure: poison(Reason::Malformed, text, cause) });
            }
        };
        let (scope, hash_rule) = match self.interned(&tenant).await {
            Ok(interned) => interned,
            Err(error) => {
                let failure = Failure::new(error.class(), Reason::AttemptsExhausted, one_line::<S>(&error));
                return Err(Rejected { message, key: Some(key), failure });
            }
        };
        let message = message.with_identity(identity(Some(key.clone())));
        let claim = Claim { scope, key, hash, hash_rule, retention: self.settings.retention };
        Ok(Item { message, claim: Some(claim), from_row: false })
    }

    /// The name from which ids are derived. Every consumer is registered before its first message is identified.
    fn derives_as(&self) -> &ConsumerName {
        self.registered.get().and_then(|registered| registered.derives_as.as_ref()).unwrap_or(&self.name)
    }

    fn key(&self, message: &Message) -> Result<IdempotencyKey, Failure> {
        let found = caught(|| {
            let key = self.keys.key(message).and_then(|key| key.map(|key| self.key_policy.apply(key)).transpose());
            key.map_err(|error| (error.to_string(), error.cause()))
        });
        let (reason, text, cause) = match found {
            Some(Ok(Some(key))) => return Ok(key),
            Some(Ok(None)) => {
                let text = format!("the message has no idempotency key (looked for {})", self.keys.rule());
                return Err(Failure::new(ErrorClass::Permanent, Reason::MissingKey, text));
            }
            Some(Err((text, cause))) => (Reason::Malformed, text, cause),
            None => (Reason::Malformed, format!("the key source {} panicked", self.keys.rule()), "key-panic"),
        };
        Err(Failure::new(ErrorClass::Permanent, reason, text).of(cause))
    }

    fn hash(&self, message: &Message) -> Result<PayloadHash, (String, &'static str)> {
        let rule = &self.hashes.current;
        match caught(|| rule.hash(message)) {
            Some(Err(_)) | None if bugs::planted(Bug::UnhashedIsEmpty) => Ok(PayloadHash::NONE),
            Some(hash) => hash.map_err(|error| (error.to_string(), "not-hashable")),
            None => Err((format!("the hash rule {} panicked", rule.rule()), "hash-panic")),
        }
    }

    /// The key of a message that is too large to be looked into. A key in the payload stays unknown: to find it, all members
    /// beside it must be remembered, and in an object of small members that takes many times the payload's length.
    fn key_outside_payload(&self, message: &Message) -> Option<IdempotencyKey> {
        caught(|| match self.keys.outside_payload(message) {
            OutsidePayload::Key(key) => self.key_policy.apply(key).ok(),
            OutsidePayload::NoKey | OutsidePayload::Unknown => None,
        })?
    }

    async fn interned(&self, tenant: &Tenant) -> Result<(ScopeId, HashRuleId), StoreError> {
        let registered = self.register(None).await?;
        let scope = match &self.tenants {
            Tenants::One(_) => registered.scope,
            Tenants::Of(_) => self.scope(tenant).await?,
        };
        let rule = registered.hash_rules.first().copied().ok_or(StoreError::Unsupported {
            what: "intern hash rules: it answered with none, which breaks the contract of Bookkeeping::register",
        })?;
        Ok((scope, rule))
    }
}

/// Which limit the message is beyond, if any, and which cause that is. Headers count by number and bytes, because a broker takes many times more of
/// them than senders need, and each costs memory that its bytes do not show.
fn too_large(message: &Message, settings: &ConsumerSettings) -> Option<(String, &'static str)> {
    let (headers, payload) = (message.headers(), message.payload().map_or(0, bytes::Bytes::len));
    let beyond = |what: String, name: &'static str, max: usize| Some((format!("{what}, and {name} is {max}"), name));
    if headers.len() > settings.headers_max {
        return beyond(format!("the message has {} headers", headers.len()), "headers_max", settings.headers_max);
    }
    let bytes = headers.bytes();
    if bytes > settings.headers_bytes_max {
        return beyond(format!("its headers have {bytes} bytes"), "headers_bytes_max", settings.headers_bytes_max);
    }
    if payload > settings.payload_bytes_max {
        return beyond(format!("the payload has {payload} bytes"), "payload_bytes_max", settings.payload_bytes_max);
    }
    None
}
