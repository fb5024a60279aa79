//! What operators read: consumers, the state of a key, the audit trail.

use std::time::SystemTime;

use idem_core::{
    ConsumerName, IdempotencyKey, Store as _, StoreError,
    store::{Bookkeeping as _, Control, ScopeId},
};

use crate::{
    clock::time,
    item::{At, Item, LISTED, Read, record_partition},
    record::State,
    store::DynamoStore,
};

const LISTING: &str = "listing consumers";

/// A consumer in the scope of one tenant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListedConsumer {
    /// Its name.
    pub consumer: ConsumerName,
    /// The tenant; empty where there are none.
    pub tenant: String,
    /// Its scope.
    pub scope: ScopeId,
    /// Whether it runs, and who has stopped it.
    pub control: Control,
    /// How long its records are kept, in seconds, or `forever`.
    pub retention: String,
    /// Where it reads from.
    pub bound_to: String,
    /// Its handler.
    pub handler: String,
    /// When it was started first.
    pub first_started_at: Option<SystemTime>,
}

/// What a scope holds of a key, beside its dead letters.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HeldKey {
    /// The record of the key; `None` where its operation is not done.
    pub record: Option<HeldRecord>,
    /// Until when a worker has claimed the key; `None` where it is not in progress.
    pub claimed_until: Option<SystemTime>,
    /// The attempts that have failed, over all payloads.
    pub attempts: i64,
}

/// A record as operators see it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HeldRecord {
    /// When the message was handled.
    pub processed_at: Option<SystemTime>,
    /// The number of the worker's start.
    pub run: i64,
    /// Until when it is kept; `None` without end.
    pub expires_at: Option<SystemTime>,
    /// Whether the text of its key was erased.
    pub erased: bool,
    /// Whether it holds a result.
    pub has_result: bool,
}

/// A line of the audit trail.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TrailLine {
    /// When it was written.
    pub at: SystemTime,
    /// The operator.
    pub who: String,
    /// What was done.
    pub action: String,
    /// The key, where the line names one.
    pub key: Option<String>,
    /// The rest.
    pub details: String,
}

impl DynamoStore {
    /// What this table lacks that a worker can do without, for an operator.
    ///
    /// # Errors
    /// Those of DynamoDB, and those with which no worker starts on the table.
    pub async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        crate::table::verify(&self.requests).await
    }

    /// Every consumer in every tenant's scope, by name.
    ///
    /// # Errors
    /// Those of DynamoDB.
    pub async fn consumers(&self) -> Result<Vec<ListedConsumer>, StoreError> {
        let names = self.requests.all(self.requests.query(LISTED), usize::MAX).await;
        let mut all = Vec::new();
        for named in names.map_err(|error| error.into_store(LISTING))? {
            let Some(consumer) = named.string("sk").and_then(|name| ConsumerName::new(name).ok()) else { continue };
            all.extend(self.scopes(&consumer).await?);
        }
        Ok(all)
    }

    /// The same of one consumer; empty where it was never started.
    ///
    /// # Errors
    /// Those of DynamoDB.
    pub async fn scopes(&self, consumer: &ConsumerName) -> Result<Vec<ListedConsumer>, StoreError> {
        let items = self.requests.all(self.requests.query(&At::consumer(consumer).pk), usize::MAX).await;
        let items = items.map_err(|error| error.into_store(LISTING))?;
        let binding = items.iter().find(|item| item.string("bound_to").is_some());
        let words = |name: &str| binding.and_then(|item| item.string(name)).unwrap_or_default().to_owned();
        let mut all = Vec::new();
        for item in &items {
            let Some(tenant) = item.string("sk").and_then(|sk| sk.strip_prefix("tenant#")) else { continue };
            let scope = item.number("id").and_then(|id| i32::try_from(id).ok());
            let scope = ScopeId(item.needed(scope, "id")?);
            all.push(ListedConsumer {
                consumer: consumer.clone(),
                tenant: tenant.to_owned(),
                scope,
                control: self.bookkeeping().control(scope).await?,
                retention: words("retention"),
                bound_to: words("bound_to"),
                handler: words("handler"),
                first_started_at: binding.and_then(|item| item.number("started_at")).map(time),
            });
        }
        Ok(all)
    }

    /// What the scope holds of the key.
    ///
    /// # Errors
    /// Those of DynamoDB, and an item that idem has not written.
    pub async fn held(&self, scope: ScopeId, key: &IdempotencyKey) -> Result<HeldKey, StoreError> {
        let items = self.requests.all(self.requests.query(&record_partition(scope, key)), usize::MAX).await;
        let mut held = HeldKey::default();
        for item in items.map_err(|error| error.into_store("reading a key"))? {
            if item.string("sk").is_some_and(|sk| sk.starts_with("try#")) {
                held.attempts += item.number("n").unwrap_or_default();
                continue;
            }
            match State::of(&item)? {
                State::Done => held.record = Some(record(&item)),
                State::Claimed => {
                    let until = item.needed(item.number("until"), "until")?;
                    held.claimed_until = (until > crate::clock::now()).then(|| time(until));
                }
                State::GivenUp => {}
            }
        }
        Ok(held)
    }

    /// The newest lines of a consumer's audit trail.
    ///
    /// # Errors
    /// Those of DynamoDB.
    pub async fn trail(&self, consumer: &ConsumerName, max: usize) -> Result<Vec<TrailLine>, StoreError> {
        let newest = self.requests.query(&format!("audit#{consumer}")).scan_index_forward(false);
        let lines = self.requests.all(newest, max).await;
        let lines = lines.map_err(|error| error.into_store("reading the audit trail"))?;
        let words = |item: &Item, name: &str| item.string(name).unwrap_or_default().to_owned();
        let line = |item: &Item| TrailLine {
            at: time(item.number("at").unwrap_or_default()),
            who: words(item, "who"),
            action: words(item, "action"),
            key: item.string("key").map(str::to_owned),
            details: words(item, "details"),
        };
        Ok(lines.iter().map(line).collect())
    }
}

fn record(item: &Item) -> HeldRecord {
    HeldRecord {
        processed_at: item.number("at").map(time),
        run: item.number("by").unwrap_or_default(),
        expires_at: item.number("x").map(time),
        erased: item.string("key").is_none(),
        has_result: item.contains_key("res"),
    }
}
