//! A consumer's facts at its start, and the store's answer.

use std::time::{Duration, SystemTime};

use crate::{
    names::{ConsumerName, HashRuleId, Retention, RunId, ScopeId, Tenant},
    setters::setters,
};

/// A consumer's facts, as it registers them at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// The consumer's name.
    pub consumer: ConsumerName,
    /// The tenant of the first scope.
    pub tenant: Tenant,
    /// Broker, cluster, topic or queue and group as one text; `None` for a [`DedupConsumer`](crate::DedupConsumer)
    /// in a receive loop of the caller's, which is bound to no source.
    pub bound_to: Option<String>,
    /// The handler's name; `None` where it was given none.
    pub handler: Option<String>,
    /// The key rule.
    pub key_rule: String,
    /// The hash rules of this build, the current one first.
    pub hash_rules: Vec<String>,
    /// The retention.
    pub retention: Retention,
    /// How long after its first delivery the broker may deliver a message again; `None` where it does not say.
    pub redelivery_horizon: Option<Duration>,
    /// The worker's version, which is noted with its run.
    pub version: String,
}

impl Registration {
    /// A consumer with this key rule and these hash rules, the current one first. Bound to no source and no handler.
    #[must_use]
    pub fn new(
        consumer: ConsumerName,
        tenant: Tenant,
        key_rule: String,
        hash_rules: Vec<String>,
        retention: Retention,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self {
            consumer,
            tenant,
            bound_to: None,
            handler: None,
            key_rule,
            hash_rules,
            retention,
            redelivery_horizon: None,
            version,
        }
    }

    setters! {
        /// Sets the consumer.
        consumer: ConsumerName,
        /// Sets the tenant of the first scope.
        tenant: Tenant,
        /// Sets the source.
        bound_to: Option<String>,
        /// Sets the handler's name.
        handler: Option<String>,
        /// Sets the key rule.
        key_rule: String,
        /// Sets the hash rules, the current one first.
        hash_rules: Vec<String>,
        /// Sets the retention.
        retention: Retention,
        /// Sets for how long the broker may deliver again.
        redelivery_horizon: Option<Duration>,
        /// Sets the worker's version. Defaults to idem's.
        version: String,
    }
}

/// The store's answer to a [`Registration`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// The scope of (tenant, consumer).
    pub scope: ScopeId,
    /// The ids of the hash rules, in the order given.
    pub hash_rules: Vec<HashRuleId>,
    /// This run.
    pub run: RunId,
    /// The database's clock at that moment.
    pub now: SystemTime,
    /// Warnings for a person: weak settings, each with its cure. They are logged.
    pub warnings: Vec<String>,
    /// The consumer's first name, from which ids are derived, where it was renamed since.
    pub derives_as: Option<ConsumerName>,
}

impl Registered {
    /// The ids that were interned, without a warning.
    #[must_use]
    pub fn new(scope: ScopeId, hash_rules: Vec<HashRuleId>, run: RunId, now: SystemTime) -> Self {
        Self { scope, hash_rules, run, now, warnings: Vec::new(), derives_as: None }
    }

    setters! {
        /// Sets the warnings for a person.
        warnings: Vec<String>,
        /// Sets the name from which ids are derived.
        derives_as: Option<ConsumerName>,
    }
}
