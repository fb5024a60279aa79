//! A store that does nothing, so that the engine itself is measured: every key is new, or every key has
//! a record already.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, Store, StoreError, Tenant, Tx,
    cleanup::{Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
    dead_letter::{DeadLetter, DeadLetterId, Due, DueEnd, DueRoom, StoredDeadLetter},
    hash::PayloadHash,
    outbox::{
        Declared, Destination, DestinationId, EventEnd, EventName, EventState, LeaseRequest, Leased, Outbox,
        OutboxBacklog, OutgoingEvent, StoredEvent,
    },
    store::{
        AuditEntry, Bookkeeping, Claim, ClaimError, Claimed, CommitError, Control, ControlState, HashRuleId, Recorded,
        Registered, Registration, RunId, ScopeId, StoreCapabilities, StoreIdentity, UnitOfWork, UnitOptions, Usage,
    },
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NullStore {
    EverythingIsNew,
    /// And there is an outbox, into which nothing may be written: a unit that appends anything ends the measurement.
    NewBesideAnOutbox,
    EverythingIsRecorded,
}

pub(crate) struct NullUnit(NullStore);

impl Store for NullStore {
    type Bookkeeping = Self;
    type Session = ();
    type Connection<'t> = ();
    type Unit = NullUnit;

    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::server();
        let has_outbox = *self == Self::NewBesideAnOutbox;
        (capabilities.outbox, capabilities.results) = (has_outbox, has_outbox);
        capabilities
    }

    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        (**self == Self::NewBesideAnOutbox).then(|| Arc::new(NullOutbox) as Arc<dyn Outbox>)
    }

    fn bookkeeping(&self) -> &Self {
        self
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(**self)
    }

    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self, _lane: ()) {}

    async fn begin(&self, _session: (), _options: UnitOptions) -> Result<NullUnit, StoreError> {
        Ok(NullUnit(*self))
    }

    fn reborrow<'a, 't: 'a>(_connection: &'a mut ()) {}

    fn classify(_error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        None
    }

    fn describe(_error: &(dyn Error + 'static)) -> Option<String> {
        None
    }
}

impl UnitOfWork<NullStore> for NullUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let answer = |claim: &Claim| match self.0 {
            NullStore::EverythingIsNew | NullStore::NewBesideAnOutbox => Claimed::Inserted,
            NullStore::EverythingIsRecorded => Claimed::Found(recorded(claim)),
        };
        Ok(claims.iter().map(answer).collect())
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let answer = |claim: &Claim| match self.0 {
            NullStore::EverythingIsNew | NullStore::NewBesideAnOutbox => None,
            NullStore::EverythingIsRecorded => Some(recorded(claim)),
        };
        Ok(claims.iter().map(answer).collect())
    }

    fn tx(&mut self) -> Tx<'_, NullStore> {
        Tx::new(())
    }

    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn commit(self) -> (Option<()>, Result<(), CommitError>) {
        (Some(()), Ok(()))
    }

    async fn rollback(self) -> Result<Option<()>, StoreError> {
        Ok(Some(()))
    }

    async fn abandon(self) {}
}

fn recorded(claim: &Claim) -> Recorded {
    Recorded::new(claim.key.clone(), claim.hash, claim.hash_rule, SystemTime::UNIX_EPOCH, RunId(1), None)
}

fn nothing<T>() -> Result<T, StoreError> {
    Err(StoreError::Unsupported { what: "do this: it is made for measuring" })
}

