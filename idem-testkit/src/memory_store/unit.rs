//! Sessions and units of work.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use idem_core::{
    ErrorClass, StoreError, Tx,
    message::OrderingKey,
    outbox::{AppendError, Appended, EventNumber, NewEvent},
    results::KeptResult,
    store::{Ahead, Claim, ClaimError, Claimed, CommitError, Recorded, ScopeId, UnitOfWork, UnitOptions, boxed},
};
use tokio::time::{Instant, timeout_at};

use super::{
    Defect, MemoryConnection, MemoryError, MemoryStore, Operation, Shared, Writers,
    connection::{Pending, Status},
    fault::{Met, store_error},
    outbox::event_key,
    results::ResultRow,
    state::{RecordKey, State, UnitId, Write, record, record_key},
};

/// How long an append waits for a unit that has written the same event, which only keys of the user's own can have.
const TWIN_OF_AN_EVENT_MAX: Duration = Duration::from_secs(10);

/// A connection to a [`MemoryStore`].
#[derive(Debug)]
pub struct MemorySession {
    /// In which of the server's eras it was opened.
    pub(super) era: u64,
}

/// A running transaction on a [`MemoryStore`]. Dropping it rolls it back.
#[derive(Debug)]
pub struct MemoryUnit {
    pub(super) shared: Arc<Shared>,
    pub(super) options: UnitOptions,
    pub(super) pending: Pending,
    /// The transaction that may be committed.
    pub(super) began_as: UnitId,
    /// Whether the server has ended it in order, and not only lost its connection.
    pub(super) ended: bool,
    /// Whether rows of any ordering key of the claimed scopes were not over when it claimed.
    pub(super) waits: bool,
}

/// The result of a look at a key.
enum Look<T> {
    Answer(T),
    /// Another unit holds it.
    Held(UnitId),
}

impl MemoryUnit {
    /// Fails the claim or read, and with it the transaction.
    fn fail(&mut self, doing: &'static str, error: MemoryError) -> StoreError {
        self.pending.status = Status::Aborted;
        self.pending.lost |= error == MemoryError::ConnectionLost;
        store_error(doing, error)
    }

    /// The connection is lost before the answer to the commit.
    fn unknown(&mut self) -> CommitError {
        self.pending.lost = true;
        self.shared.state().unknown_commits += 1;
        CommitError::Unknown(boxed(MemoryError::ConnectionLost))
    }

    /// The session, for the next unit.
    fn session(&self) -> MemorySession {
        MemorySession { era: self.pending.era }
    }

    /// Looks until there is an answer, and waits for those in the way until `deadline`.
    async fn wait_for<T>(
        &mut self,
        doing: &'static str,
        deadline: Instant,
        mut look: impl FnMut(&mut Self) -> Look<T>,
    ) -> Result<T, ClaimError> {
        loop {
            let shared = Arc::clone(&self.shared);
            let ended = shared.ended.notified();
            tokio::pin!(ended);
            // From here on no end of a unit is missed, also between the look and the wait.
            ended.as_mut().enable();
            let holder = match look(self) {
                Look::Answer(answer) => return Ok(answer),
                Look::Held(holder) => holder,
            };
            let deadlock = shared.state().wait(self.pending.id, holder);
            if deadlock {
                return Err(self.fail(doing, MemoryError::Deadlock).into());
            }
            let waited = timeout_at(deadline, ended).await.is_ok();
            shared.state().waits.remove(&self.pending.id);
            if shared.state().era != self.pending.era {
                return Err(self.fail("claiming keys", MemoryError::ConnectionLost).into());
            }
            if !waited {
                self.pending.status = Status::Aborted;
                return Err(ClaimError::Held);
            }
        }
    }

    fn look_at_writer(&mut self) -> Look<Claimed> {
        let mut state = self.shared.state();
        match state.writer {
            Some(holder) if holder != self.pending.id => Look::Held(holder),
            Some(_) | None => {
                state.writer = Some(self.pending.id);
                Look::Answer(Claimed::NotInserted)
            }
        }
    }

