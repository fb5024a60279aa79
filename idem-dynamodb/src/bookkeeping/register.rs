//! Consumers, tenants, hash rules and runs.

use std::time::Duration;

use idem_core::{
    ConsumerName, Retention, StoreError, Tenant,
    store::{Binding, HashRuleId, Interned, Registered, Registration, RunId, ScopeId},
};

use super::DynamoBookkeeping;
use crate::{
    client::{Change, Conditional},
    clock::{now, time},
    item::{At, Item, Read, TTL, number, text},
    record::ttl_after,
};

const REGISTERING: &str = "registering the consumer";

/// How long the start of a worker is kept.
const RUNS_KEPT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Rounds of a change that another process has made impossible meanwhile.
pub(super) const ROUNDS: usize = 50;

impl DynamoBookkeeping {
    pub(super) async fn registered(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.bind(registration).await?;
        let scope = self.intern_scope(&registration.consumer, &registration.tenant).await?;
        let mut rules = Vec::with_capacity(registration.hash_rules.len());
        for rule in &registration.hash_rules {
            rules.push(self.intern_rule(rule).await?);
        }
        let run = self.next("run").await?;
        let run = RunId(i32::try_from(run).map_err(|_| StoreError::Unsupported { what: "number more runs" })?);
        let at = now();
        let item = Item::from([
            ("version".to_owned(), text(&registration.version)),
            ("at".to_owned(), number(at)),
            (TTL.to_owned(), ttl_after(RUNS_KEPT)),
        ]);
        let put = self.requests.put(&At::run(&registration.consumer, run), item, None).await;
        put.map_err(|error| error.into_store(REGISTERING))?;
        let warnings = self.known(|known| known.warnings.clone());
        Ok(Registered::new(scope, rules, run, time(at)).warnings(warnings))
    }

    pub(super) async fn scope_of(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let doing = "interning a tenant";
        let known = self.requests.get(&At::consumer(consumer)).await.map_err(|error| error.into_store(doing))?;
        if known.is_none() {
            let problem = format!("consumer {consumer} is not registered, so it has no scope for a tenant");
            return Err(StoreError::refused(problem, "Start a consumer of that name first"));
        }
        self.intern_scope(consumer, tenant).await
    }

    /// Binds the name, or holds a later start against the binding.
    async fn bind(&self, registration: &Registration) -> Result<(), StoreError> {
        let at = At::consumer(&registration.consumer);
        for _ in 0..ROUNDS {
            let old = self.requests.get(&at).await.map_err(|error| error.into_store(REGISTERING))?;
            let binding = match &old {
                None => {
                    // For lists alone, and before the binding: a consumer that is bound is listed.
                    let named = At::listed(&registration.consumer);
                    let put = self.requests.put(&named, Item::new(), None).await;
                    put.map_err(|error| error.into_store(REGISTERING))?;
                    Binding::of(registration)
                }
                Some(item) => {
                    let part = |name: &str| item.string(name).unwrap_or_default().to_owned();
                    let recorded = Binding {
                        bound_to: part("bound_to"),
                        handler: part("handler"),
                        key_rules: part("key_rules"),
                        hash_rules: part("hash_rules"),
                    };
                    let met = recorded.meet(registration)?;
                    if met == recorded {
                        return Ok(());
                    }
                    met
                }
            };
            let retention = match registration.retention {
                Retention::For(kept) => kept.as_secs().to_string(),
                Retention::Forever => "forever".to_owned(),
            };
            let revision = old.as_ref().and_then(|item| item.number("rev"));
            let change = Change::new(
                "SET bound_to = :bound_to, #handler = :handler, key_rules = :key_rules, hash_rules = :hash_rules, \
                 retention = :retention, rev = :new, started_at = if_not_exists(started_at, :now)",
            )
            .on(if revision.is_some() { "rev = :old" } else { "attribute_not_exists(pk)" })
            .name("#handler", "handler")
            .value(":bound_to", text(binding.bound_to))
            .value(":handler", text(binding.handler))
            .value(":key_rules", text(binding.key_rules))
            .value(":hash_rules", text(binding.hash_rules))
            .value(":retention", text(retention))
            .value(":new", number(revision.unwrap_or_default() + 1))
            .value(":now", number(now()));
            let change = match revision {
                Some(revision) => change.value(":old", number(revision)),
                None => change,
            };
            match self.requests.update(&at, &change).await.map_err(|error| error.into_store(REGISTERING))? {
                Conditional::Done(_) => return Ok(()),
                // Another start was faster, or an answer was lost.
                Conditional::Failed(_) => {}
            }
        }
        Err(StoreError::contended(REGISTERING, "other starts change the binding all the time"))
    }

