//! Verifies the schema and registers the consumer, its tenants and its destinations: at the start, and again where another server answers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{MutexGuard, PoisonError},
};

use crate::{
    bugs::{self, Bug},
    error::StoreError,
    names::{ConsumerName, ScopeId, Tenant},
    source::Attached,
    store::{
        Bookkeeping as _, Store, StoreIdentity,
        registration::{Registered, Registration},
    },
    telemetry::{handles::ConsumedMetrics, spans::Destination},
    unit::engine::{Engine, Tenants},
};

impl<S: Store> Engine<S> {
    /// Verifies and registers once. `attached` holds the facts about its broker that the worker's source found.
    pub(crate) async fn register(&self, attached: Option<&Attached>) -> Result<&Registered, StoreError> {
        let bound_to_nothing = attached.is_none() && self.handler_name.is_none();
        let register = || async {
            self.store.bookkeeping().verify().await?;
            let registered = self.store.bookkeeping().register(&self.registration(attached)).await?;
            self.clock.set(registered.now);
            self.declare().await?;
            if bound_to_nothing {
                tracing::warn!(
                    idem.consumer = %self.name,
                    "this name is bound to no handler: another program that uses it in this schema would take these records for \
                     its own, and skip its messages; give .handler_name(…)"
                );
            }
            for warning in &registered.warnings {
                tracing::warn!(idem.consumer = %self.name, "{warning}");
            }
            Ok(registered)
        };
        self.registered.get_or_try_init(register).await
    }

    /// Interns the destinations that the handler publishes to.
    pub(super) async fn declare(&self) -> Result<(), StoreError> {
        if self.publishing.destinations.is_empty() {
            return Ok(());
        }
        // Building has refused a store without one.
        let outbox = self.store.outbox().ok_or(StoreError::Unsupported { what: "publish events" })?;
        let declared = outbox.declare(&self.publishing.destinations).await?;
        if declared.len() != self.publishing.destinations.len() {
            let what =
                "intern destinations: it answered with another number, which breaks the contract of Outbox::declare";
            return Err(StoreError::Unsupported { what });
        }
        self.destinations.were_declared(declared);
        Ok(())
    }

    /// The same for a worker, which binds the name to its source also where the consumer was started before.
    pub(crate) async fn register_bound(&self, attached: &Attached) -> Result<&Registered, StoreError> {
        // Set once, as the consumer is bound once.
        let source = Destination::of(&attached.bound_to).at(attached.server.as_deref(), attached.client_id.as_deref());
        let _ = self.consumed.set(ConsumedMetrics::of(&source));
        let _ = self.source.set(source);
        let _ = self.attached.set(attached.clone());
        if self.registered.initialized() {
            self.store.bookkeeping().register(&self.registration(Some(attached))).await?;
        }
        self.register(Some(attached)).await
    }

    fn registration(&self, attached: Option<&Attached>) -> Registration {
        Registration {
            consumer: self.name.clone(),
            tenant: match &self.tenants {
                Tenants::One(tenant) => tenant.clone(),
                Tenants::Of(_) => Tenant::default(),
            },
            bound_to: attached.map(|attached| attached.bound_to.clone()),
            handler: self.handler_name.clone(),
            key_rule: format!("{};{}", self.keys.rule(), self.key_policy.rule()),
            hash_rules: self.hashes.all().map(|rule| rule.rule()).collect(),
            retention: self.settings.retention,
            redelivery_horizon: attached.and_then(|attached| attached.redelivery_horizon),
            version: self.version.clone(),
        }
    }

    /// The scope of a tenant, interned at its first message.
    pub(super) async fn scope(&self, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let known = self.known_scopes().get(tenant).copied();
        if let Some(scope) = known {
            return Ok(scope);
        }
        let scope = self.intern_scope(tenant).await?;
        self.known_scopes().insert(tenant.clone(), scope);
        Ok(scope)
    }