    fn look_at(&mut self, claim: &Claim) -> Look<Claimed> {
        let (shared, defect) = (Arc::clone(&self.shared), self.shared.defect);
        let mut state = shared.state();
        let key = record_key(claim, defect);
        if defect == Some(Defect::ExpiredCountsAsGone) {
            let now = state.now();
            state.records.retain(|_, recorded| recorded.expires_at.is_none_or(|at| at > now));
        }
        if state.records.contains_key(&key) || state.swallows_records {
            return Look::Answer(Claimed::NotInserted);
        }
        match state.held.get(&key) {
            Some((holder, _)) if *holder == self.pending.id => return Look::Answer(Claimed::Inserted),
            Some((_, recorded)) if defect == Some(Defect::FindsUncommitted) => {
                return Look::Answer(Claimed::Found(recorded.clone()));
            }
            Some((holder, _)) => return Look::Held(*holder),
            None => {}
        }
        let recorded = record(claim, self.options.run, state.now());
        if defect == Some(Defect::RecordsOutside) {
            state.records.insert(key.clone(), recorded.clone());
        }
        state.held.insert(key.clone(), (self.pending.id, recorded));
        self.pending.claimed.push(key);
        Look::Answer(Claimed::Inserted)
    }

    async fn try_commit(&mut self) -> Result<(), CommitError> {
        let doing = "committing";
        tokio::task::yield_now().await;
        let met = match self.shared.meet_in(Operation::Commit, self.pending.era).await {
            Err(MemoryError::ConnectionLost) => return Err(self.unknown()),
            Err(error) => return Err(CommitError::RolledBack(store_error(doing, error))),
            Ok(met) => met,
        };
        let spoilt = self.pending.status == Status::Aborted;
        if spoilt && self.shared.has(Defect::CommitsAbortedWithoutError) {
            return Ok(());
        }
        let left = !self.pending.nested.is_empty();
        if left && self.shared.has(Defect::CommitsDespiteOpenNested) {
            return Ok(());
        }
        self.sealable().and_then(|()| self.check()).map_err(CommitError::RolledBack)?;
        if self.pending.breaks_deferred {
            return Err(CommitError::RolledBack(store_error(doing, MemoryError::Deferred)));
        }
        self.apply();
        self.ended = true;
        self.shared.state().locked.retain(|_, holder| *holder != self.pending.id);
        self.shared.ended.notify_waiters();
        self.shared.answer().await;
        if met == Met::AnswerLost { Err(self.unknown()) } else { Ok(()) }
    }

    /// Whether this transaction may be committed.
    fn sealable(&self) -> Result<(), StoreError> {
        let unsealed = |problem: &str, error| {
            let source = Some(boxed(error));
            Err(StoreError::Unsealed { problem: problem.to_owned(), source })
        };
        if self.pending.id != self.began_as || self.pending.status == Status::Ended {
            return unsealed("a handler ended the transaction", MemoryError::NoTransaction);
        }
        if self.pending.status == Status::Aborted {
            return unsealed("a statement failed and a handler went on", MemoryError::Aborted);
        }
        Ok(())
    }

    fn apply(&mut self) {
        let mut state = self.shared.state();
        state.books.forget_attempts(&std::mem::take(&mut self.pending.forgets));
        for key in self.pending.claimed.drain(..) {
            let held = state.held.remove(&key);
            if let Some((_, recorded)) = held {
                state.records.insert(key, recorded);
            }
        }
        if self.shared.has(Defect::KeepsOneRowAKey) {
            let mut kept = BTreeSet::new();
            self.pending.writes.retain(|write| match write {
                Write::Append { key, .. } => kept.insert(key.clone()),
                Write::Put { .. } => true,
            });
        }
        if !self.shared.has(Defect::LosesEffects) {
            state.apply(&std::mem::take(&mut self.pending.writes));
        }
        let now = state.now();
        for (number, key, event) in self.pending.events.drain(..) {
            if !self.shared.has(Defect::LosesEvents) {
                state.events.commit(number, key, event, now);
            }
        }
        for result in self.pending.results.drain(..) {
            if self.shared.has(Defect::LosesResults) {
                continue;
            }
            let key = (result.scope, result.key.clone());
            state.events.results.entry(key).or_insert_with(|| ResultRow::new(result, now));
        }
    }

    /// The number of an event where it is new, `None` where it is there already.
    fn look_at_event(&mut self, event: &NewEvent, may_be_known: bool) -> Look<Result<Option<EventNumber>, Known>> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let key = event_key(event, shared.defect);
        match (state.events.is_same(&key, event), state.events.held.get(&key)) {
            (Some(_), _) if !may_be_known => return Look::Answer(Err(Known::Unexpected)),
            (Some(true), _) => return Look::Answer(Ok(None)),
            (Some(false), _) => return Look::Answer(Err(Known::Other)),
            // The engine has refused a second event of one message under one key.
            (None, Some(holder)) if *holder == self.pending.id => return Look::Answer(Ok(None)),
            (None, Some(holder)) => return Look::Held(*holder),
            (None, None) => {}
        }
        let number = state.events.next_number();
        if shared.has(Defect::PutsEventsOutside) {
            let now = state.now();
            state.events.commit(number, key, event.clone(), now);
            return Look::Answer(Ok(None));
        }
        state.events.held.insert(key, self.pending.id);
        Look::Answer(Ok(Some(number)))
    }
}

