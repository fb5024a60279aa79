//! The faults that a test can inject into a [`MemoryStore`](super::MemoryStore).

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use idem_core::{ErrorClass, StoreError, store::boxed};

use super::{
    MemoryError, Shared, Weather,
    state::UnitId,
    weather::{Drawn, Sky},
};

/// An operation of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A session is opened.
    Open,
    /// A transaction begins.
    Begin,
    /// Keys are claimed.
    Claim,
    /// Records are read.
    Read,
    /// A handler runs a statement.
    Statement,
    /// The events and results that handlers handed in are written.
    Append,
    /// A transaction is rolled back.
    Rollback,
    /// A transaction is committed.
    Commit,
    /// Anything outside of units of work: registration, attempts, dead letters, controls, cleanup.
    Bookkeeping,
}

/// How an operation goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with an error of this class and has no effect.
    Error(ErrorClass),
    /// The connection breaks before anything happened. At a commit this leaves the outcome unknown.
    ConnectionLost,
    /// It is done, and the connection breaks before the answer arrives. At a commit this leaves the outcome unknown.
    AnswerLost,
    /// It takes this much longer.
    Delay(Duration),
    /// It never answers. At a commit the transaction stays open, with its keys held, until the session is dropped.
    Hang,
}

/// One way in which a store breaks its contract; see [`MemoryStore::with_defect`](super::MemoryStore::with_defect).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// The answers to a claim stand in reverse.
    AnswersClaimsInReverse,
    /// Another source, handler or rule under a known name is taken.
    BindsNothing,
    /// Cleanup removes records that have not expired.
    CleansLiveRecords,
    /// Keys that differ in case share an id. This is no breach, because the record says which key it is of.
    CollidesKeys,
    /// The commit of an aborted transaction rolls back and reports success (A9).
    CommitsAbortedWithoutError,
    /// A commit with an open nested transaction commits nothing and reports success (A14).
    CommitsDespiteOpenNested,
    /// A COMMIT that idem did not send commits the claims (A12).
    CommitsUnsealed,
    /// Another payload under the same key begins the count of attempts anew (D30).
    CountsAttemptsByKey,
    /// A message that is set aside keeps the count of its attempts (D14).
    CountsOnWhenSetAside,
    /// Keys are cut.
    CutsKeysAt64Bytes,
    /// A unit that was dropped holds its keys for ever.
    DroppedUnitsHoldKeys,
    /// An expired record does not count any more.
    ExpiredCountsAsGone,
    /// A claim finds records that are not committed.
    FindsUncommitted,
    /// Keys that differ in case or in spaces at the end are one.
    FoldsKeys,
    /// A record matches every hash that it is compared with.
    ForgetsHashes,
    /// Consumers and tenants share their keys.
    IgnoresScopes,
    /// Rows are not locked, so that one addition to a number overwrites another.
    LocksNoRows,
    /// A commit keeps the records and loses the effects.
    LosesEffects,
    /// An event is known by its key alone, without destination and scope (O15).
    EventsByKeyAlone,
    /// Events go although one of their ordering key before them waits.
    EventsOvertake,
    /// Every relay gets the lease of a destination.
    LeasesToAll,
    /// What a destination takes is not noted (O107).
    ForgetsLimits,
    /// A commit keeps the records and effects and loses the events.
    LosesEvents,
    /// The relay reads on from the last number it saw (O5).
    ScansByNumber,
    /// Events are written outside of the transaction.
    PutsEventsOutside,
    /// A commit keeps the records and effects and loses the results (V1).
    LosesResults,
    /// Results are known by their key alone, without its scope (V5).
    ResultsByKeyAlone,
    /// Consumers and tenants are numbered in the order in which they come, so that a server that has lost some numbers others like
    /// them (J63).
    NumbersInOrder,
    /// What became of an event is noted of whichever has its number, also where a server that has lost it gave another one the same (O41).
    SettlesByNumberAlone,
    /// A commit keeps one of the rows that were written under one key.
    KeepsOneRowAKey,
    /// A consumer's new name is one of a new consumer, without the records of the old one.
    RenamesWithoutRecords,
    /// A consumer that is renamed loses the name from which its ids are derived (O37).
    RenamesDerivedIds,
    /// The dead letters of all consumers count for the quota of each (S23).
    MeasuresEverybodysDeadLetters,
    /// Another message at the origin of a dead letter is taken for that one (A29).
    StoresByOrigin,
    /// Every dead letter is a row of its own.
    ParksEveryCopy,
    /// Handlers write outside of their transaction.
    PutsEffectsOutside,
    /// Records are written outside of the transaction.
    RecordsOutside,
    /// A replay is handed out again while it is under way.
    ReplaysTwice,
    /// A row that is due is handed out without the rows before it in its ordering key.
    TakesFollowersAlone,
    /// The lease of a row that is due is never renewed.
    RenewsNoRows,
    /// A row that waits for a later try is handed out before its time.
    RunsRowsEarly,
    /// A message that waits for a later try becomes a second row when it is put aside again.
    PutsAsideTwice,
    /// A message that is put aside has its own time, whatever of its ordering key waits before it.
    ParksBesideItsKey,
    /// The end of a row lets none of its ordering key go.
    LetsNoNextGo,
    /// Those that were taken with a row that waits again stay taken, and the first of them leads.
    KeepsFollowersTaken,
    /// A claim says that nothing waits, whatever does.
    DeniesThatAnythingWaits,
    /// All hash rules have one id.
    SharesHashRules,
    /// An attempt that is taken back stays counted.
    UncountsNothing,
}

