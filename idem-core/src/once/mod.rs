//! [`RunOnce`]: work that is given with each call, and runs once a key.

pub(crate) mod builder;
mod conflicts;
mod expected;
pub(crate) mod operation;
mod request;
mod turns;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

pub use self::{
    builder::RunOnceBuilder,
    operation::{Begun, Operation, OperationTx},
    request::{Outcome, Request},
};
pub use crate::unit::answers::KeyState;

#[cfg(idem_bugs)]
use crate::bugs::{self, Bug};
use crate::{
    error::{BoxError, ErrorClass, StoreError},
    handler::Handler,
    handler_error::HandlerError,
    message::Message,
    names::{ConsumerName, IdempotencyKey},
    once::{
        conflicts::Conflicts,
        expected::{Expected, Repeats},
        turns::{Turn, Turns},
    },
    outcome::{ConflictKind, Decision, Failure},
    pause::{IntakeGate, Pause},
    results::result::{NotKept, ResultBody, StoredResult},
    spawn,
    store::{Bookkeeping as _, Store, claim::Recorded, shared::IntoStore, tx::Tx},
    unit::{
        alone,
        answers::{Answers, Known},
        engine::Engine,
        identify::Item,
        lookup,
        session::OwnSession,
    },
};

/// Runs work that a caller brings along, once for each key: the first call runs it, in the transaction that records the key,
/// and every repeat with the same key and payload gets the first one's answer, byte for byte.
///
/// [`builder`](Self::builder) makes it. Cloning is cheap, and clones share everything.
///
/// ```
/// use idem_core::{
///     Effects, ResultBody, RunOnce, Store,
///     once::{Request, RunOnceError, WorkError},
/// };
///
/// fn transfers<S: Store>(store: S) -> Result<RunOnce<S>, idem_core::ConfigError> {
///     RunOnce::builder(store, "transfers").effects(Effects::InTransaction).allow_final_errors().build()
/// }
///
/// async fn transfer<S: Store>(transfers: &RunOnce<S>, key: &str, payload: &[u8]) -> Result<ResultBody, RunOnceError> {
///     let cents: i64 = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
///     let outcome = transfers
///         .run(Request::new(key, payload), move |tx| {
///             Box::pin(async move {
///                 let _connection = tx.connection(); // the store's own: run statements on it
///                 if cents <= 0 {
///                     // Another call with this key is refused again, without a run.
///                     return Err(WorkError::final_result(ResultBody::new("nothing to transfer").with_status(422)));
///                 }
///                 Ok(ResultBody::json(&serde_json::json!({ "transferred": cents }))?.with_status(201))
///             })
///         })
///         .await?;
///     Ok(outcome.into_result())
/// }
/// ```
pub struct RunOnce<S: Store> {
    engine: Arc<Engine<S>>,
    calls: Arc<Calls>,
}

/// What the calls of this process share.
struct Calls {
    allow_final_errors: bool,
    /// Closed while an operator has paused it.
    gate: IntakeGate,
    /// Whose turn it is with the key of a call.
    turns: Arc<Turns>,
    /// Which calls are expected to be repeats.
    repeats: Repeats,
    /// Which conflicts of calls are noted.
    conflicts: Conflicts,
}

impl Calls {
    fn new(name: &ConsumerName, allow_final_errors: bool) -> Self {
        let (turns, repeats, conflicts) = (Arc::default(), Repeats::default(), Conflicts::of(name));
        Self { allow_final_errors, gate: IntakeGate::new(), turns, repeats, conflicts }
    }

    fn expected(&self, item: &Item) -> Expected {
        item.claim.as_ref().map_or(Expected::First, |claim| self.repeats.expected(claim))
    }

    /// Learns from a call that has ended, and notes it where it was a conflict.
    async fn note<S: Store>(&self, engine: &Engine<S>, item: &Item, expected: Expected, decision: &Decision) {
        if let Some(claim) = &item.claim {
            self.repeats.note(claim, expected, decision);
        }
        self.conflicts.note(engine, item, decision).await;
    }
}

impl<S: Store> Clone for RunOnce<S> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine), calls: Arc::clone(&self.calls) }
    }
}

impl<S: Store> fmt::Debug for RunOnce<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOnce").field("name", &self.engine.name).finish_non_exhaustive()
    }
}