    async fn intern_scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let numbers = Interned::Scope.numbers(&[consumer.as_str(), tenant.as_str()]);
        let names = [("consumer", consumer.as_str()), ("tenant", tenant.as_str())];
        let listed = At::tenant(consumer, tenant.as_str());
        let number = self.intern(numbers, At::scope, &names, Some(&listed)).await?;
        let scope = ScopeId(number);
        self.known(|known| known.consumers.insert(scope, consumer.as_str().to_owned()));
        Ok(scope)
    }

    async fn intern_rule(&self, rule: &str) -> Result<HashRuleId, StoreError> {
        let numbers = Interned::HashRule.numbers(&[rule]);
        Ok(HashRuleId(self.intern(numbers, At::rule, &[("name", rule)], None).await?))
    }

    /// The first of these numbers that no other names have. One that is given now is written at `listed` in the same transaction: what is
    /// not in a list is not paused.
    async fn intern(
        &self,
        numbers: impl Iterator<Item = i32>,
        at: impl Fn(i32) -> At,
        names: &[(&str, &str)],
        listed: Option<&At>,
    ) -> Result<i32, StoreError> {
        let own: Item = names.iter().map(|(name, value)| ((*name).to_owned(), text(*value))).collect();
        let is_own = |item: &Item| names.iter().all(|(name, value)| item.string(name) == Some(*value));
        for number in numbers {
            let at = at(number);
            let get = || self.requests.get(&at);
            if let Some(item) = get().await.map_err(|error| error.into_store(REGISTERING))? {
                if is_own(&item) {
                    return Ok(number);
                }
                continue;
            }
            let is_new = Some("attribute_not_exists(pk)");
            let put = match listed {
                None => self.requests.put(&at, own.clone(), is_new).await,
                Some(listed) => {
                    let id = Item::from([("id".to_owned(), crate::item::number(number))]);
                    let both = [
                        self.requests.put_action(&at, own.clone(), is_new),
                        self.requests.put_action(listed, id, None),
                    ];
                    match both.into_iter().collect::<Result<Vec<_>, _>>() {
                        Ok(both) => self.requests.transact(&both).await,
                        Err(error) => Err(error),
                    }
                }
            };
            if put.map_err(|error| error.into_store(REGISTERING))? {
                return Ok(number);
            }
            let there = get().await.map_err(|error| error.into_store(REGISTERING))?;
            if there.is_some_and(|item| is_own(&item)) {
                return Ok(number);
            }
        }
        Err(StoreError::Unsupported { what: "number more names" })
    }

    /// The next number of a counter. A lost answer leaves a gap.
    pub(super) async fn next(&self, name: &str) -> Result<i64, StoreError> {
        let change = Change::new("ADD n :one").value(":one", number(1));
        let answer = self.requests.update(&At::counter(name), &change).await;
        match answer.map_err(|error| error.into_store("numbering"))? {
            Conditional::Done(Some(item)) => item.needed(item.number("n"), "n"),
            Conditional::Done(None) | Conditional::Failed(_) => {
                Err(StoreError::unavailable("numbering", "DynamoDB answered no number"))
            }
        }
    }

    /// The name of a scope's consumer; `None` where no consumer has the scope.
    pub(super) async fn consumer_of(&self, scope: ScopeId) -> Result<Option<String>, StoreError> {
        if let Some(name) = self.known(|known| known.consumers.get(&scope).cloned()) {
            return Ok(Some(name));
        }
        let item =
            self.requests.get(&At::scope(scope.0)).await.map_err(|error| error.into_store("finding a consumer"))?;
        let name = item.as_ref().and_then(|item| item.string("consumer")).map(str::to_owned);
        if let Some(name) = &name {
            self.known(|known| known.consumers.insert(scope, name.clone()));
        }
        Ok(name)
    }
}
