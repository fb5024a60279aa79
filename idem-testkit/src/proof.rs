//! Proofs for tests of sources. Only the engine makes a [`Durable`], so they are earned: an engine of its own handles
//! messages against a store that remembers nothing.

use std::{error::Error, time::SystemTime};

use async_trait::async_trait;
use idem_core::{
    AuditEntry, Bookkeeping, Claim, ClaimError, Claimed, Cleaned, CleanupStep, CommitError, ConsumerName, Control,
    ControlState, DeadLetter, DeadLetterId, Decision, DedupConsumer, Durable, Effects, ErrorClass, HandlerError,
    HashRuleId, IdempotencyKey, Message, ParkedDeadLetter, PayloadHash, Recorded, Registered, Registration, Replay,
    ReplayEnd, RunId, ScopeId, Store, StoreCapabilities, StoreError, Tenant, Tx, UnitOfWork, UnitOptions, handler_fn,
};

/// `count` proofs with which a test of a [`Source`](idem_core::Source) may acknowledge messages that it made up.
///
/// They prove nothing about any message: the store behind them keeps nothing. In a worker every proof comes from a
/// commit.
///
/// # Panics
/// Where the engine refuses to handle a message against a store that always says yes, which would be a bug of idem.
///
/// # Cancel safety
/// Cancel safe.
#[allow(clippy::panic, reason = "a helper of tests, which documents it")]
pub async fn durables(count: usize) -> Vec<Durable> {
    // The engine takes the messages of one call as one unit; a bounded unit keeps its keys' memory bounded too.
    const UNIT: usize = 1000;
    let consumer = DedupConsumer::builder(Forgetful, "proofs")
        .handler(handler_fn(handle_nothing))
        .effects(Effects::InTransaction)
        .build()
        .unwrap_or_else(|error| panic!("{error}"));
    let mut proofs = Vec::with_capacity(count);
    while proofs.len() < count {
        let messages = (0..(count - proofs.len()).min(UNIT))
            .map(|number| Message::new("").with_header(idem_core::key::KEY_FIELD, number.to_string()))
            .collect();
        let decisions = consumer.process(messages).await.unwrap_or_else(|error| panic!("{error}"));
        let earned = decisions.into_iter().filter_map(Decision::into_durable);
        let before = proofs.len();
        proofs.extend(earned);
        assert!(proofs.len() > before, "the engine must earn a proof from a store that always commits");
    }
    proofs
}

async fn handle_nothing(_message: &Message, _tx: &mut Tx<'_, Forgetful>) -> Result<(), HandlerError> {
    Ok(())
}

/// A store that says yes to everything and keeps nothing.
#[derive(Debug)]
struct Forgetful;

impl Store for Forgetful {
    type Lane = ();
    type Connection<'t> = ();
    type Unit<'l> = Nothing;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::embedded()
    }

    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self, _lane: ()) {}

    async fn begin<'l>(&'l self, _lane: &'l mut (), _options: UnitOptions) -> Result<Nothing, StoreError> {
        Ok(Nothing)
    }

    fn reborrow<'a, 't: 'a>(_connection: &'a mut ()) {}

    fn classify(_error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        None
    }

    fn describe(_error: &(dyn Error + 'static)) -> Option<String> {
        None
    }
}

#[derive(Debug)]
struct Nothing;

impl UnitOfWork<Forgetful> for Nothing {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        Ok(claims.iter().map(|_| Claimed::Inserted).collect())
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        Ok(claims.iter().map(|_| None).collect())
    }

    fn tx(&mut self) -> Tx<'_, Forgetful> {
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

const NONE: StoreError = StoreError::Unsupported { what: "keep anything" };

#[async_trait]
impl Bookkeeping for Forgetful {
    async fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        Ok(Registered {
            scope: ScopeId(1),
            hash_rules: (1..).map(HashRuleId).take(registration.hash_rules.len()).collect(),
            run: RunId(1),
            now: SystemTime::UNIX_EPOCH,
            warnings: Vec::new(),
        })
    }

    async fn scope(&self, _consumer: &ConsumerName, _tenant: &Tenant) -> Result<ScopeId, StoreError> {
        Ok(ScopeId(1))
    }

    async fn count_attempt(&self, _: ScopeId, _: &IdempotencyKey, _: PayloadHash) -> Result<u32, StoreError> {
        Ok(1)
    }

    async fn uncount_attempt(&self, _: ScopeId, _: &IdempotencyKey) -> Result<(), StoreError> {
        Ok(())
    }

    async fn park(&self, _: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        Err(NONE)
    }

    async fn mark_published(&self, _: DeadLetterId) -> Result<(), StoreError> {
        Err(NONE)
    }

    async fn dead_letters(&self, _: &ConsumerName, _: u32) -> Result<Vec<ParkedDeadLetter>, StoreError> {
        Ok(Vec::new())
    }

    async fn request_replay(&self, _: &[DeadLetterId]) -> Result<u64, StoreError> {
        Err(NONE)
    }

    async fn take_replays(&self, _: &ConsumerName, _: RunId, _: u32) -> Result<Vec<Replay>, StoreError> {
        Ok(Vec::new())
    }

    async fn finish_replay(&self, _: DeadLetterId, _: ReplayEnd) -> Result<(), StoreError> {
        Err(NONE)
    }

    async fn control(&self, _: ScopeId) -> Result<Control, StoreError> {
        Ok(Control {
            state: ControlState::Running,
            by: String::new(),
            reason: String::new(),
            epoch: 0,
            now: SystemTime::UNIX_EPOCH,
        })
    }

    async fn set_control(&self, _: ScopeId, _: ControlState, _: &str, _: &str) -> Result<(), StoreError> {
        Err(NONE)
    }

    async fn audit(&self, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }

    async fn cleanup(&self, _: CleanupStep) -> Result<Cleaned, StoreError> {
        Ok(Cleaned::default())
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn as_many_proofs_as_asked_for_are_earned() {
        for count in [0, 1, 1000, 1001] {
            assert_eq!(super::durables(count).await.len(), count);
        }
    }
}