    async fn intern_scope(&self, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        match self.store.bookkeeping().scope(&self.name, tenant).await {
            // The consumer's own row is not there: a server answers that has lost it.
            Err(StoreError::Refused { .. }) if !bugs::planted(Bug::RefusesLostTenants) => {
                self.register_again().await?;
                self.store.bookkeeping().scope(&self.name, tenant).await
            }
            answer => answer,
        }
    }

    /// Interns the rows that are missing on another server that answers now: a standby that had not received them, or a
    /// backup. They are needed to read records by names; [`Interned`](crate::store::Interned) says why numbers keep their meaning
    /// without them.
    pub(crate) async fn intern_again(&self) -> Result<(), StoreError> {
        if !self.publishes() {
            // The next message of each tenant interns it.
            self.known_scopes().clear();
        }
        let own = self.registration(None);
        match self.store.bookkeeping().scope(&own.consumer, &own.tenant).await {
            Ok(scope) => check_number(&self.name, self.number(), scope)?,
            Err(StoreError::Refused { .. }) => self.register_again().await?,
            Err(error) => return Err(error),
        }
        if !self.publishes() {
            return Ok(());
        }
        // Events are found by the rows of their destination and tenant, and were perhaps committed before it was seen that
        // these are missing.
        self.declare().await?;
        let tenants: BTreeSet<Tenant> = self.known_scopes().keys().cloned().collect();
        for tenant in tenants {
            let scope = self.intern_scope(&tenant).await?;
            self.known_scopes().insert(tenant, scope);
        }
        Ok(())
    }

    /// On a connection that was just opened: interns missing rows where another server answers than before. Events that were
    /// committed without the rows of their destination and tenant would be found by no relay. A consumer that publishes
    /// nothing asks nothing.
    pub(crate) async fn interned_there(&self) -> Result<(), StoreError> {
        let Some(registered) = self.registered.get().filter(|_| self.publishes()) else { return Ok(()) };
        let now = self.store.bookkeeping().control(registered.scope).await?.identity;
        if self.server().as_ref() == Some(&now) {
            return Ok(());
        }
        self.intern_again().await?;
        *self.server() = Some(now);
        Ok(())
    }

    fn publishes(&self) -> bool {
        !self.publishing.destinations.is_empty() && !bugs::planted(Bug::DeclaresOnce)
    }

    fn server(&self) -> MutexGuard<'_, Option<StoreIdentity>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_scopes(&self) -> MutexGuard<'_, HashMap<Tenant, ScopeId>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the consumer once more, where its row was lost.
    async fn register_again(&self) -> Result<(), StoreError> {
        let registered = self.store.bookkeeping().register(&self.registration(self.attached.get())).await?;
        tracing::warn!(
            idem.consumer = %self.name,
            "the database had lost this consumer's row: another server answers, or a backup was restored; it was registered again"
        );
        check_number(&self.name, self.number(), registered.scope)
    }

    fn number(&self) -> Option<ScopeId> {
        self.registered.get().map(|registered| registered.scope)
    }
}

/// Two names may share their first number, so a name that comes back after the other one may have another number (J63).
fn check_number(consumer: &ConsumerName, known: Option<ScopeId>, now: ScopeId) -> Result<(), StoreError> {
    match known {
        Some(known) if known != now => Err(StoreError::refused(
            format!("consumer {consumer} had number {known} in the database, and has {now} now"),
            "Restart its workers, so that they claim under the number that the database knows",
        )),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J63: under another number every key would be new.
    #[test]
    fn j63_a_consumer_that_comes_back_under_another_number_is_refused() {
        let check =
            |known: Option<i32>| check_number(&ConsumerName::new("orders").unwrap(), known.map(ScopeId), ScopeId(7));
        assert!(check(None).is_ok() && check(Some(7)).is_ok());
        let refused = check(Some(6)).unwrap_err().to_string();
        assert!(refused.contains("orders had number 6 in the database, and has 7 now"), "{refused}");
    }
}
