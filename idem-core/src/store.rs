//! For those who write a store: the edge to the database, which holds the record of the keys in the handlers' own
//! transaction. Users of a store need [`Store`], [`Tx`](crate::Tx) and [`Retention`](crate::Retention), which the crate's root has.

pub(crate) mod binding;
pub(crate) mod claim;
pub(crate) mod describe;
mod interned;
pub(crate) mod registration;
pub(crate) mod shared;
pub(crate) mod tx;
pub(crate) mod unit;
pub(crate) mod usage;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

pub use self::{
    binding::Binding,
    claim::{Claim, Claimed, Found, Recorded},
    describe::describe,
    interned::Interned,
    registration::{Registered, Registration},
    shared::IntoStore,
    tx::HandingIn,
    unit::{Ahead, UnitOfWork},
    usage::Usage,
};
use crate::{
    cleanup::Cleaner,
    dead_letter::{DeadLetter, DeadLetterId, Due, DueEnd, DueRoom, PutAside, StoredDeadLetter},
    error::{BoxError, ErrorClass, StoreError},
    hash::PayloadHash,
    names::{ConsumerName, IdempotencyKey, Tenant},
    outbox::rows::Outbox,
    setters::setters,
    standing::{Fact, Tables},
};
pub use crate::{
    error::{ClaimError, CommitError},
    names::{HashRuleId, RunId, ScopeId},
};

/// The capabilities of a store. A capability that is off is refused where it is asked for, never ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// How many lanes may write side by side; `Some(1)` for a database with a single writer.
    pub lanes_max: Option<usize>,
    /// Whether handlers of one unit may run concurrently on its transaction ([`UnitOfWork::shared_tx`]).
    pub concurrent_handlers: bool,
    /// Whether a claim waits for an uncommitted twin of the same key, and only for that. A store without it answers
    /// [`ClaimError::Held`] when any other unit is writing.
    pub waits_per_key: bool,
    /// Whether handlers may publish events: [`UnitOfWork::append`] writes them, and [`Store::outbox`] has them.
    pub outbox: bool,
    /// Whether handlers may set results, which [`UnitOfWork::append`] writes too, and [`UnitOfWork::read_results`] reads.
    pub results: bool,
    /// How many messages a unit may hold. `Some(1)` for a database where each message is a request.
    pub messages_max: Option<usize>,
    /// Whether the writes of a handler through its connection commit together with the record. A store without it is refused with
    /// [`Effects::InTransaction`](crate::Effects::InTransaction).
    pub joins_effects: bool,
    /// Whether a claim is a lease: it outlives the unit that made it, and ends by time. A lease may end while a handler still calls other
    /// systems, so such a store is refused with [`Effects::Outside`](crate::Effects::Outside).
    pub leases: bool,
    /// Whether a message can be kept as a row until a time: [`Bookkeeping::put_aside`].
    pub sets_aside: bool,
}

impl StoreCapabilities {
    /// The capabilities of a full SQL server. It writes neither events nor results.
    #[must_use]
    pub const fn server() -> Self {
        Self {
            lanes_max: None,
            concurrent_handlers: false,
            waits_per_key: true,
            outbox: false,
            results: false,
            messages_max: None,
            joins_effects: true,
            leases: false,
            sets_aside: false,
        }
    }

    /// The capabilities of a database inside the process: one writer. It writes neither events nor results.
    #[must_use]
    pub const fn embedded() -> Self {
        Self { lanes_max: Some(1), waits_per_key: false, ..Self::server() }
    }

    setters! {
        /// Sets whether it writes events.
        outbox: bool,
        /// Sets whether it writes results.
        results: bool,
        /// Sets how many messages a unit may hold.
        messages_max: Option<usize>,
        /// Sets whether the writes of a handler commit together with the record.
        joins_effects: bool,
        /// Sets whether a claim is a lease.
        leases: bool,
        /// Sets whether a message can be kept as a row until a time.
        sets_aside: bool,
    }
}

/// The limits of one unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitOptions {
    /// The worker's run, which goes into each record.
    pub run: RunId,
    /// The lane's number within the run.
    pub lane: i32,
    /// How long the whole claim may wait for uncommitted twins.
    pub busy_timeout: Duration,
    /// How long the transaction may sit idle before the server ends it: the handler's deadline and a margin.
    pub idle_timeout: Duration,
    /// Whether the unit is of one message, so that no handler runs where its key was not inserted. A store may write less then.
    pub alone: bool,
}

