//! A store that does nothing, so that what is left to measure is the engine itself: every key is new, or every key has
//! a record already.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    CleanupReport, CleanupSettings, ConsumerName, ControlState, DeadLetter, DeadLetterId, ErrorClass, IdempotencyKey,
    LastCleanup, PayloadHash, Recorded, Store, StoreError, StoredDeadLetter, Tenant, Tx,
    store::{
        AuditEntry, Backlog, Bookkeeping, Claim, ClaimError, Claimed, Cleaner, CommitError, Control, Expiring,
        HashRuleId, Registered, Registration, Removal, Removed, Replay, ReplayEnd, RunId, ScopeId, StoreCapabilities,
        StoreIdentity, UnitOfWork, UnitOptions, Usage,
    },
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NullStore {
    EverythingIsNew,
    EverythingIsRecorded,
}

pub(crate) struct NullUnit(NullStore);

impl Store for NullStore {
    type Bookkeeping = Self;
    type Session = ();
    type Connection<'t> = ();
    type Unit<'l> = NullUnit;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::server()
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

    async fn begin<'l>(&'l self, _lane: &'l mut (), _options: UnitOptions) -> Result<NullUnit, StoreError> {
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
            NullStore::EverythingIsNew => Claimed::Inserted,
            NullStore::EverythingIsRecorded => Claimed::Found(recorded(claim)),
        };
        Ok(claims.iter().map(answer).collect())
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let answer = |claim: &Claim| match self.0 {
            NullStore::EverythingIsNew => None,
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

    async fn commit(self) -> Result<(), CommitError> {
        Ok(())
    }

    async fn rollback(self) -> Result<(), StoreError> {
        Ok(())
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

    async fn request_replay(&self, _: &[DeadLetterId]) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn take_replays(&self, _: &ConsumerName, _: RunId, _: u32) -> Result<Vec<Replay>, StoreError> {
        Ok(Vec::new())
    }

    async fn finish_replay(&self, _: DeadLetterId, _: ReplayEnd) -> Result<(), StoreError> {
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

/// Long enough that nothing of what is measured ever waits for it.
pub(crate) const NEVER: Duration = Duration::from_secs(300);