/// The future of a call's work.
pub type Working<'a> = Pin<Box<dyn Future<Output = Result<ResultBody, WorkError>> + Send + 'a>>;

/// Why the work of a [`RunOnce`] did not answer. `?` makes one of any error, which then is a failure and no outcome: nothing is
/// stored, and the next call with the key runs the work.
///
/// A handler under a [`Worker`](crate::Worker) answers a [`HandlerError`] and can have no final error: its message would be
/// acknowledged without its effect, and without a dead letter.
#[derive(Debug)]
pub struct WorkError(Why);

#[derive(Debug)]
enum Why {
    Final(Box<ResultBody>),
    Failed(HandlerError),
}

impl WorkError {
    /// The operation is refused for good, with this answer: the work's writes and events are taken back, the refusal is
    /// stored with the key, and every repeat gets it without a run. Needs
    /// [`allow_final_errors`](crate::once::RunOnceBuilder::allow_final_errors).
    ///
    /// A refusal with effects of its own, such as a declined payment that is to be counted, is no error: answer it with `Ok`.
    #[must_use]
    pub fn final_result(result: ResultBody) -> Self {
        Self(Why::Final(Box::new(result)))
    }

    /// The work failed. [`HandlerError`] says what class an error has.
    #[must_use]
    pub fn failed(error: HandlerError) -> Self {
        Self(Why::Failed(error))
    }
}

impl<E: Into<BoxError>> From<E> for WorkError {
    fn from(error: E) -> Self {
        Self(Why::Failed(HandlerError::from(error)))
    }
}

/// Why a call of a [`RunOnce`] has no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunOnceError {
    /// The key was used before with another payload. Nothing ran, and no stored data is shown. It is counted and logged; the
    /// audit trail has a line about it once an hour a key, and for 32 keys an hour, so that no refusal is a write each time.
    #[error("the key {key} cannot be used: {}", kind.as_str())]
    Conflict {
        /// The key.
        key: IdempotencyKey,
        /// How it was found. By a [rule that is not known here](ConflictKind::UnknownRule) it may be this very operation that was done,
        /// so that a caller who draws a new key does it twice: ask again, where the rule is known.
        kind: ConflictKind,
        /// The record of the other operation. It is for the operator of the service: its content is not the caller's.
        recorded: Box<Recorded>,
    },
    /// Another call has been running this operation for longer than
    /// [`busy_timeout`](crate::once::RunOnceBuilder::busy_timeout); or the answers to several commits in a row were lost. Ask
    /// again with the same key.
    #[error("the operation is in progress; ask again with the same key")]
    Busy,
    /// The operation is done, but its result cannot be given. It never runs again.
    #[error("the operation was done before, but {why}")]
    NotKept {
        /// The record of the operation.
        recorded: Box<Recorded>,
        /// Why there is no result.
        #[source]
        why: NotKept,
    },
    /// This consumer does not accept the key, the tenant or the payload. Nothing ran.
    #[error("{0}")]
    Refused(Failure),
    /// An operator has paused it, as [`obey_control`](RunOnce::obey_control) has read, and the operation was not done. Nothing ran;
    /// ask again with the same key.
    #[error("{0}")]
    Paused(Pause),
    /// The work failed, or did not end in time. Nothing was written, and the next call with the key runs it.
    #[error("{0}")]
    Failed(Failure),
    /// The database could not be asked, or cannot keep the promise as it is. Nothing is known of the operation; ask again with
    /// the same key.
    #[error("{failure}{next}", failure = .0, next = next_step(.0))]
    Unavailable(Failure),
}

/// What the caller can do about a database that cannot be used; where a person must act first, the failure's own text says it.
fn next_step(failure: &Failure) -> &'static str {
    match failure.class {
        ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure => {
            "; ask again with the same key"
        }
        ErrorClass::Permanent | ErrorClass::Fatal => "",
    }
}

/// The work of one call as a handler.
struct OfCall<F>(F);