#[async_trait]
impl Bookkeeping for NullStore {
    async fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let hash_rules = (1..).map(HashRuleId).take(registration.hash_rules.len()).collect();
        let (scope, run, now) = (ScopeId(1), RunId(1), SystemTime::UNIX_EPOCH);
        Ok(Registered::new(scope, hash_rules, run, now))
    }

    async fn scope(&self, _: &ConsumerName, _: &Tenant) -> Result<ScopeId, StoreError> {
        Ok(ScopeId(1))
    }

    async fn count_attempt(&self, _: ScopeId, _: &IdempotencyKey, _: PayloadHash) -> Result<u32, StoreError> {
        Ok(1)
    }

    async fn uncount_attempt(&self, _: ScopeId, _: &IdempotencyKey, _: PayloadHash) -> Result<(), StoreError> {
        Ok(())
    }

    async fn end_attempts(&self, _: ScopeId, _: &IdempotencyKey, _: PayloadHash) -> Result<(), StoreError> {
        Ok(())
    }

    async fn store_dead_letter(&self, _: &DeadLetter) -> Result<StoredDeadLetter, StoreError> {
        nothing()
    }

    async fn dead_letter_bytes(&self, _: &ConsumerName, _: u64) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn usage(&self, _: &ConsumerName) -> Result<Usage, StoreError> {
        Ok(Usage::default())
    }

    async fn mark_published(&self, _: DeadLetterId) -> Result<(), StoreError> {
        nothing()
    }

    async fn dead_letters(&self, _: &ConsumerName, _: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        Ok(Vec::new())
    }

    async fn due_now(&self, _: &[DeadLetterId], _: &str) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn take_due(&self, _: &ConsumerName, _: RunId, _: DueRoom) -> Result<Vec<Due>, StoreError> {
        Ok(Vec::new())
    }

    async fn renew_due(&self, _: RunId, _: &[DeadLetterId]) -> Result<(), StoreError> {
        nothing()
    }

    async fn release_due(&self, _: RunId, _: &[DeadLetterId]) -> Result<(), StoreError> {
        nothing()
    }

    async fn end_due(&self, _: RunId, _: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError> {
        nothing()
    }

    async fn control(&self, _: ScopeId) -> Result<Control, StoreError> {
        let (by, reason) = (String::new(), String::new());
        Ok(Control::new(ControlState::Running, by, reason, 0, StoreIdentity::default(), SystemTime::UNIX_EPOCH))
    }

    async fn set_control(&self, _: ScopeId, _: ControlState, _: &str, _: &str) -> Result<(), StoreError> {
        nothing()
    }

    async fn audit(&self, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl Cleaner for NullStore {
    async fn remove(&mut self, _: &Removal) -> Result<Removed, StoreError> {
        Ok(Removed::Rows(0))
    }

    async fn preview(&mut self, _: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        nothing()
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        nothing()
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        Ok(None)
    }

    async fn note(&mut self, _: &CleanupReport) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Knows its destinations, and has never an event.
struct NullOutbox;

#[async_trait]
impl Outbox for NullOutbox {
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<Declared>, StoreError> {
        Ok((1..).map(|id| Declared::new(DestinationId(id))).take(destinations.len()).collect())
    }

    async fn lease(&self, _: DestinationId, _: LeaseRequest<'_>) -> Result<Leased, StoreError> {
        Ok(Leased::Mine)
    }

    async fn release(&self, _: DestinationId, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn next(&self, _: DestinationId, _: u32, _: u64) -> Result<Vec<OutgoingEvent>, StoreError> {
        Ok(Vec::new())
    }

    async fn settle(&self, _: DestinationId, _: &[(&OutgoingEvent, EventEnd)]) -> Result<(), StoreError> {
        nothing()
    }

    async fn backlog(&self, _: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError> {
        Ok(Vec::new())
    }

    async fn events(&self, _: Option<&str>, _: Option<EventState>, _: u32) -> Result<Vec<StoredEvent>, StoreError> {
        Ok(Vec::new())
    }

    async fn retry(&self, _: &[EventName]) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn retry_stale(&self, _: &[EventName]) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn skip(&self, _: &[EventName]) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn pause(&self, _: &str, _: bool) -> Result<bool, StoreError> {
        Ok(false)
    }
}

/// Long enough that nothing of what is measured ever waits for it.
pub(crate) const NEVER: Duration = Duration::from_secs(300);
