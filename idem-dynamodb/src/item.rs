//! The keys and attributes of the items of idem's table.

use std::collections::HashMap;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, StoreError,
    dead_letter::DeadLetterId,
    hash::PayloadHash,
    store::{RunId, ScopeId},
};
use sha2::{Digest, Sha256};

use crate::clock::Micros;

/// An item, by the names of its attributes.
pub type Item = HashMap<String, AttributeValue>;

/// The number of the format of items, which each record has as `v`.
pub(crate) const FORMAT: i64 = 1;

/// The attribute by which DynamoDB removes items, in seconds since 1970.
pub(crate) const TTL: &str = "ttl";

/// The sort key of what is alone in its partition.
pub(crate) const ALONE: &str = "-";

/// The partition with the names of all consumers.
pub(crate) const LISTED: &str = "consumers";

/// Hashed before a key's bytes, so that no digest made for another purpose can be one of ours.
const DOMAIN: &[u8] = b"idem:key:v1:";

/// A primary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) pk: String,
    pub(crate) sk: String,
}

impl At {
    pub(crate) fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self { pk: pk.into(), sk: sk.into() }
    }

    /// The record of a key, or its claim.
    pub(crate) fn record(scope: ScopeId, key: &IdempotencyKey) -> Self {
        Self::new(record_partition(scope, key), ALONE)
    }

    /// The count of a payload's attempts.
    pub(crate) fn attempts(scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Self {
        Self::new(record_partition(scope, key), format!("try#{hash}"))
    }

    pub(crate) fn consumer(name: &ConsumerName) -> Self {
        Self::new(format!("consumer#{name}"), ALONE)
    }

    /// That there is a consumer, for lists.
    pub(crate) fn listed(name: &ConsumerName) -> Self {
        Self::new(LISTED, name.as_str())
    }

    /// A tenant of a consumer, for lists.
    pub(crate) fn tenant(name: &ConsumerName, tenant: &str) -> Self {
        Self::new(format!("consumer#{name}"), format!("tenant#{tenant}"))
    }

    /// Who has the number of a scope.
    pub(crate) fn scope(number: i32) -> Self {
        Self::new(format!("scope#{number}"), ALONE)
    }

    /// Which rule has a number.
    pub(crate) fn rule(number: i32) -> Self {
        Self::new(format!("rule#{number}"), ALONE)
    }

    pub(crate) fn run(name: &ConsumerName, run: RunId) -> Self {
        Self::new(format!("runs#{name}"), format!("{run:010}"))
    }

    pub(crate) fn control(scope: ScopeId) -> Self {
        Self::new(format!("control#{scope}"), ALONE)
    }

    /// What copies of records are bound to.
    pub(crate) fn copies() -> Self {
        Self::new("copies", ALONE)
    }

    /// A counter.
    pub(crate) fn counter(name: &str) -> Self {
        Self::new("ids", name)
    }

    pub(crate) fn dead_letter(consumer: &str, id: DeadLetterId) -> Self {
        Self::new(format!("dead#{consumer}"), padded(id.0))
    }

    /// Which dead letter has this identity.
    pub(crate) fn identity(scope: ScopeId, identity: &[u8]) -> Self {
        Self::new(format!("deadid#{scope}#{}", hex::encode(identity)), ALONE)
    }

    /// Whose dead letter has this number.
    pub(crate) fn dead_number(id: DeadLetterId) -> Self {
        Self::new(format!("deadno#{}", id.0), ALONE)
    }

    /// A part of a dead letter's payload.
    pub(crate) fn payload(id: DeadLetterId, part: usize) -> Self {
        Self::new(format!("deadpart#{}", id.0), format!("{part:04}"))
    }

    /// A dead letter that is to run again.
    pub(crate) fn due(consumer: &str, at: Micros, id: DeadLetterId) -> Self {
        Self::new(format!("due#{consumer}"), format!("{at:016}#{}", padded(id.0)))
    }

    pub(crate) fn cleaner(name: &str) -> Self {
        Self::new("cleaner", name)
    }

    pub(crate) fn attributes(&self) -> Item {
        Item::from([("pk".to_owned(), text(&self.pk)), ("sk".to_owned(), text(&self.sk))])
    }
}

pub(crate) fn record_partition(scope: ScopeId, key: &IdempotencyKey) -> String {
    let digest = Sha256::new().chain_update(DOMAIN).chain_update(key.as_str().as_bytes()).finalize();
    // As many bits as the ids of the SQL stores have. Two keys with one id differ in the text beside it.
    format!("k#{scope}#{}", hex::encode(digest.get(..16).unwrap_or_default()))
}

fn padded(id: i64) -> String {
    format!("{id:019}")
}

pub(crate) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

/// Without NUL, as every store keeps texts.
pub(crate) fn storable(text: &str) -> AttributeValue {
    AttributeValue::S(text.replace('\0', "\u{fffd}"))
}

pub(crate) fn number(number: impl Into<i64>) -> AttributeValue {
    AttributeValue::N(number.into().to_string())
}

pub(crate) fn bytes(bytes: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes.into()))
}

pub(crate) fn flag(yes: bool) -> AttributeValue {
    AttributeValue::Bool(yes)
}

/// Reads the attributes of an item that idem has written.
pub(crate) trait Read {
    fn value(&self, name: &str) -> Option<&AttributeValue>;

    fn string(&self, name: &str) -> Option<&str> {
        self.value(name)?.as_s().ok().map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.value(name)?.as_n().ok()?.parse().ok()
    }

    fn blob(&self, name: &str) -> Option<&[u8]> {
        self.value(name)?.as_b().ok().map(AsRef::as_ref)
    }

    fn is_set(&self, name: &str) -> bool {
        self.value(name).and_then(|value| value.as_bool().ok()).is_some_and(|yes| *yes)
    }

    /// An attribute without which the item is none of idem's.
    fn needed<T>(&self, what: Option<T>, name: &str) -> Result<T, StoreError> {
        what.ok_or_else(|| {
            let problem = format!("an item of the table has no attribute {name} of the type that idem writes");
            StoreError::failed("reading an item", ErrorClass::Fatal, problem)
        })
    }
}

impl Read for Item {
    fn value(&self, name: &str) -> Option<&AttributeValue> {
        self.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format that is in tables: it never changes for a key.
    #[test]
    fn a_key_has_one_place() {
        let key = IdempotencyKey::new("order-1").unwrap();
        let at = At::record(ScopeId(7), &key);
        assert_eq!((at.pk.as_str(), at.sk.as_str()), ("k#7#974bbf6731437790756da2d167d01ef3", "-"));
        assert_eq!(At::attempts(ScopeId(7), &key, PayloadHash::NONE).sk, format!("try#{}", "0".repeat(64)));
        assert_eq!(At::due("orders", 12, DeadLetterId(3)).sk, "0000000000000012#0000000000000000003");
    }
}
