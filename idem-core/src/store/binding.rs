//! The record of the first start of a consumer's name, and whether a later start agrees with it.

use crate::{error::StoreError, store::registration::Registration};

/// The binding of a consumer's name, for all its tenants. An empty text binds nothing.
///
/// For stores: one rule for all of them. A store keeps it beside the name, reads it at each start, and keeps the result
/// of [`meet`](Self::meet).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Broker, cluster, topic or queue and group.
    pub bound_to: String,
    /// The handler's name.
    pub handler: String,
    /// The rule by which keys are found.
    pub key_rules: String,
    /// The hash rule of the newest start.
    pub hash_rules: String,
}

impl Binding {
    /// The binding that a first start makes.
    #[must_use]
    pub fn of(registration: &Registration) -> Self {
        Self {
            bound_to: registration.bound_to.clone().unwrap_or_default(),
            handler: registration.handler.clone().unwrap_or_default(),
            key_rules: registration.key_rule.clone(),
            hash_rules: registration.hash_rules.first().cloned().unwrap_or_default(),
        }
    }

    /// Compares a later start with the recorded binding, and answers the binding to record now: a part that no start
    /// has named yet is bound by the first that names it, and the hash rule is that of the newest start.
    ///
    /// # Errors
    /// [`StoreError::Bound`] with both values of the first part that differs. A start that can still compare with records
    /// of the recorded hash rule may go over to another one.
    pub fn meet(&self, registration: &Registration) -> Result<Self, StoreError> {
        let new = Self::of(registration);
        let parts = [
            ("source", &self.bound_to, &new.bound_to),
            ("handler", &self.handler, &new.handler),
            ("key rules", &self.key_rules, &new.key_rules),
        ];
        for (what, recorded, found) in parts {
            if !recorded.is_empty() && !found.is_empty() && recorded != found {
                return Err(bound(registration, what, recorded, found));
            }
        }
        if !self.hash_rules.is_empty() && !registration.hash_rules.contains(&self.hash_rules) {
            return Err(bound(registration, "hash rules", &self.hash_rules, &registration.hash_rules.join(", ")));
        }
        let either = |recorded: &String, found: String| if recorded.is_empty() { found } else { recorded.clone() };
        Ok(Self {
            bound_to: either(&self.bound_to, new.bound_to),
            handler: either(&self.handler, new.handler),
            key_rules: either(&self.key_rules, new.key_rules),
            hash_rules: if new.hash_rules.is_empty() { self.hash_rules.clone() } else { new.hash_rules },
        })
    }
}

fn bound(registration: &Registration, what: &'static str, recorded: &str, found: &str) -> StoreError {
    let (recorded, found) = (recorded.to_owned(), found.to_owned());
    StoreError::Bound { consumer: registration.consumer.clone(), what, recorded, found }
}
