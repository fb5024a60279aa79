//! The start of a consumer: its scope, what its name is bound to, its hash rules, its run.

use idem_core::{ConsumerName, ErrorClass, HashRuleId, Registered, Registration, RunId, ScopeId, StoreError, Tenant};
use idem_schema::Binding;
use sqlx::postgres::PgRow;

use super::{
    Postgres, books, claim,
    error::{self, get},
};
use crate::host;

/// Rounds of selecting and inserting, between which another start may be first.
const INTERN_ROUNDS: usize = 3;

fn binding(row: &PgRow) -> Result<Binding, StoreError> {
    Ok(Binding {
        id: get(row, "binding")?,
        bound_to: get(row, "bound_to")?,
        handler: get(row, "handler")?,
        key_rules: get(row, "key_rules")?,
        hash_rules: get(row, "hash_rules")?,
    })
}

fn raced(doing: &'static str) -> StoreError {
    let text = "another start was first each time";
    StoreError::Failed { doing, class: ErrorClass::Transient, source: text.into() }
}

impl Postgres {
    pub(super) async fn register_consumer(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let facts = self.server_facts().await?;
        let warnings = self.warnings(&facts);
        let scope = self.bind_consumer(registration).await?;
        let mut hash_rules = Vec::with_capacity(registration.hash_rules.len());
        for rule in &registration.hash_rules {
            hash_rules.push(self.intern_rule(rule).await?);
        }
        let doing = "noting the start";
        let process = i32::try_from(std::process::id()).unwrap_or(0);
        let host = host::name();
        let insert = || self.statement(&self.sql().insert_run).bind(&host).bind(process).bind(&registration.version);
        let rows = self.rows(doing, insert).await?;
        let row = books::only(&rows, doing)?;
        let (run, now) = (RunId(get(row, "id")?), error::instant(row, "server_now")?);
        Ok(Registered { scope, hash_rules, run, now, warnings })
    }

    async fn bind_consumer(&self, registration: &Registration) -> Result<ScopeId, StoreError> {
        let doing = "registering the consumer";
        let (tenant, name) = (registration.tenant.as_str(), registration.consumer.as_str());
        let retention = claim::retention(registration.retention);
        for _ in 0..INTERN_ROUNDS {
            let Some(row) = self.select_consumer(doing, tenant, name).await? else {
                let insert = || {
                    self.statement(&self.sql().insert_consumer)
                        .bind(tenant)
                        .bind(name)
                        .bind(registration.bound_to.as_deref().unwrap_or_default())
                        .bind(registration.handler.as_deref().unwrap_or_default())
                        .bind(&registration.key_rule)
                        .bind(registration.hash_rules.first().map_or("", String::as_str))
                        .bind(retention)
                };
                self.rows(doing, insert).await?;
                // What was inserted, or met, is read and compared like any other.
                continue;
            };
            let binding = binding(&row)?;
            binding.compare(registration)?;
            if binding.is_filled_by(registration) && !self.fill(doing, &binding, registration).await? {
                continue;
            }
            let scope = match get::<Option<i32>>(&row, "id")? {
                Some(id) => ScopeId(id),
                None => self.intern_tenant(&registration.consumer, &registration.tenant).await?,
            };
            let update = || self.statement(&self.sql().update_retention).bind(scope.0).bind(retention);
            self.rows(doing, update).await?;
            return Ok(scope);
        }
        Err(raced(doing))
    }

    async fn select_consumer(
        &self,
        doing: &'static str,
        tenant: &str,
        name: &str,
    ) -> Result<Option<PgRow>, StoreError> {
        let rows = self.rows(doing, || self.statement(&self.sql().select_consumer).bind(tenant).bind(name)).await?;
        Ok(rows.into_iter().next())
    }

    /// Answers whether nobody else was at it meanwhile.
    async fn fill(&self, doing: &'static str, binding: &Binding, by: &Registration) -> Result<bool, StoreError> {
        let fill = || {
            self.statement(&self.sql().fill_binding)
                .bind(binding.id)
                .bind(by.bound_to.as_deref())
                .bind(by.handler.as_deref())
                .bind(by.hash_rules.first().unwrap_or(&binding.hash_rules))
                .bind(&binding.hash_rules)
        };
        Ok(!self.rows(doing, fill).await?.is_empty())
    }

    pub(super) async fn intern_tenant(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let doing = "interning a tenant";
        let (tenant, name) = (tenant.as_str(), consumer.as_str());
        for _ in 0..INTERN_ROUNDS {
            let Some(row) = self.select_consumer(doing, tenant, name).await? else {
                let text = "its consumer was never registered";
                return Err(StoreError::Failed { doing, class: ErrorClass::Transient, source: text.into() });
            };
            if let Some(id) = get::<Option<i32>>(&row, "id")? {
                return Ok(ScopeId(id));
            }
            self.rows(doing, || self.statement(&self.sql().insert_tenant).bind(tenant).bind(name)).await?;
        }
        Err(raced(doing))
    }

    async fn intern_rule(&self, rule: &str) -> Result<HashRuleId, StoreError> {
        let doing = "interning a hash rule";
        for _ in 0..INTERN_ROUNDS {
            for text in [&self.sql().select_hash, &self.sql().insert_hash] {
                let rows = self.rows(doing, || self.statement(text).bind(rule)).await?;
                if let Some(row) = rows.first() {
                    return Ok(HashRuleId(get(row, "id")?));
                }
            }
        }
        Err(raced(doing))
    }
}
