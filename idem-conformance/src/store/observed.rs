//! A store around the one under test, which notes what the engine asks of it and can lose the answer to a commit.

use std::{
    collections::VecDeque,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use idem_core::{
    ErrorClass, IdempotencyKey, Store, StoreError, Tx,
    cleanup::Cleaner,
    message::OrderingKey,
    outbox::{AppendError, Appended, Outbox},
    results::KeptResult,
    store::{
        Ahead, Claim, ClaimError, Claimed, CommitError, Found, Recorded, ScopeId, StoreCapabilities, UnitOfWork,
        UnitOptions,
    },
};

use super::gate::{Counter, Gate};

/// The store under test, seen by the suite.
#[derive(Debug)]
pub(super) struct Observed<S> {
    pub(super) inner: Arc<S>,
    pub(super) spy: Arc<Spy>,
    /// Whether it says that it has no outbox and keeps no results.
    pub(super) is_bare: bool,
}

/// The calls that were seen, and the fault to inject.
#[derive(Debug, Default)]
pub(super) struct Spy {
    /// Claims that have begun, whether or not they were answered yet.
    pub(super) claiming: Counter,
    /// Lanes that were opened.
    pub(super) opened: Counter,
    /// Units that have written what handlers handed in.
    pub(super) appended: Counter,
    /// Units that have read results.
    pub(super) results_read: Counter,
    /// Look-ups outside of units.
    pub(super) looked_up: Counter,
    /// Units that were begun.
    pub(super) begun: Counter,
    claimed: Mutex<Vec<Vec<(ScopeId, IdempotencyKey)>>>,
    commits: Mutex<VecDeque<LostCommit>>,
    before_read: Mutex<Option<Gate>>,
}

/// The fate of a commit whose answer never arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostCommit {
    /// The database committed (A5).
    Committed,
    /// The database never got it, and rolled back when the connection closed (A6).
    RolledBack,
    /// No answer and no end: the transaction stays open with its keys held until the connection closes (A7).
    Hangs,
}

impl Spy {
    /// The next commits lose their answers.
    pub(super) fn lose_commits(&self, lost: &[LostCommit]) {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner).extend(lost);
    }

    /// Every read of records waits at `gate` first.
    pub(super) fn gate_reads(&self, gate: Gate) {
        *self.before_read.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate);
    }

    async fn passed_to_read(&self) {
        let gate = self.before_read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
    }

    /// The keys of every claim, in the order in which the engine asked.
    pub(super) fn claimed(&self) -> Vec<Vec<(ScopeId, IdempotencyKey)>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
pub(super) struct ObservedUnit<S: Store> {
    inner: S::Unit,
    spy: Arc<Spy>,
}

impl<S: Store> Store for Observed<S> {
    type Bookkeeping = S::Bookkeeping;
    type Session = S::Session;
    type Connection<'t> = S::Connection<'t>;
    type Unit = ObservedUnit<S>;

    fn capabilities(&self) -> StoreCapabilities {
        let capabilities = self.inner.capabilities();
        if self.is_bare { capabilities.outbox(false).results(false) } else { capabilities }
    }

    fn bookkeeping(&self) -> &S::Bookkeeping {
        self.inner.bookkeeping()
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        self.inner.cleaner()
    }

    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        self.inner.outbox().filter(|_| !self.is_bare)
    }

    async fn open(&self) -> Result<S::Session, StoreError> {
        self.spy.opened.add();
        self.inner.open().await
    }

    async fn close(&self, lane: S::Session) {
        self.inner.close(lane).await;
    }

    async fn begin(&self, lane: S::Session, options: UnitOptions) -> Result<ObservedUnit<S>, StoreError> {
        self.spy.begun.add();
        Ok(ObservedUnit { inner: self.inner.begin(lane, options).await?, spy: Arc::clone(&self.spy) })
    }

    async fn look_up(
        &self,
        lane: S::Session,
        options: UnitOptions,
        claims: &[Claim],
    ) -> Result<(Option<S::Session>, Vec<Option<Found>>), StoreError> {
        self.spy.looked_up.add();
        self.inner.look_up(lane, options, claims).await
    }

    async fn is_free(
        &self,
        lane: S::Session,
        options: UnitOptions,
        claim: &Claim,
    ) -> Result<(Option<S::Session>, bool), StoreError> {
        self.inner.is_free(lane, options, claim).await
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut S::Connection<'t>) -> S::Connection<'a> {
        S::reborrow(connection)
    }

    fn classify(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        S::classify(error)
    }

    fn describe(error: &(dyn Error + 'static)) -> Option<String> {
        S::describe(error)
    }

    fn code(error: &(dyn Error + 'static)) -> Option<String> {
        S::code(error)
    }
}

impl<S: Store> UnitOfWork<Observed<S>> for ObservedUnit<S> {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let keys = claims.iter().map(|claim| (claim.scope, claim.key.clone())).collect();
        self.spy.claimed.lock().unwrap_or_else(PoisonError::into_inner).push(keys);
        self.spy.claiming.add();
        self.inner.claim(claims).await
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        self.spy.passed_to_read().await;
        self.inner.read(claims).await
    }

    fn anything_waits(&self) -> bool {
        self.inner.anything_waits()
    }

    async fn ahead(&mut self, keys: &[(ScopeId, OrderingKey)]) -> Result<Vec<Ahead>, StoreError> {
        self.inner.ahead(keys).await
    }

    fn tx(&mut self) -> Tx<'_, Observed<S>> {
        Tx::new(self.inner.tx().into_connection())
    }

    fn shared_tx(&self) -> Option<Tx<'_, Observed<S>>> {
        self.inner.shared_tx().map(|tx| Tx::new(tx.into_connection()))
    }

    fn check(&self) -> Result<(), StoreError> {
        self.inner.check()
    }

    async fn append(&mut self, appended: &Appended) -> Result<(), AppendError> {
        self.spy.appended.add();
        self.inner.append(appended).await
    }

    fn processed_at(&self, claim: &Claim) -> Option<SystemTime> {
        self.inner.processed_at(claim)
    }

    async fn read_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        self.spy.results_read.add();
        self.inner.read_results(claims).await
    }

    async fn look_up(&mut self, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        self.spy.results_read.add();
        self.spy.passed_to_read().await;
        self.inner.look_up(claims).await
    }

    async fn commit(self) -> (Option<S::Session>, Result<(), CommitError>) {
        let lost = self.spy.commits.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let unknown = || (None, Err(CommitError::Unknown("the suite lost the answer to this commit".into())));
        match lost {
            None => self.inner.commit().await,
            Some(LostCommit::Committed) => match self.inner.commit().await {
                (_, Ok(())) => unknown(),
                refused => refused,
            },
            Some(LostCommit::RolledBack) => {
                let _ = self.inner.rollback().await;
                unknown()
            }
            Some(LostCommit::Hangs) => {
                let _held = self.inner;
                std::future::pending().await
            }
        }
    }

    async fn rollback(self) -> Result<Option<S::Session>, StoreError> {
        self.inner.rollback().await
    }

    async fn abandon(self) {
        self.inner.abandon().await;
    }
}