/// The outbox holds an event with the same key.
enum Known {
    /// With another content.
    Other,
    /// With any content, and none was expected to be there: a server's primary key refuses the statement.
    Unexpected,
}

pub(super) fn found(state: &State, key: &RecordKey, claim: &Claim, defect: Option<Defect>) -> Option<Recorded> {
    let mut recorded = state.records.get(key).cloned()?;
    match defect {
        Some(Defect::ForgetsHashes) => recorded.hash = claim.hash,
        // A store that mixes keys up does not notice either that their texts differ.
        Some(Defect::FoldsKeys | Defect::CutsKeysAt64Bytes) => recorded.key = claim.key.clone(),
        Some(_) | None => {}
    }
    Some(recorded)
}

pub(super) fn result_of(state: &State, claim: &Claim, defect: Option<Defect>) -> Option<KeptResult> {
    let by_key_alone = defect == Some(Defect::ResultsByKeyAlone);
    let mut all = state.events.results.values();
    let is_it = |row: &&ResultRow| row.result.key == claim.key && (by_key_alone || row.result.scope == claim.scope);
    all.find(is_it).map(ResultRow::kept)
}

impl UnitOfWork<MemoryStore> for MemoryUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let doing = "claiming keys";
        tokio::task::yield_now().await;
        let answer_lost = match self.shared.meet_in(Operation::Claim, self.pending.era).await {
            Ok(met) => met == Met::AnswerLost,
            Err(error) => return Err(self.fail(doing, error).into()),
        };
        if self.shared.state().hides_records {
            return Err(self.fail(doing, MemoryError::NoTable).into());
        }
        let deadline = Instant::now() + self.options.busy_timeout;
        if self.shared.writers == Writers::One {
            self.wait_for(doing, deadline, Self::look_at_writer).await?;
            let payload = |claim: &Claim| (record_key(claim, self.shared.defect), claim.hash);
            self.pending.forgets.extend(claims.iter().map(payload));
        }
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(self.wait_for(doing, deadline, |unit| unit.look_at(claim)).await?);
        }
        self.waits = !self.shared.has(Defect::DeniesThatAnythingWaits)
            && self.shared.state().books.anything_waits(|scope| claims.iter().any(|claim| claim.scope == scope));
        self.shared.answered().await;
        if answer_lost {
            return Err(self.fail(doing, MemoryError::ConnectionLost).into());
        }
        if self.shared.has(Defect::AnswersClaimsInReverse) {
            answers.reverse();
        }
        Ok(answers)
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let doing = "reading records";
        tokio::task::yield_now().await;
        match self.shared.meet_in(Operation::Read, self.pending.era).await {
            Ok(Met::Nothing) => {}
            Ok(Met::AnswerLost) => return Err(self.fail(doing, MemoryError::ConnectionLost)),
            Err(error) => return Err(self.fail(doing, error)),
        }
        if self.shared.state().hides_records {
            return Err(self.fail(doing, MemoryError::NoTable));
        }
        let defect = self.shared.defect;
        let all = {
            let state = self.shared.state();
            claims.iter().map(|claim| found(&state, &record_key(claim, defect), claim, defect)).collect()
        };
        self.shared.answered().await;
        Ok(all)
    }

    fn anything_waits(&self) -> bool {
        self.waits
    }

    async fn ahead(&mut self, keys: &[(ScopeId, OrderingKey)]) -> Result<Vec<Ahead>, StoreError> {
        let doing = "asking what waits in an ordering key";
        tokio::task::yield_now().await;
        match self.shared.meet_in(Operation::Read, self.pending.era).await {
            Ok(Met::Nothing) => {}
            Ok(Met::AnswerLost) => return Err(self.fail(doing, MemoryError::ConnectionLost)),
            Err(error) => return Err(self.fail(doing, error)),
        }
        let ahead = {
            let state = self.shared.state();
            let now = state.now();
            keys.iter().map(|(scope, key)| state.books.ahead(*scope, key, now)).collect()
        };
        self.shared.answered().await;
        Ok(ahead)
    }

    fn tx(&mut self) -> Tx<'_, MemoryStore> {
        Tx::new(MemoryConnection { shared: &self.shared, pending: &mut self.pending })
    }

    fn check(&self) -> Result<(), StoreError> {
        let left = !self.pending.nested.is_empty() && !self.shared.has(Defect::CommitsDespiteOpenNested);
        if self.pending.status == Status::Ended || left {
            let problem = "a handler ended the transaction or left a nested one open".to_owned();
            return Err(StoreError::Unsealed { problem, source: None });
        }
        Ok(())
    }

    async fn append(&mut self, appended: &Appended) -> Result<(), AppendError> {
        let doing = "writing events and results";
        tokio::task::yield_now().await;
        let met =
            self.shared.meet_in(Operation::Append, self.pending.era).await.map_err(|error| self.fail(doing, error))?;
        self.sealable()?;
        // In the order in which a server's statement inserts them, so that two units never wait for each other.
        let mut order: Vec<(usize, &NewEvent)> = appended.events.iter().enumerate().collect();
        order.sort_by_key(|(_, event)| event_key(event, None));
        let deadline = Instant::now() + TWIN_OF_AN_EVENT_MAX;
        let mut inserted = Vec::with_capacity(order.len());
        for (place, event) in order {
            let looked = self.wait_for(doing, deadline, |unit| unit.look_at_event(event, !appended.is_shared)).await;
            match looked {
                Ok(Ok(Some(number))) => inserted.push((place, number)),
                Ok(Ok(None)) => {}
                Ok(Err(Known::Other)) => return Err(AppendError::Conflict { event: place }),
                Ok(Err(Known::Unexpected)) => {
                    return Err(StoreError::failed(doing, ErrorClass::Permanent, "the outbox has an event").into());
                }
                Err(ClaimError::Store(error)) => return Err(error.into()),
                // It waited for too long.
                Err(_) => {
                    return Err(store_error(doing, MemoryError::Deadlock).into());
                }
            }
        }
        // Numbers stand in the order of publication.
        let mut numbers: Vec<EventNumber> = inserted.iter().map(|(_, number)| *number).collect();
        inserted.sort_by_key(|(place, _)| *place);
        numbers.sort_unstable();
        for ((place, _), number) in inserted.into_iter().zip(numbers) {
            let event = appended.events[place].clone();
            self.pending.events.push((number, event_key(&event, self.shared.defect), event));
        }
        self.pending.results.extend(appended.results.iter().cloned());
        self.shared.answered().await;
        match met {
            Met::Nothing => Ok(()),
            Met::AnswerLost => Err(self.fail(doing, MemoryError::ConnectionLost).into()),
        }
    }

    fn processed_at(&self, claim: &Claim) -> Option<SystemTime> {
        let state = self.shared.state();
        state.held.get(&record_key(claim, self.shared.defect)).map(|(_, recorded)| recorded.processed_at)
    }

    async fn read_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        let doing = "reading results";
        tokio::task::yield_now().await;
        match self.shared.meet_in(Operation::Read, self.pending.era).await {
            Ok(Met::Nothing) => {}
            Ok(Met::AnswerLost) => return Err(self.fail(doing, MemoryError::ConnectionLost)),
            Err(error) => return Err(self.fail(doing, error)),
        }
        let all = {
            let state = self.shared.state();
            claims.iter().map(|claim| result_of(&state, claim, self.shared.defect)).collect()
        };
        self.shared.answered().await;
        Ok(all)
    }

    async fn commit(mut self) -> (Option<MemorySession>, Result<(), CommitError>) {
        let committed = self.try_commit().await;
        let is_sound = matches!(&committed, Ok(()) | Err(CommitError::RolledBack(StoreError::Unsealed { .. })));
        ((is_sound && !self.pending.lost).then(|| self.session()), committed)
    }

    async fn rollback(mut self) -> Result<Option<MemorySession>, StoreError> {
        tokio::task::yield_now().await;
        match self.shared.meet_in(Operation::Rollback, self.pending.era).await {
            Ok(Met::Nothing) if !self.pending.lost => {
                self.ended = true;
                self.shared.answered().await;
                Ok(Some(self.session()))
            }
            Ok(Met::Nothing | Met::AnswerLost) => Err(self.fail("rolling back", MemoryError::ConnectionLost)),
            Err(error) => Err(self.fail("rolling back", error)),
        }
    }

    async fn abandon(self) {}
}

impl Drop for MemoryUnit {
    fn drop(&mut self) {
        if self.shared.has(Defect::DroppedUnitsHoldKeys) {
            return;
        }
        let unit = self.pending.id;
        let lingers = if self.ended { Duration::ZERO } else { self.shared.lingers() };
        match tokio::runtime::Handle::try_current() {
            Ok(server) if !lingers.is_zero() => {
                let shared = Arc::clone(&self.shared);
                drop(server.spawn(async move {
                    tokio::time::sleep(lingers).await;
                    shared.release(unit);
                }));
            }
            Ok(_) | Err(_) => self.shared.release(unit),
        }
    }
}
