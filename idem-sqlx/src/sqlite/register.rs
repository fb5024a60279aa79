//! Consumers, their scopes and their hash rules: interned at the first start, and bound to what it said.

use idem_core::{
    Binding, ConsumerName, HashRuleId, Registered, Registration, Retention, RunId, ScopeId, StoreError, Tenant,
};
use sqlx::{Row, sqlite::SqliteRow};

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
        let retention = match registration.retention {
            Retention::For(time) => Some(clock::micros(time)),
            Retention::Forever => None,
        };
        let select = sqlx::query(self.statements.select_consumer()).bind(tenant).bind(name);
        if let Some(row) = select.fetch_optional(connection.get()?).await.map_err(&failed)? {
            let text = |column| row.try_get::<String, _>(column).map_err(&failed);
            let recorded = Binding {
                bound_to: text("bound_to")?,
                handler: text("handler")?,
                key_rules: text("key_rules")?,
                hash_rules: text("hash_rules")?,
            };
            let binding = recorded.meet(registration)?;
            let fill =
                sqlx::query(self.statements.fill_binding()).bind(row.try_get::<i32, _>("binding").map_err(&failed)?);
            let fill =
                fill.bind(binding.bound_to).bind(binding.handler).bind(binding.key_rules).bind(binding.hash_rules);
            fill.execute(connection.get()?).await.map_err(&failed)?;
            if let Some(id) = row.try_get("id").map_err(&failed)? {
                let update = sqlx::query(self.statements.update_retention()).bind(id).bind(retention);
                update.execute(connection.get()?).await.map_err(&failed)?;
                return Ok(ScopeId(id));
            }
        }
        let binding = Binding::of(registration);
        let insert =
            sqlx::query_scalar(self.statements.insert_consumer()).bind(tenant).bind(name).bind(binding.bound_to);
        let insert =
            insert.bind(binding.handler).bind(binding.key_rules).bind(binding.hash_rules).bind(retention).bind(now);
        insert.fetch_one(connection.get()?).await.map(ScopeId).map_err(failed)
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
        if let Some(id) = scope_in(known.as_ref()).map_err(&failed)? {
            return Ok(ScopeId(id));
        }
        let mut connection = self.connections.write(doing).await?;
        connection.begin().await?;
        // Somebody may have been first since.
        let row = select().fetch_optional(connection.get()?).await.map_err(&failed)?;
        let id: Option<i32> = match scope_in(row.as_ref()).map_err(&failed)? {
            Some(id) => Some(id),
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

/// The tenant's scope in a row of `select_consumer`, where it has one.
fn scope_in(row: Option<&SqliteRow>) -> Result<Option<i32>, sqlx::Error> {
    row.map_or(Ok(None), |row| row.try_get("id"))
}
