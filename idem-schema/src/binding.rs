//! What the first start of a consumer's name has recorded, and whether a later start agrees.

use idem_core::{Registration, StoreError};

/// What a consumer's name is bound to. An empty text binds nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The scope that holds the binding.
    pub id: i32,
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
    /// Compares a later start with the first.
    ///
    /// # Errors
    /// [`StoreError::Bound`] with both values of the first part that differs.
    pub fn compare(&self, registration: &Registration) -> Result<(), StoreError> {
        let bound = |what, recorded: &str, found: &str| {
            let (recorded, found) = (recorded.to_owned(), found.to_owned());
            Err(StoreError::Bound { consumer: registration.consumer.clone(), what, recorded, found })
        };
        let said = [
            ("source", &self.bound_to, registration.bound_to.as_deref()),
            ("handler", &self.handler, registration.handler.as_deref()),
        ];
        for (what, recorded, found) in said {
            if let Some(found) = found.filter(|found| !recorded.is_empty() && found != recorded) {
                return bound(what, recorded, found);
            }
        }
        if !self.key_rules.is_empty() && self.key_rules != registration.key_rule {
            return bound("key rules", &self.key_rules, &registration.key_rule);
        }
        // A build that can still compare with the old records may go over to another rule.
        if !self.hash_rules.is_empty() && !registration.hash_rules.contains(&self.hash_rules) {
            return bound("hash rules", &self.hash_rules, &registration.hash_rules.join(", "));
        }
        Ok(())
    }

    /// Whether this start says something that no start has said yet.
    #[must_use]
    pub fn is_filled_by(&self, registration: &Registration) -> bool {
        (self.bound_to.is_empty() && registration.bound_to.is_some())
            || (self.handler.is_empty() && registration.handler.is_some())
            || self.key_rules.is_empty()
            || registration.hash_rules.first().is_some_and(|rule| *rule != self.hash_rules)
    }
}
