//! The store itself: its sessions, and the classes of its errors.

use std::{error::Error, sync::Arc};

use idem_core::{
    ErrorClass, Store, StoreError,
    cleanup::Cleaner,
    internal::chain,
    outbox::Outbox,
    store::{Claim, Found, StoreCapabilities, UnitOptions},
};

use super::{
    Defect, MemoryConnection, MemoryError, MemorySession, MemoryStore, MemoryUnit, Operation, Writers,
    bookkeeping::MemoryCleaner,
    connection::{Pending, Status},
    fault::{Met, store_error},
    outbox::MemoryOutbox,
    state::record_key,
    unit::{found, result_of},
};

impl Store for MemoryStore {
    type Bookkeeping = Self;
    type Session = MemorySession;
    type Connection<'t> = MemoryConnection<'t>;
    type Unit = MemoryUnit;

    fn capabilities(&self) -> StoreCapabilities {
        self.shared.capabilities
    }

    fn bookkeeping(&self) -> &Self {
        self
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(MemoryCleaner((**self).clone()))
    }

    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        Some(Arc::new(MemoryOutbox(Arc::clone(self))))
    }

    async fn open(&self) -> Result<MemorySession, StoreError> {
        match self.shared.meet(Operation::Open).await {
            Ok(Met::Nothing) => {
                let session = MemorySession { era: self.shared.state().era };
                self.shared.answered().await;
                Ok(session)
            }
            Ok(Met::AnswerLost) => Err(store_error("connecting", MemoryError::ConnectionLost)),
            Err(error) => Err(store_error("connecting", error)),
        }
    }

    async fn close(&self, _lane: MemorySession) {}

    async fn begin(&self, session: MemorySession, options: UnitOptions) -> Result<MemoryUnit, StoreError> {
        tokio::task::yield_now().await;
        self.meet_on(&session, Operation::Begin, "beginning a transaction").await?;
        let id = {
            let mut state = self.shared.state();
            let id = state.next_unit();
            // Like a database in the process: with the write lock where it is free.
            if self.shared.writers == Writers::One {
                state.writer.get_or_insert(id);
            }
            id
        };
        let pending = Pending {
            id,
            claimed: Vec::new(),
            forgets: Vec::new(),
            writes: Vec::new(),
            events: Vec::new(),
            results: Vec::new(),
            nested: Vec::new(),
            status: Status::Open,
            breaks_deferred: false,
            lost: false,
            era: session.era,
        };
        let unit =
            MemoryUnit { shared: Arc::clone(&self.shared), options, pending, began_as: id, ended: false, waits: false };
        self.shared.answered().await;
        Ok(unit)
    }

    async fn look_up(
        &self,
        session: MemorySession,
        _: UnitOptions,
        claims: &[Claim],
    ) -> Result<(Option<MemorySession>, Vec<Option<Found>>), StoreError> {
        let doing = "looking keys up";
        tokio::task::yield_now().await;
        self.meet_on(&session, Operation::Read, doing).await?;
        let defect = self.shared.defect;
        let mut all: Vec<_> = {
            let state = self.shared.state();
            if state.hides_records {
                return Err(store_error(doing, MemoryError::NoTable));
            }
            let look = |claim: &Claim| {
                let key = record_key(claim, defect);
                let held = || {
                    let (_, recorded) = state.held.get(&key).filter(|_| defect == Some(Defect::FindsUncommitted))?;
                    Some(recorded.clone())
                };
                let recorded = found(&state, &key, claim, defect).or_else(held)?;
                Some(Found::new(recorded, result_of(&state, claim, defect)))
            };
            claims.iter().map(look).collect()
        };
        self.shared.answered().await;
        if defect == Some(Defect::AnswersClaimsInReverse) {
            all.reverse();
        }
        Ok((Some(session), all))
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut MemoryConnection<'t>) -> MemoryConnection<'a> {
        MemoryConnection { shared: connection.shared, pending: &mut *connection.pending }
    }

    fn classify(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        chain(error).find_map(|link| link.downcast_ref::<MemoryError>()).map(MemoryError::class)
    }

    fn describe(error: &(dyn Error + 'static)) -> Option<String> {
        error.downcast_ref::<MemoryError>().map(MemoryError::without_values)
    }
}

impl MemoryStore {
    /// Meets what is injected for a call on a session.
    async fn meet_on(
        &self,
        session: &MemorySession,
        operation: Operation,
        doing: &'static str,
    ) -> Result<(), StoreError> {
        match self.shared.meet_in(operation, session.era).await {
            Ok(Met::Nothing) => Ok(()),
            Ok(Met::AnswerLost) => Err(store_error(doing, MemoryError::ConnectionLost)),
            Err(error) => Err(store_error(doing, error)),
        }
    }
}