impl<S, F> Handler<S> for OfCall<F>
where
    S: Store,
    F: for<'a, 't> Fn(&'a mut Tx<'t, S>) -> Working<'a> + Send + Sync + 'static,
{
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        match (self.0)(tx).await {
            Ok(value) => Ok(tx.set_result(message, value)?),
            Err(WorkError(Why::Final(outcome))) => Err(HandlerError::final_result(*outcome)),
            Err(WorkError(Why::Failed(error))) => Err(error),
        }
    }
}

impl<S: Store> RunOnce<S> {
    /// Settings of one with this name on this store, or on an [`Arc`] of one that others use too. The name scopes its keys.
    pub fn builder(store: impl IntoStore<S>, name: &str) -> RunOnceBuilder<S> {
        RunOnceBuilder::new(store.into_store(), name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ConsumerName {
        &self.engine.name
    }

    /// The time by the database's clock, as it was learned at the start; `None` before that. After a failover to a server whose clock
    /// differs it is still that of the former one.
    #[must_use]
    pub fn database_now(&self) -> Option<std::time::SystemTime> {
        self.engine.registered.get().map(|_| self.engine.clock.now())
    }

    /// Checks the schema and registers the name, as [`DedupConsumer::start`](crate::DedupConsumer::start) does.
    ///
    /// # Errors
    /// [`StoreError`] with the cure in its text.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn start(&self) -> Result<(), StoreError> {
        self.engine.register(None).await.map(|_| ())
    }

    /// Reads the operators' control of this name, and obeys it until the next call: while it is paused or halted, no work begins.
    /// The answer of an operation that was done is given as ever, any other call is [`RunOnceError::Paused`],
    /// and work that is under way goes on.
    ///
    /// A [`Worker`](crate::Worker) reads it every two seconds; whatever calls the work has to do the same, since nothing else reads
    /// it here. `HttpService` of `idem-service` does.
    ///
    /// # Errors
    /// [`StoreError`]. The control that was read last is obeyed on.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn obey_control(&self) -> Result<(), StoreError> {
        let scope = self.engine.register(None).await?.scope;
        let control = self.engine.store.bookkeeping().control(scope).await?;
        self.engine.clock.set(control.now);
        self.calls.gate.obey(&self.engine.name, &control);
        Ok(())
    }

    /// Why no work begins, by the control that was read last, and for how long already; `None` while it does.
    #[must_use]
    pub fn pause(&self) -> Option<(Pause, Duration)> {
        Some((self.calls.gate.pause()?, self.calls.gate.paused_for().unwrap_or_default()))
    }

    /// Runs `work` unless an operation with this key was done before, and returns the first run's outcome.
    ///
    /// The work is called again where its transaction could not be committed for another's sake (a deadlock), and where the
    /// answer to the commit was lost and nothing had been committed, so it must not use anything up. Its writes through the
    /// transaction happen once; its effects elsewhere may be repeated. To publish, it has the message as
    /// [`tx.message()`](Tx::message).
    ///
    /// At most [`lanes`](crate::once::RunOnceBuilder::lanes) calls run at once; the others wait their turn, for as long as it takes. Calls
    /// with one key wait for the first of them in memory, for [`busy_timeout`](crate::once::RunOnceBuilder::busy_timeout) at most, and take
    /// no lane meanwhile; one process of several that ask for it waits on a lane, as long again.
    ///
    /// # Errors
    /// [`RunOnceError`].
    ///
    /// # Cancel safety
    /// A task finishes the work that a dropped call has begun. Ask again with the same key to learn the outcome.
    pub async fn run<F>(&self, request: impl Into<Request>, work: F) -> Result<Outcome, RunOnceError>
    where
        F: for<'a, 't> Fn(&'a mut Tx<'t, S>) -> Working<'a> + Send + Sync + 'static,
    {
        let mut call = self.call(request.into().0).await?;
        #[cfg(idem_bugs)]
        let (early, handed_out) = tokio::sync::mpsc::unbounded_channel();
        let ended = spawn::finished(async move {
            if let Some((decision, result)) = call.recorded().await? {
                return call.ended(decision, result).await;
            }
            let work = OfCall(work);
            let mut answers = Answers::new(Some(&work), call.calls.allow_final_errors);
            #[cfg(idem_bugs)]
            {
                answers.early = Some(early);
            }
            let own = &mut call.own;
            let decision = alone::decide_one(&own.engine, &mut own.session, &call.item, Some(&mut answers)).await;
            let result = answers.of.pop().flatten().unwrap_or(Err(NotKept::Absent));
            call.ended(decision, result).await
        });
        #[cfg(idem_bugs)]
        let ended = before_the_commit(ended, handed_out);
        ended.await
    }