impl UnitOptions {
    /// The limits of a unit.
    #[must_use]
    pub const fn new(run: RunId, lane: i32, busy_timeout: Duration, idle_timeout: Duration) -> Self {
        Self { run, lane, busy_timeout, idle_timeout, alone: false }
    }

    setters! {
        /// Sets whether the unit is of one message.
        alone: bool,
        /// Sets how long the whole claim may wait.
        busy_timeout: Duration,
    }
}

/// The session of a look-up, `None` where it must not be used again, and what was found, in the order of the claims.
pub type LookedUp<S> = (Option<<S as Store>::Session>, Vec<Option<Found>>);

/// A store whose handlers have the driver's own connection, to which the transaction of an [`Operation`](crate::once::Operation) then dereferences.
///
/// Implement it where [`Store::Connection`] is a plain `&mut` of that type.
pub trait PlainConnection: Store {
    /// The driver's connection.
    type Plain: ?Sized;

    /// The connection of a unit.
    fn plain(unit: &Self::Unit) -> &Self::Plain;

    /// The connection of a unit, to run statements on.
    fn plain_mut(unit: &mut Self::Unit) -> &mut Self::Plain;
}

/// A transactional store: where the record of the keys and the handlers' effects are committed together.
///
/// # Contract
/// 1. A session is one connection, owned by the code that runs units on it. A call that takes one owns it and gives it back at its
///    end, or `None` where it must not be used again. Dropping a session closes its connection.
/// 2. A call that is dropped, or answers an error without a session, has closed the one that it took.
/// 3. A unit that is dropped closes its session, and leaves nothing committed that was not committed before.
/// 4. A COMMIT that [`UnitOfWork::commit`] did not send fails on the server when the unit inserted any record.
/// 5. `look_up` answers from rows that were committed, and writes nothing.
/// 6. `is_free` leaves nothing behind.
///
/// `idem_conformance::store_conformance!` tests each number.
pub trait Store: Send + Sync + Sized + 'static {
    /// The bookkeeping: all that is done outside of units of work.
    type Bookkeeping: Bookkeeping;
    /// An owned connection.
    type Session: Send + 'static;
    /// The connection on which a handler runs its statements.
    type Connection<'t>: Send;
    /// A running transaction, which owns its session.
    type Unit: UnitOfWork<Self> + 'static;

    /// The capabilities of this store.
    fn capabilities(&self) -> StoreCapabilities;

    /// The store's bookkeeping, outside of units of work. It uses no session.
    fn bookkeeping(&self) -> &Self::Bookkeeping;

    /// The cleaner of this store's expired rows, on a connection of its own. Nothing is connected yet.
    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner>;

    /// The table of the events that handlers published; `None` where the store has none. Nothing is connected yet.
    fn outbox(self: &Arc<Self>) -> Option<Arc<dyn Outbox>> {
        None
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] while the database cannot be reached, [`StoreError::Refused`] when it rejects the
    /// connection.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call leaves no connection behind.
    fn open(&self) -> impl Future<Output = Result<Self::Session, StoreError>> + Send;

    /// Closes a session in good order. Dropping it closes it too, without notice to the server.
    fn close(&self, session: Self::Session) -> impl Future<Output = ()> + Send;

    /// Begins a transaction with the limits of `options`.
    ///
    /// # Errors
    /// Nothing was begun, and the session is closed.
    ///
    /// # Cancel safety
    /// The session of a dropped call is closed.
    fn begin(
        &self,
        session: Self::Session,
        options: UnitOptions,
    ) -> impl Future<Output = Result<Self::Unit, StoreError>> + Send;

    /// Reads the committed records of these keys and the results that were kept with them, in the order of `claims`, outside of any
    /// unit: the way of a repeat that is expected to be one. It neither blocks another transaction nor waits for one: a key
    /// that is held and not committed is `None`, which proves nothing.
    ///
    /// As it is here it begins a unit and rolls it back. A store should take one statement instead, in one round trip and without
    /// a lock.
    ///
    /// # Errors
    /// Nothing is known of the keys, and the session is closed.
    ///
    /// # Cancel safety
    /// The session of a dropped call is closed.
    fn look_up(
        &self,
        session: Self::Session,
        options: UnitOptions,
        claims: &[Claim],
    ) -> impl Future<Output = Result<LookedUp<Self>, StoreError>> + Send {
        async move {
            let mut unit = self.begin(session, options).await?;
            let found = unit.look_up(claims).await?;
            Ok((unit.rollback().await?, found))
        }
    }

    /// Whether a key could be claimed now: it has no record, and no other unit holds it. Waits for one that does as a claim waits.
    ///
    /// As it is here it claims the key in a unit that it rolls back before it answers, and holds the key between the two: for as long as a
    /// round trip takes, in which a first request for the key waits or is refused as beside a twin, and where the process is lost in between,
    /// until the server notices. A claim and a rollback are two calls of any unit, so no default can be shorter: a store whose server is a
    /// network away should send one message, which the server runs to its end by itself.
    ///
    /// # Errors
    /// Nothing is known of the key, and the session is closed.
    ///
    /// # Cancel safety
    /// The session of a dropped call is closed.
    fn is_free(
        &self,
        session: Self::Session,
        options: UnitOptions,
        claim: &Claim,
    ) -> impl Future<Output = Result<(Option<Self::Session>, bool), StoreError>> + Send {
        async move {
            let mut unit = self.begin(session, options).await?;
            let is_free = match unit.claim(std::slice::from_ref(claim)).await {
                Ok(claimed) => matches!(claimed[..], [Claimed::Inserted]),
                Err(ClaimError::Held | ClaimError::NoWinner { .. }) => false,
                Err(ClaimError::Store(error)) => return Err(error),
            };
            Ok((unit.rollback().await?, is_free))
        }
    }

    /// A shorter borrow of a connection, which is what makes [`Tx::connection`](crate::Tx::connection) usable more than once.
    fn reborrow<'a, 't: 'a>(connection: &'a mut Self::Connection<'t>) -> Self::Connection<'a>;

    /// The class of an error that a handler answered with, found in its chain of sources; `None` where no error of
    /// this store's driver is in it. This is the one place where errors are downcast.
    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<ErrorClass>;

    /// The text of a driver's error without any value of a statement or row; `None` where `error` itself is none
    /// of this store's driver.
    fn describe(error: &(dyn std::error::Error + 'static)) -> Option<String>;

    /// The code that the database gave with an error, such as an SQLSTATE; `None` where `error` itself is none of this
    /// store's driver, or has none. Failures with different codes are different groups of dead letters.
    fn code(error: &(dyn std::error::Error + 'static)) -> Option<String> {
        let _ = error;
        None
    }
}

/// The operators' control of a consumer, as its workers read it every few seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Control {
    /// Running, paused or halted.
    pub state: ControlState,
    /// The operator who set it, and the reason; empty while running.
    pub by: String,
    /// The reason that was given.
    pub reason: String,
    /// Raised by forget, replay and restore; a cache of committed keys is emptied when it changes.
    pub epoch: i64,
    /// Which server answered: a cache of committed keys is emptied when it changes.
    pub identity: StoreIdentity,
    /// The database's clock.
    pub now: SystemTime,
}

impl Control {
    /// The values that a store read.
    #[must_use]
    pub fn new(
        state: ControlState,
        by: String,
        reason: String,
        epoch: i64,
        identity: StoreIdentity,
        now: SystemTime,
    ) -> Self {
        Self { state, by, reason, epoch, identity, now }
    }
}

/// Which server, and which life of it, holds the records, as far as the store can tell.
///
/// It differs after a failover, a restore or a restart, any of which may have lost the last commits; it need not differ
/// after all of them. It is compared and never read. A store of one process alone, or of one file, answers the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreIdentity(String);

impl StoreIdentity {
    /// An identity of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Whether a consumer takes messages in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlState {
    /// Messages are taken in.
    Running,
    /// An operator paused intake.
    Paused,
    /// A worker halted, because its policy says so; an operator resumes.
    Halted,
}

impl ControlState {
    /// The word for it in logs, such as `paused`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Halted => "halted",
        }
    }
}

