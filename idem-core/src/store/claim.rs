//! Claims, and a store's answers to them.

use std::time::SystemTime;

use crate::{
    hash::PayloadHash,
    names::{HashRuleId, IdempotencyKey, Retention, RunId, ScopeId},
    results::rows::KeptResult,
    setters::setters,
};

/// One key to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The scope in which the key is unique.
    pub scope: ScopeId,
    /// The key.
    pub key: IdempotencyKey,
    /// The payload's hash.
    pub hash: PayloadHash,
    /// The rule of that hash.
    pub hash_rule: HashRuleId,
    /// How long the record is kept.
    pub retention: Retention,
}

impl Claim {
    /// A claim of `key`.
    #[must_use]
    pub fn new(
        scope: ScopeId,
        key: IdempotencyKey,
        hash: PayloadHash,
        hash_rule: HashRuleId,
        retention: Retention,
    ) -> Self {
        Self { scope, key, hash, hash_rule, retention }
    }

    setters! {
        /// Sets the key.
        key: IdempotencyKey,
        /// Sets the payload's hash.
        hash: PayloadHash,
        /// Sets the rule of the hash.
        hash_rule: HashRuleId,
        /// Sets how long the record is kept.
        retention: Retention,
    }
}

/// A store's answer to one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claimed {
    /// The record was inserted by this transaction.
    Inserted,
    /// A committed record was read in the same step.
    Found(Recorded),
    /// The record was not inserted. That proves nothing yet: core reads the record, by
    /// [`UnitOfWork::read`](super::UnitOfWork::read).
    NotInserted,
}

/// A committed record of a key: who handled it, when, and under which hash.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// The key's text, which differs from the claimed one only when two keys collide in their id. Where the text was
    /// erased, for privacy, it is the claimed one: the id alone decides then.
    pub key: IdempotencyKey,
    /// The hash of the payload that was handled.
    pub hash: PayloadHash,
    /// The rule of that hash.
    pub hash_rule: HashRuleId,
    /// When it was handled, by the database's clock.
    pub processed_at: SystemTime,
    /// The run of the worker that handled it.
    pub processed_by: RunId,
    /// Until when the record is kept at least; `None` for ever.
    pub expires_at: Option<SystemTime>,
}

impl Recorded {
    /// A record as it was read.
    #[must_use]
    pub fn new(
        key: IdempotencyKey,
        hash: PayloadHash,
        hash_rule: HashRuleId,
        processed_at: SystemTime,
        processed_by: RunId,
        expires_at: Option<SystemTime>,
    ) -> Self {
        Self { key, hash, hash_rule, processed_at, processed_by, expires_at }
    }
}

/// A committed record of a key, and the result that was kept with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The record.
    pub recorded: Recorded,
    /// The result, as it was appended; `None` where there is none.
    pub result: Option<KeptResult>,
}

impl Found {
    /// A record and its result as they were read.
    #[must_use]
    pub fn new(recorded: Recorded, result: Option<KeptResult>) -> Self {
        Self { recorded, result }
    }
}