    /// The same for code that cannot put its work into a closure, such as a request whose handler belongs to a framework: the first caller
    /// gets an open transaction as a value, and every other the first one's answer.
    ///
    /// ```
    /// # use idem_core::{
    /// #     ResultBody, RunOnce, Store,
    /// #     once::{Begun, Request, RunOnceError},
    /// # };
    /// async fn pay<S: Store>(payments: &RunOnce<S>, key: &str, payload: &[u8]) -> Result<ResultBody, RunOnceError> {
    ///     match payments.begin(Request::new(key, payload)).await? {
    ///         Begun::Known(outcome) => Ok(outcome.into_result()),
    ///         Begun::First(mut operation) => {
    ///             {
    ///                 let mut tx = operation.tx()?;
    ///                 let _connection = tx.connection(); // the store's own: run statements on it
    ///             }
    ///             Ok(operation.finish(ResultBody::new("paid")).await?.into_result())
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RunOnceError`].
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call leaves nothing behind.
    pub async fn begin(&self, request: impl Into<Request>) -> Result<Begun<S>, RunOnceError> {
        operation::begin(self, request.into().0, true).await
    }

    /// The same for work that [`Operation::attend`](operation::Operation::attend) polls, which keeps its deadline.
    #[doc(hidden)]
    pub async fn begin_attended(&self, message: Message) -> Result<Begun<S>, RunOnceError> {
        operation::begin(self, message, false).await
    }

    /// The state of the operation with this key, without running anything: for a caller that has lost an answer.
    /// The payload is not compared, so anyone who may ask may read the answer.
    ///
    /// # Errors
    /// [`RunOnceError::Refused`] where the request has no key, and [`RunOnceError::Unavailable`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is written.
    pub async fn key_state(&self, request: impl Into<Request>) -> Result<KeyState, RunOnceError> {
        let item = self.identified(request.into().0).await?;
        let mut own = OwnSession::of(&self.engine).await;
        spawn::finished(async move {
            let state = lookup::ask(&own.engine, &mut own.session, &item).await;
            state.map_err(|error| RunOnceError::Unavailable(alone::store_failure::<S>(&error)))
        })
        .await
    }

    /// Registers the name, and finds the message's key.
    pub(super) async fn identified(&self, message: Message) -> Result<Item, RunOnceError> {
        let register = self.engine.register(None).await;
        register.map_err(|error| RunOnceError::Unavailable(alone::store_failure::<S>(&error)))?;
        self.engine.identify(message, None).await.map_err(|rejected| match rejected.failure.class {
            ErrorClass::Permanent => RunOnceError::Refused(rejected.failure),
            ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure | ErrorClass::Fatal => {
                RunOnceError::Unavailable(rejected.failure)
            }
        })
    }

    /// Waits for the call's turn with its key, and for a connection.
    async fn call(&self, message: Message) -> Result<Call<S>, RunOnceError> {
        let item = self.identified(message).await?;
        let turn = match &item.claim {
            Some(claim) => self.calls.turns.take(claim, self.engine.settings.busy_timeout).await,
            None => Ok(None),
        };
        let turn = turn.map_err(|_too_long| RunOnceError::Busy)?;
        let own = OwnSession::of(&self.engine).await;
        // Asked for here, after the wait for a connection, which may be a long one.
        let pause = self.calls.gate.pause();
        Ok(Call { item, own, calls: Arc::clone(&self.calls), pause, expected: Expected::First, turn })
    }

    /// The outcome of the operation with this key and payload; `None` where it was not done. Nothing runs, and nothing
    /// is written: it is one statement, where the store can. Calls do the same by themselves where they expect to be a repeat,
    /// because their key was seen here before. A caller with another reason to expect one, such as a client that says so, asks
    /// first.
    ///
    /// # Errors
    /// [`RunOnceError`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn peek(&self, request: impl Into<Request>) -> Result<Option<Outcome>, RunOnceError> {
        let item = self.identified(request.into().0).await?;
        let mut own = OwnSession::of(&self.engine).await;
        let calls = Arc::clone(&self.calls);
        spawn::finished(async move {
            let expected = calls.expected(&item);
            let Some((decision, result)) = recorded(&mut own, &item).await else { return Ok(None) };
            calls.note(&own.engine, &item, expected, &decision).await;
            answered(decision, result, item.message.key().cloned()).map(Some)
        })
        .await
    }
}

/// A call that has its turn and a connection.
struct Call<S: Store> {
    item: Item,
    own: OwnSession<S>,
    calls: Arc<Calls>,
    pause: Option<Pause>,
    expected: Expected,
    turn: Option<Turn>,
}

impl<S: Store> Call<S> {
    /// The decision by the record of the operation, where it is expected to have one; `None` where its work is to run.
    async fn recorded(&mut self) -> Result<Option<(Decision, Known)>, RunOnceError> {
        self.expected = self.calls.expected(&self.item);
        let is_looked_up = self.expected != Expected::First || self.pause.is_some();
        let recorded = if is_looked_up { recorded(&mut self.own, &self.item).await } else { None };
        match (recorded, self.pause.take()) {
            (None, Some(pause)) => Err(RunOnceError::Paused(pause)),
            (recorded, _) => Ok(recorded),
        }
    }

    /// Learns from the end of the call, and answers it.
    async fn ended(self, decision: Decision, result: Known) -> Result<Outcome, RunOnceError> {
        let Self { item, own, calls, expected, turn, .. } = self;
        calls.note(&own.engine, &item, expected, &decision).await;
        if let Some(turn) = turn
            && matches!(decision, Decision::Processed(_) | Decision::Duplicate(..) | Decision::Conflict(..))
        {
            turn.decided();
        }
        answered(decision, result, item.message.key().cloned())
    }
}

/// The decision by the record of an operation, with its result. `None` where it has none.
async fn recorded<S: Store>(own: &mut OwnSession<S>, item: &Item) -> Option<(Decision, Known)> {
    let recorded = lookup::recorded(&own.engine, &mut own.session, item).await;
    recorded.unwrap_or_else(|error| Some((Decision::Failed(alone::store_failure::<S>(&error)), Err(NotKept::Absent))))
}

/// The end of a call; but where the bug is planted, its answer as soon as there is one, and the commit comes when it comes.
#[cfg(idem_bugs)]
async fn before_the_commit(
    ended: impl Future<Output = Result<Outcome, RunOnceError>> + Unpin,
    mut handed_out: tokio::sync::mpsc::UnboundedReceiver<StoredResult>,
) -> Result<Outcome, RunOnceError> {
    if !bugs::planted(Bug::AnswersBeforeCommit) {
        return ended.await;
    }
    let answered = tokio::select! {
        biased;
        Some(answered) = handed_out.recv() => answered,
        ended = ended => match handed_out.try_recv() {
            Ok(answered) => answered,
            Err(_) => return ended,
        },
    };
    Ok(Outcome::of(answered, None))
}

fn answered(
    decision: Decision,
    result: Result<StoredResult, NotKept>,
    key: Option<IdempotencyKey>,
) -> Result<Outcome, RunOnceError> {
    let (result, recorded) = match decision {
        Decision::Processed(_) => (result, None),
        Decision::Duplicate(recorded, _) => (result, Some(recorded)),
        Decision::Conflict(recorded, kind) => {
            let key = key.unwrap_or_else(|| recorded.key.clone());
            return Err(RunOnceError::Conflict { key, kind, recorded: Box::new(recorded) });
        }
        Decision::Busy => return Err(RunOnceError::Busy),
        Decision::Failed(failure) => {
            let ours =
                failure.error.is_none() && matches!(failure.class, ErrorClass::Infrastructure | ErrorClass::Fatal);
            return Err(if ours { RunOnceError::Unavailable(failure) } else { RunOnceError::Failed(failure) });
        }
    };
    match (result, recorded) {
        (Ok(result), recorded) => Ok(Outcome::of(result, recorded)),
        (Err(why), Some(recorded)) => Err(RunOnceError::NotKept { recorded: Box::new(recorded), why }),
        // Its work has answered, so there is one.
        (Err(_), None) => Err(RunOnceError::Busy),
    }
}
