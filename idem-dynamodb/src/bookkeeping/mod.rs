//! The work outside of units: registration, attempts, dead letters, replays, controls and the audit trail.

mod attempts;
mod control;
mod dead_letters;
mod due;
mod letter;
mod register;
mod removal;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, IdempotencyKey, StoreError, Tenant,
    dead_letter::{DeadLetter, DeadLetterId, Due, DueEnd, DueRoom, StoredDeadLetter},
    hash::PayloadHash,
    store::{
        AuditEntry, Bookkeeping, Control, ControlState, Registered, Registration, RunId, ScopeId, StoreIdentity, Usage,
    },
};
use tokio::time::Instant;

use crate::client::Requests;

/// The bookkeeping of a [`DynamoStore`](crate::DynamoStore).
#[derive(Clone)]
pub struct DynamoBookkeeping {
    requests: Arc<Requests>,
    known: Arc<Mutex<Known>>,
}

/// What this process has read, and what does not change while it runs.
#[derive(Default)]
struct Known {
    /// The consumers of scopes.
    consumers: HashMap<ScopeId, String>,
    /// The table's identity, and when it was read.
    identity: Option<(Instant, StoreIdentity)>,
    /// What the last look at the table found to say to an operator.
    warnings: Vec<String>,
}

impl fmt::Debug for DynamoBookkeeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoBookkeeping").field("table", &self.requests.table).finish_non_exhaustive()
    }
}

impl DynamoBookkeeping {
    pub(crate) fn new(requests: Arc<Requests>) -> Self {
        Self { requests, known: Arc::default() }
    }

    fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Bookkeeping for DynamoBookkeeping {
    async fn verify(&self) -> Result<(), StoreError> {
        let warnings = crate::table::verify(&self.requests).await?;
        self.known(|known| known.warnings = warnings);
        Ok(())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.registered(registration).await
    }

    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError> {
        self.scope_of(consumer, tenant).await
    }

    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError> {
        self.count(scope, key, hash).await
    }

    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        self.uncount(scope, key, hash).await
    }

    async fn end_attempts(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError> {
        self.end_count(scope, key, hash).await
    }

    async fn store_dead_letter(&self, dead_letter: &DeadLetter) -> Result<StoredDeadLetter, StoreError> {
        self.store_letter(dead_letter).await
    }

    async fn dead_letter_bytes(&self, consumer: &ConsumerName, _enough: u64) -> Result<u64, StoreError> {
        self.bytes_of(consumer).await
    }

    async fn usage(&self, consumer: &ConsumerName) -> Result<Usage, StoreError> {
        self.usage_of(consumer).await
    }

    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError> {
        self.mark(id).await
    }

    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        self.listed(consumer, max).await
    }

    async fn due_now(&self, ids: &[DeadLetterId], by: &str) -> Result<u64, StoreError> {
        self.make_due(ids, by).await
    }

    async fn take_due(&self, consumer: &ConsumerName, run: RunId, room: DueRoom) -> Result<Vec<Due>, StoreError> {
        self.take(consumer, run, room).await
    }

    async fn renew_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        self.renew(run, ids).await
    }

    async fn release_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError> {
        self.give_back(run, ids).await
    }

    async fn end_due(&self, run: RunId, ends: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError> {
        self.end(run, ends).await
    }

    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError> {
        self.control_of(scope).await
    }

    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError> {
        self.set(scope, state, by, reason).await
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.note(entry).await
    }
}