/// The faults that wait for their operation, and those that are drawn.
#[derive(Debug, Default)]
pub(super) struct Faults {
    injected: HashMap<Operation, VecDeque<Fault>>,
    sky: Option<Sky>,
    pub(super) met: HashMap<Operation, u64>,
}

impl Faults {
    pub(super) fn add(&mut self, operation: Operation, fault: Fault) {
        self.injected.entry(operation).or_default().push_back(fault);
    }

    pub(super) fn left(&self, operation: Operation) -> usize {
        self.injected.get(&operation).map_or(0, VecDeque::len)
    }

    pub(super) fn set_weather(&mut self, weather: Weather) {
        self.sky = (weather != Weather::default()).then(|| Sky::new(weather));
    }

    fn next(&mut self, operation: Operation) -> Drawn {
        if let Some(fault) = self.injected.get_mut(&operation).and_then(VecDeque::pop_front) {
            return Drawn { fault: Some(fault), ..Drawn::default() };
        }
        let drawn = self.sky.as_mut().map(|sky| sky.draw(operation)).unwrap_or_default();
        if drawn.fault.is_some() {
            *self.met.entry(operation).or_default() += 1;
        }
        drawn
    }
}

impl Shared {
    /// Meets the next fault of `operation`. Whether the answer is lost afterwards is for the caller to do.
    pub(super) async fn meet(&self, operation: Operation) -> Result<Met, MemoryError> {
        let Drawn { delay, fault } = self.faults().next(operation);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match fault {
            None => Ok(Met::Nothing),
            Some(Fault::Error(class)) => Err(MemoryError::Injected(class)),
            Some(Fault::ConnectionLost) => Err(MemoryError::ConnectionLost),
            Some(Fault::AnswerLost) => Ok(Met::AnswerLost),
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                Ok(Met::Nothing)
            }
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    /// The same for what a session of this era asks: where all sessions have ended since, its connection is lost.
    pub(super) async fn meet_in(&self, operation: Operation, era: u64) -> Result<Met, MemoryError> {
        let met = self.meet(operation).await;
        if self.state().era == era { met } else { Err(MemoryError::ConnectionLost) }
    }

    /// For how long the server does not notice that a session is gone.
    pub(super) fn lingers(&self) -> Duration {
        self.faults().sky.as_mut().map(Sky::lingers).unwrap_or_default()
    }

    /// Releases everything that a unit holds, and wakes the units that wait for it.
    pub(super) fn release(&self, unit: UnitId) {
        self.state().release(unit);
        self.ended.notify_waiters();
    }

    /// Lets the answer of what was done take its time.
    pub(super) async fn answer(&self) {
        let delay = self.faults().sky.as_mut().map(Sky::delay).unwrap_or_default();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.answered().await;
    }

    /// Lets other tasks run before the answer of what was done, where the weather is so.
    pub(super) async fn answered(&self) {
        let yields = self.faults().sky.as_ref().is_some_and(Sky::yields);
        if yields {
            tokio::task::yield_now().await;
        }
    }
}

/// The fault that befell an operation before it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Nothing,
    AnswerLost,
}

/// The error of a store for one of its driver's.
pub(super) fn store_error(doing: &'static str, error: MemoryError) -> StoreError {
    match error.class() {
        ErrorClass::Infrastructure => StoreError::Unavailable { doing, source: boxed(error) },
        ErrorClass::RunUnitAgain => StoreError::Contended { doing, source: boxed(error) },
        class @ (ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal) => {
            StoreError::Failed { doing, class, source: boxed(error) }
        }
    }
}