/// One line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The actor: a worker's run, an operator.
    pub who: String,
    /// The action: `start`, `conflict`, `halt`, `replay`.
    pub action: &'static str,
    /// The scope.
    pub scope: ScopeId,
    /// The key, where there is one.
    pub key: Option<IdempotencyKey>,
    /// Both hashes, or other facts that are needed to understand it; never a payload.
    pub details: String,
}

impl AuditEntry {
    /// A line without a key.
    #[must_use]
    pub fn new(who: String, action: &'static str, scope: ScopeId, details: String) -> Self {
        Self { who, action, scope, key: None, details }
    }

    setters! {
        /// Sets what was done.
        action: &'static str,
        /// Sets the key.
        key: Option<IdempotencyKey>,
    }
}

/// A store's work outside of units, on connections of its own: start-up, attempts, dead letters, controls. None
/// of it is on the path of a message that goes well.
///
/// # Contract
/// 1. Each call is one short transaction, or several that can be repeated. None uses a session.
/// 2. Each call is bounded in time by the store, and may be repeated after any error.
/// 3. Each call may be dropped at any point. Whether it took effect is then not known, and no later call meets the remains
///    of its connection.
#[async_trait]
pub trait Bookkeeping: Send + Sync + 'static {
    /// Checks that the schema is the one this build needs, with its indexes and triggers, and that the server is one
    /// that can keep the promise.
    ///
    /// # Errors
    /// [`StoreError::Schema`] or [`StoreError::Refused`], each with its cure.
    async fn verify(&self) -> Result<(), StoreError>;

    /// Interns the consumer and its hash rules, binds it at its first start, and notes this run.
    ///
    /// # Errors
    /// [`StoreError::Bound`] when an earlier start bound the name to something else.
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError>;

    /// Interns the scope of another tenant of a registered consumer.
    async fn scope(&self, consumer: &ConsumerName, tenant: &Tenant) -> Result<ScopeId, StoreError>;

    /// Counts an attempt *before* it runs and answers its number, from 1. A count belongs to a key *and* a payload: another
    /// payload under the same key is another message, and neither touches the other's count.
    /// [`store_dead_letter`](Self::store_dead_letter) and [`due_now`](Self::due_now) end the count of their
    /// payload, and of no other's.
    async fn count_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<u32, StoreError>;

    /// Takes one attempt of this payload back that did not run to a verdict.
    async fn uncount_attempt(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError>;

    /// Ends the count of a payload's attempts, and of no other's, because one of them went well: the key may be used again
    /// after its retention. Core asks for it only where the count is more than one, or is used up. A store with a single writer
    /// may end the counts of a unit's claims with its commit.
    async fn end_attempts(&self, scope: ScopeId, key: &IdempotencyKey, hash: PayloadHash) -> Result<(), StoreError>;

    /// Writes a dead letter, unless one with its [identity](DeadLetter::identity) is there: that one then stands for it,
    /// and counts a copy where its origin is neither that of the first nor that of the last one. Nothing else is ever
    /// folded, whatever its origin.
    ///
    /// Reason, attempts, error and fingerprint are those of the last copy; message and headers are those of the first. A
    /// payload that was not kept is kept now, where this letter says so. A copy from another origin puts a row whose replay
    /// has ended before the operator again.
    ///
    /// A message of which a row [waits](StoredDeadLetter::waits_until) for a later try is that row. Nothing is written then, and
    /// the count of its attempts goes on.
    async fn store_dead_letter(&self, dead_letter: &DeadLetter) -> Result<StoredDeadLetter, StoreError>;

    /// Keeps a message that failed as a row that is [due](Self::take_due) after this time, at most 36 hours, by the database's clock. The
    /// count of its attempts goes on. The message has a key, and its payload is kept.
    ///
    /// A row whose message has an [ordering key of its own](crate::Message::own_ordering_key) runs behind the rows of its scope and key that are
    /// not over, whatever its time. Whether there are any is found where the row is written, so that two calls at once, or the end of a row
    /// meanwhile, leave no row behind nothing.
    ///
    /// A row of the same key and payload that is not over stands for it, whatever its reason, and stays as it is. Else the row is that of
    /// its [identity](DeadLetter::identity): a dead letter that was over waits from now on.
    ///
    /// # Errors
    /// [`StoreError::Refused`] by a store without [`sets_aside`](StoreCapabilities::sets_aside).
    async fn put_aside(&self, letter: &DeadLetter, after: Duration) -> Result<PutAside, StoreError> {
        let _ = after;
        Err(StoreError::Refused {
            problem: format!("this store keeps no message of `{}` until a later try", letter.consumer),
            cure: "Leave later tries off, or use a store that has them".to_owned(),
        })
    }

    /// How many bytes the dead letters of a consumer hold, over all its tenants: payloads that are kept, headers and errors, and
    /// about [`DEAD_LETTER_ROW_BYTES`](crate::dead_letter::DEAD_LETTER_ROW_BYTES) for the rest of each row. Those that a replay has handled do not count. Where all that
    /// the store keeps takes no more than `enough`, it may answer that instead, which is cheap.
    async fn dead_letter_bytes(&self, consumer: &ConsumerName, enough: u64) -> Result<u64, StoreError>;

    /// How much room the tables take, as far as the database says so without reading them. For monitoring their growth.
    async fn usage(&self, consumer: &ConsumerName) -> Result<Usage, StoreError>;

    /// Notes that the dead letter was also published, and its broker has confirmed it.
    async fn mark_published(&self, id: DeadLetterId) -> Result<(), StoreError>;

    /// The dead letters of a consumer, newest first, for people and tests. Payloads are not read.
    async fn dead_letters(&self, consumer: &ConsumerName, max: u32) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// Makes these dead letters due now, on behalf of an operator: running workers of the consumer handle them again, their
    /// attempts counted from the beginning. So does a message that waits for a later try. Returns how many were marked. One whose
    /// replay was asked for already is not marked again, and neither is one that runs, or whose payload was not kept.
    async fn due_now(&self, ids: &[DeadLetterId], by: &str) -> Result<u64, StoreError>;

    /// Takes rows that are due, as many as there is room for, and returns them in the order in which they are to run. From then on they
    /// are this run's, until it ends them or gives them back, or their lease of [`DUE_LEASE`](crate::dead_letter::DUE_LEASE) is over.
    ///
    /// Rows with one ordering key are due in the order of their numbers, and two runs never have rows of one key at a time. The
    /// rows of one tenant do not keep those of another waiting. A row that cannot be read ends as malformed, and the others are
    /// returned. Nothing is written where nothing is due.
    async fn take_due(&self, consumer: &ConsumerName, run: RunId, room: DueRoom) -> Result<Vec<Due>, StoreError>;

    /// Begins the leases of rows again that the run still has.
    async fn renew_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError>;

    /// Gives back rows of the run that did not run: another worker takes them at once, and nothing is charged.
    async fn release_due(&self, run: RunId, ids: &[DeadLetterId]) -> Result<(), StoreError>;

    /// Notes how rows ended. The rows behind them in their ordering keys may then be taken. Ending a row again changes nothing, and a
    /// failure counts only where the run still has the row.
    ///
    /// A row that waited for a later try is removed once its message is handled. If it fails for good, it is a dead letter from then on, as
    /// [`store_dead_letter`](Self::store_dead_letter) would write it, and the count of its attempts ends.
    async fn end_due(&self, run: RunId, ends: &[(DeadLetterId, DueEnd)]) -> Result<(), StoreError>;

    /// Reads the operators' control of the consumer.
    async fn control(&self, scope: ScopeId) -> Result<Control, StoreError>;

    /// The same for a worker, which reports the state of its run with it, in one statement where the database can do both in one. The
    /// last report of a run is made when it `has_ended`. A store that keeps no such thing reads the control alone.
    async fn report(&self, scope: ScopeId, run: RunId, facts: &[Fact], has_ended: bool) -> Result<Control, StoreError> {
        let _ = (run, facts, has_ended);
        self.control(scope).await
    }

    /// What the tables know of the consumer's state; `None` where the store keeps no such thing.
    async fn standing(&self, consumer: &ConsumerName) -> Result<Option<Tables>, StoreError> {
        let _ = consumer;
        Ok(None)
    }

    /// Pauses, halts or resumes the consumer.
    async fn set_control(&self, scope: ScopeId, state: ControlState, by: &str, reason: &str) -> Result<(), StoreError>;

    /// Appends to the audit trail.
    async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError>;
}

/// For stores: a source error boxed.
#[must_use]
pub fn boxed(error: impl std::error::Error + Send + Sync + 'static) -> BoxError {
    Box::new(error)
}
