//! The start of a consumer: its scope, the binding of its name, its hash rules, its run.

use idem_core::{
    ConsumerName, ErrorClass, Retention, StoreError, Tenant,
    store::{Binding, HashRuleId, Interned, Registered, Registration, RunId, ScopeId},
};

use crate::run::{
    candidates::{INTERN_ROUNDS, candidates, not_interned},
    driver::{BookkeepingDriver, row},
    host::host_name,
    row::{Row, microseconds, retention},
};

fn binding(row: &Row) -> Result<Binding, StoreError> {
    Ok(Binding {
        bound_to: row.get("bound_to")?,
        handler: row.get("handler")?,
        key_rules: row.get("key_rules")?,
        hash_rules: row.get("hash_rules")?,
    })
}

fn raced(doing: &'static str, what: &str) -> StoreError {
    StoreError::Failed { doing, class: ErrorClass::Transient, source: not_interned(what).into() }
}

pub(super) async fn register(
    driver: &impl BookkeepingDriver,
    registration: &Registration,
) -> Result<Registered, StoreError> {
    let mut warnings = driver.warnings().await?;
    let (scope, derives_as) = bind(driver, registration).await?;
    warnings.extend(other_reader(driver, registration).await?);
    let mut hash_rules = Vec::with_capacity(registration.hash_rules.len());
    for rule in &registration.hash_rules {
        hash_rules.push(intern_rule(driver, rule).await?);
    }
    let (host, process) = (host_name(), i32::try_from(std::process::id()).unwrap_or(0));
    let parameters = [host.as_str().into(), process.into(), registration.version.as_str().into()];
    let row = row(driver, "noting the start", &driver.bookkeeping_statements().insert_run, &parameters).await?;
    let registered = Registered::new(scope, hash_rules, RunId(row.get("id")?), row.instant("server_now")?);
    Ok(registered.warnings(warnings).derives_as(derives_as))
}

/// The scope, and the name that ids are derived from where the consumer was renamed since.
async fn bind(
    driver: &impl BookkeepingDriver,
    registration: &Registration,
) -> Result<(ScopeId, Option<ConsumerName>), StoreError> {
    let doing = "registering the consumer";
    let (tenant, name) = (registration.tenant.as_str(), registration.consumer.as_str());
    let retention = retention(registration.retention);
    let horizon = registration.redelivery_horizon.and_then(microseconds);
    for round in 0..INTERN_ROUNDS {
        let Some(row) = select(driver, doing, tenant, name).await? else {
            let numbers = candidates(Interned::Scope, &[name, tenant], round);
            check_first_name(driver, doing, name).await?;
            let binding = Binding::of(registration);
            let parameters = [
                tenant.into(),
                name.into(),
                binding.bound_to.as_str().into(),
                binding.handler.as_str().into(),
                binding.key_rules.as_str().into(),
                binding.hash_rules.as_str().into(),
                retention.into(),
                numbers.as_slice().into(),
            ];
            driver.rows(doing, &driver.bookkeeping_statements().insert_consumer, &parameters).await?;
            // The row that was inserted, or met, is read and compared like any other.
            continue;
        };
        let recorded = binding(&row)?;
        let binding = recorded.meet(registration)?;
        if binding != recorded && !fill(driver, doing, row.get("binding")?, &recorded, &binding).await? {
            continue;
        }
        let id = match row.get::<Option<i32>>("id")? {
            Some(id) => ScopeId(id),
            None => scope(driver, &registration.consumer, &registration.tenant).await?,
        };
        let parameters = [id.0.into(), retention.into(), horizon.into()];
        driver.rows(doing, &driver.bookkeeping_statements().update_horizons, &parameters).await?;
        let derives_as = row.get::<Option<&str>>("derives_as")?;
        return Ok((id, derives_as.and_then(|name| ConsumerName::new(name).ok())));
    }
    Err(raced(doing, &format!("consumer {name}")))
}

/// The scope of a consumer's name without a tenant, by which its inbox is known. Binds the name to the queue or topic, as a worker's start
/// does, and to nothing else.
pub(crate) async fn bind_source(
    driver: &impl BookkeepingDriver,
    consumer: &ConsumerName,
    bound_to: Option<&str>,
) -> Result<ScopeId, StoreError> {
    let (doing, name, tenant) = ("making the inbox", consumer.as_str(), Tenant::default());
    for round in 0..INTERN_ROUNDS {
        let Some(row) = select(driver, doing, tenant.as_str(), name).await? else {
            check_first_name(driver, doing, name).await?;
            let numbers = candidates(Interned::Scope, &[name, tenant.as_str()], round);
            let (empty, numbers, source) = ("".into(), numbers.as_slice().into(), bound_to.unwrap_or_default().into());
            // The first start of a worker says how long records are kept.
            let parameters = [empty, name.into(), source, empty, empty, empty, DAY.into(), numbers];
            driver.rows(doing, &driver.bookkeeping_statements().insert_consumer, &parameters).await?;
            continue;
        };
        let recorded = binding(&row)?;
        let retention = Retention::Forever;
        let registration = Registration::new(
            consumer.clone(),
            tenant.clone(),
            String::new(),
            vec![recorded.hash_rules.clone()],
            retention,
        );
        let binding = recorded.meet(&registration.bound_to(bound_to.map(str::to_owned)))?;
        if binding != recorded && !fill(driver, doing, row.get("binding")?, &recorded, &binding).await? {
            continue;
        }
        return match row.get::<Option<i32>>("id")? {
            Some(id) => Ok(ScopeId(id)),
            None => scope(driver, consumer, &tenant).await,
        };
    }
    Err(raced(doing, &format!("consumer {name}")))
}

