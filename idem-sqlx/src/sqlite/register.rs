//! Consumers, their scopes and their hash rules: interned at the first start, and bound to what it said.

use idem_core::{ConsumerName, HashRuleId, Registered, Registration, Retention, RunId, ScopeId, StoreError, Tenant};
use sqlx::Row;

use super::{Sqlite, Synchronous, clock, connections::Borrowed};

impl Sqlite {
    pub(super) async fn register_consumer(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let now = clock::now();
        let mut connection = self.connections.write("registering the consumer").await?;
        connection.begin().await?;
        let scope = self.bind_consumer(&mut connection, registration, now).await?;
        let mut hash_rules = Vec::with_capacity(registration.hash_rules.len());
        for rule in &registration.hash_rules {
            hash_rules.push(self.intern_hash(&mut connection, rule).await?);
        }
        let failed = connection.failed();
        let run = sqlx::query_scalar(self.statements.insert_run())
            .bind(idem_schema::host_name())
            .bind(i64::from(std::process::id()))
            .bind(registration.version.as_str())
            .bind(now)
            .fetch_one(connection.get()?)
            .await
            .map_err(failed)?;
        connection.commit().await?;
        Ok(Registered { scope, hash_rules, run: RunId(run), now: clock::instant(now), warnings: self.warnings() })
    }

    fn warnings(&self) -> Vec<String> {
        match self.options.synchronous {
            Synchronous::Full => Vec::new(),
            Synchronous::Normal => vec![
                "synchronous is NORMAL: a power cut loses the last commits although their messages were acknowledged; \
                 open the store with Synchronous::Full unless the data can be made again"
                    .to_owned(),
            ],
        }
    }

    async fn bind_consumer(
        &self,
        connection: &mut Borrowed<'_>,
        registration: &Registration,
        now: i64,
    ) -> Result<ScopeId, StoreError> {
        let failed = connection.failed();
        let (tenant, name) = (registration.tenant.as_str(), registration.consumer.as_str());
        let (bound_to, handler) = (registration.bound_to.as_deref(), registration.handler.as_deref());
        let retention = match registration.retention {
            Retention::For(time) => Some(clock::micros(time)),
            Retention::Forever => None,
        };
        let select = sqlx::query(self.statements.select_consumer()).bind(tenant).bind(name);
        let Some(row) = select.fetch_optional(connection.get()?).await.map_err(&failed)? else {
            let id = sqlx::query_scalar(self.statements.insert_consumer())
                .bind(tenant)
                .bind(name)
                .bind(bound_to.unwrap_or_default())
                .bind(handler.unwrap_or_default())
                .bind(registration.key_rule.as_str())
                .bind(rules_text(&registration.hash_rules))
                .bind(retention)
                .bind(now)
                .fetch_one(connection.get()?)
                .await
                .map_err(&failed)?;
            return Ok(ScopeId(id));
        };
        let text = |column| row.try_get::<String, _>(column).map_err(&failed);
        let bound = |what, recorded: &str, found: &str| {
            let (recorded, found) = (recorded.to_owned(), found.to_owned());
            StoreError::Bound { consumer: registration.consumer.clone(), what, recorded, found }
        };
        let bound_to = agree(text("bound_to")?, bound_to).map_err(|(a, b)| bound("source", &a, &b))?;
        let handler = agree(text("handler")?, handler).map_err(|(a, b)| bound("handler", &a, &b))?;
        let key_rules = text("key_rules")?;
        if key_rules != registration.key_rule {
            return Err(bound("key rules", &key_rules, &registration.key_rule));
        }
        let hash_rules = text("hash_rules")?;
        let first = first_rule(&hash_rules);
        if !registration.hash_rules.contains(&first) {
            return Err(bound("hash rules", &first, &rules_text(&registration.hash_rules)));
        }
        let id: i32 = row.try_get("id").map_err(&failed)?;
        let update = sqlx::query(self.statements.update_consumer()).bind(id).bind(bound_to).bind(handler);
        update.bind(retention).execute(connection.get()?).await.map_err(failed)?;
        Ok(ScopeId(id))
    }

    async fn intern_hash(&self, connection: &mut Borrowed<'_>, rule: &str) -> Result<HashRuleId, StoreError> {
        let failed = connection.failed();
        let select = sqlx::query_scalar(self.statements.select_hash()).bind(rule);
        if let Some(id) = select.fetch_optional(connection.get()?).await.map_err(&failed)? {
            return Ok(HashRuleId(id));
        }
        let insert = sqlx::query_scalar(self.statements.insert_hash()).bind(rule);
        Ok(HashRuleId(insert.fetch_one(connection.get()?).await.map_err(&failed)?))
    }

    pub(super) async fn intern_scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        let doing = "registering a tenant";
        let mut connection = self.connections.read(doing).await?;
        let failed = connection.failed();
        let select = || sqlx::query(self.statements.select_consumer()).bind(tenant.as_str()).bind(consumer.as_str());
        let known = select().fetch_optional(connection.get()?).await.map_err(&failed)?;
        connection.done();
        if let Some(row) = known {
            return row.try_get("id").map(ScopeId).map_err(failed);
        }
        let mut connection = self.connections.write(doing).await?;
        connection.begin().await?;
        // Somebody may have been first since.
        let id: Option<i32> = match select().fetch_optional(connection.get()?).await.map_err(&failed)? {
            Some(row) => Some(row.try_get("id").map_err(&failed)?),
            None => sqlx::query_scalar(self.statements.insert_scope())
                .bind(tenant.as_str())
                .bind(consumer.as_str())
                .bind(clock::now())
                .fetch_optional(connection.get()?)
                .await
                .map_err(&failed)?,
        };
        connection.commit().await?;
        id.map(ScopeId).ok_or_else(|| StoreError::Refused {
            problem: format!("consumer {consumer} is not registered, so tenant {tenant} has no scope in it"),
            cure: "Start a consumer of that name first".to_owned(),
        })
    }
}

/// What the name is bound to after this start, or both values where they differ. A start that names nothing binds
/// nothing, and the empty text was recorded by one that named nothing.
fn agree(recorded: String, found: Option<&str>) -> Result<String, (String, String)> {
    match found {
        None => Ok(recorded),
        Some(found) if recorded.is_empty() || recorded == found => Ok(found.to_owned()),
        Some(found) => Err((recorded, found.to_owned())),
    }
}

/// The rules as one text: a JSON array, the current rule first.
fn rules_text(rules: &[String]) -> String {
    serde_json::Value::from(rules).to_string()
}

/// The rule under which the consumer's records began. A later start may hash by another, as long as it still knows this
/// one; to know more or less than that is its own affair.
fn first_rule(text: &str) -> String {
    let rules: Vec<String> = serde_json::from_str(text).unwrap_or_default();
    rules.into_iter().next().unwrap_or_default()
}