/// A day, in microseconds.
const DAY: i64 = 86_400_000_000;

/// A warning where a consumer of another name is bound to the same source: this one handles again what that one has handled (O78).
async fn other_reader(
    driver: &impl BookkeepingDriver,
    registration: &Registration,
) -> Result<Option<String>, StoreError> {
    let Some(bound_to) = &registration.bound_to else { return Ok(None) };
    let name = registration.consumer.as_str();
    let parameters = [bound_to.as_str().into(), name.into()];
    let rows =
        driver.rows("registering the consumer", &driver.bookkeeping_statements().select_reader, &parameters).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let other: &str = row.get("name")?;
    Ok(Some(format!(
        "consumer {other} is bound to {bound_to} too, and what it has handled is new to {name}: if {name} was {other} when the backup \
         was made that is restored now, stop this worker, see \"After a restore from a backup\" in the guide, and rename {other} again; if \
         {other} was given up, `idem consumers rebind {other}` ends this warning"
    )))
}

/// Refuses a new consumer under a name that another one had at first: both would give the same ids to their events and
/// calls, and their receivers would take one for the other (O37).
async fn check_first_name(driver: &impl BookkeepingDriver, doing: &'static str, name: &str) -> Result<(), StoreError> {
    let rows = driver.rows(doing, &driver.bookkeeping_statements().select_renamed, &[name.into()]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let now: &str = row.get("name")?;
    let problem = format!(
        "{name} was the first name of consumer {now}, and the ids of its events are still derived from it: a new \
         consumer {name} would give the same ids"
    );
    let cure =
        format!("Give this one another name, or the old one its name back with `idem consumers rename {now} {name}`");
    Err(StoreError::refused(problem, cure))
}

async fn select(
    driver: &impl BookkeepingDriver,
    doing: &'static str,
    tenant: &str,
    name: &str,
) -> Result<Option<Row>, StoreError> {
    let rows =
        driver.rows(doing, &driver.bookkeeping_statements().select_consumer, &[tenant.into(), name.into()]).await?;
    Ok(rows.into_iter().next())
}

/// Answers whether no other start was faster.
async fn fill(
    driver: &impl BookkeepingDriver,
    doing: &'static str,
    id: i32,
    recorded: &Binding,
    binding: &Binding,
) -> Result<bool, StoreError> {
    let parameters = [
        id.into(),
        binding.bound_to.as_str().into(),
        binding.handler.as_str().into(),
        binding.hash_rules.as_str().into(),
        recorded.hash_rules.as_str().into(),
        binding.key_rules.as_str().into(),
    ];
    Ok(!driver.rows(doing, &driver.bookkeeping_statements().fill_binding, &parameters).await?.is_empty())
}

pub(super) async fn scope(
    driver: &impl BookkeepingDriver,
    consumer: &ConsumerName,
    tenant: &Tenant,
) -> Result<ScopeId, StoreError> {
    let doing = "interning a tenant";
    let (tenant, name) = (tenant.as_str(), consumer.as_str());
    for round in 0..INTERN_ROUNDS {
        let Some(row) = select(driver, doing, tenant, name).await? else {
            return Err(StoreError::Refused {
                problem: format!("consumer {consumer} is not registered, so it has no scope for a tenant"),
                cure: "Start a consumer of that name first".to_owned(),
            });
        };
        if let Some(id) = row.get("id")? {
            return Ok(ScopeId(id));
        }
        let numbers = candidates(Interned::Scope, &[name, tenant], round);
        let parameters = [tenant.into(), name.into(), numbers.as_slice().into()];
        driver.rows(doing, &driver.bookkeeping_statements().insert_tenant, &parameters).await?;
    }
    Err(raced(doing, &format!("a tenant of consumer {name}")))
}

async fn intern_rule(driver: &impl BookkeepingDriver, rule: &str) -> Result<HashRuleId, StoreError> {
    let (doing, statements) = ("interning a hash rule", driver.bookkeeping_statements());
    for round in 0..INTERN_ROUNDS {
        let numbers = candidates(Interned::HashRule, &[rule], round);
        let inserting = [rule.into(), numbers.as_slice().into()];
        for (text, parameters) in
            [(&statements.select_hash, &inserting[..1]), (&statements.insert_hash, &inserting[..])]
        {
            if let Some(row) = driver.rows(doing, text, parameters).await?.first() {
                return Ok(HashRuleId(row.get("id")?));
            }
        }
    }
    Err(raced(doing, &format!("the hash rule {rule}")))
}
