//! [`Operation`]: an operation under way as a value, for work that cannot be put into a closure.
//!
//! Its unit stands in a slot. [`Operation::tx`] takes the slot's lock for as long as the transaction is lent, so that nothing else can be sent
//! on it meanwhile; what ends the operation needs the lock too.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard},
    task::AbortHandle,
    time::Instant,
};
use tracing::{Instrument as _, Span};

#[cfg(idem_bugs)]
use crate::once::before_the_commit;
use crate::{
    dead_letter::Reason,
    error::ErrorClass,
    handler::Handler,
    handler_error::{CannotRepeat, HandlerError},
    message::Message,
    once::{Call, RunOnce, RunOnceError, request::Outcome},
    outbox::{
        collect::Collector,
        event::{Event, EventId, PublishError},
    },
    outcome::Failure,
    results::result::{NotKept, ResultBody},
    spawn,
    store::{PlainConnection, Store, tx::Tx},
    unit::{
        alone::{self, Rounds},
        answers::Answers,
        close,
        engine::Engine,
        handlers,
        open::Opened,
        run::{self, Worked},
    },
};

/// The answer of [`RunOnce::begin`](crate::RunOnce::begin).
#[derive(Debug)]
pub enum Begun<S: Store> {
    /// The operation is new, its key is claimed, and its transaction is open.
    First(Operation<S>),
    /// It was done before, with this answer.
    Known(Outcome),
}

/// An operation under way. Dropped before its end, it is rolled back, and its key is free again. Where its transaction was used, a statement
/// may still be running, so that its connection is closed; [`give_up`](Self::give_up) keeps the connection.
///
/// It has a connection of its own until its end, one of as many as there are [`lanes`](crate::once::RunOnceBuilder::lanes): a
/// task that has one and begins another may wait for itself. It takes at most the
/// [deadline of handlers](crate::once::RunOnceBuilder::handler_deadline), after which nothing of it is kept.
///
/// Its work cannot run again. Where the transaction could not be committed for another's sake, it fails with [`CannotRepeat`].
pub struct Operation<S: Store> {
    message: Message,
    engine: Arc<Engine<S>>,
    span: Span,
    slot: Slot<S>,
    /// Ends it at its deadline; `None` where [`attend`](Self::attend) does.
    timer: Option<AbortHandle>,
    /// Whether the timer's time has come.
    is_late: Arc<AtomicBool>,
}

type Slot<S> = Arc<Mutex<Option<Held<S>>>>;

/// The unit of an operation, and what it needs to end. The transaction goes first, then the call's place and its turn.
struct Held<S: Store> {
    opened: Opened<S>,
    collector: Collector<'static>,
    span: Span,
    rounds: Rounds,
    since: Instant,
    is_used: bool,
    #[cfg(idem_bugs)]
    early: Option<tokio::sync::mpsc::UnboundedSender<crate::results::result::StoredResult>>,
    call: Call<S>,
}

/// Where the transaction of an operation is.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// With the operation, and it was used or not.
    Here { is_used: bool },
    /// Somebody has it.
    Lent,
    /// The operation has ended.
    Ended,
}

/// Lends the transaction of an [`Operation`] to code that cannot borrow the operation.
#[doc(hidden)]
pub struct Lender<S: Store>(Slot<S>);

impl<S: Store> fmt::Debug for Lender<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").finish_non_exhaustive()
    }
}

impl<S: Store> Lender<S> {
    /// The transaction, until what this returns is dropped.
    ///
    /// # Errors
    /// Another has it, or the operation has ended.
    pub fn lend(&self) -> Result<OperationTx<'static, S>, Whereabouts> {
        let slot = Arc::clone(&self.0).try_lock_owned().map_err(|_locked| Whereabouts::Lent)?;
        let held = OwnedMutexGuard::try_map(slot, Option::as_mut).map_err(|_ended| Whereabouts::Ended)?;
        Ok(OperationTx { held, _operation: PhantomData })
    }

    /// Where it is now.
    #[must_use]
    pub fn whereabouts(&self) -> Whereabouts {
        match self.0.try_lock().as_deref() {
            Ok(Some(held)) => Whereabouts::Here { is_used: held.is_used },
            Ok(None) => Whereabouts::Ended,
            Err(_locked) => Whereabouts::Lent,
        }
    }
}

/// The transaction of an [`Operation`], lent. Where it is dropped it goes back, or is rolled back if the operation has ended meanwhile.
///
/// It dereferences to the connection where that is a type of the driver's own, as sqlx's is.
pub struct OperationTx<'o, S: Store> {
    held: OwnedMappedMutexGuard<Option<Held<S>>, Held<S>>,
    _operation: PhantomData<&'o mut Operation<S>>,
}

impl<S: Store> fmt::Debug for Operation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

impl<S: Store> fmt::Debug for OperationTx<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationTx").finish_non_exhaustive()
    }
}

impl<S: Store> Operation<S> {
    /// The operation as its work has it in [`Tx::message`]: with its key, from which [derived keys](Message::derived_key) for others
    /// follow.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The transaction. May be asked for several times; whether it can go on after an error of the database is up to the database.
    ///
    /// # Errors
    /// The operation has ended meanwhile, at its deadline; nothing of it is kept.
    pub fn tx(&mut self) -> Result<OperationTx<'_, S>, RunOnceError> {
        self.lender().lend().map_err(|_ended| over())
    }

    #[doc(hidden)]
    #[must_use]
    pub fn lender(&self) -> Lender<S> {
        Lender(Arc::clone(&self.slot))
    }

    /// Polls work that has this transaction as a handler is polled: within the deadline of handlers, in a span of its own, and with its panics
    /// caught. Work that is late or panics is dropped, and the operation is ended on the server.
    ///
    /// # Errors
    /// [`RunOnceError::Failed`] for work that is late or panics.
    ///
    /// # Cancel safety
    /// A dropped call drops the work, and the operation ends by itself.
    #[doc(hidden)]
    pub async fn attend<T, E>(
        self,
        work: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<(Self, Result<T, E>), RunOnceError> {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
        let attended = handlers::attended(&self.engine, &self.message, work).instrument(self.span.clone()).await;
        match attended {
            Ok(answer) => Ok((self, answer)),
            Err(failure) => {
                if let Ok(mut held) = self.take() {
                    held.is_used = true;
                    spawn::finished(held.cut_short()).await;
                }
                Err(RunOnceError::Failed(failure))
            }
        }
    }

    /// Commits the operation with this as its result.
    ///
    /// # Errors
    /// [`RunOnceError`]. Where the transaction could not be committed for another's sake, nothing of it is kept: ask again with
    /// the same key.
    ///
    /// # Cancel safety
    /// A dropped call lets the commit finish. Ask again with the same key to learn the outcome.
    pub async fn finish(self, value: ResultBody) -> Result<Outcome, RunOnceError> {
        #[cfg_attr(not(idem_bugs), expect(unused_mut, reason = "a planted bug sets a field"))]
        let mut held = self.take().map_err(|whereabouts| self.not_here(whereabouts))?;
        // A result that is refused fails the operation, and is noted.
        let _ = held.collector.set_result(&self.message, value);
        let worked = Worked::Well { is_taken: held.is_used };
        #[cfg(idem_bugs)]
        let (early, handed_out) = tokio::sync::mpsc::unbounded_channel();
        #[cfg(idem_bugs)]
        {
            held.early = Some(early);
        }
        let ended = spawn::finished(held.end(worked));
        #[cfg(idem_bugs)]
        let ended = before_the_commit(ended, handed_out);
        ended.await
    }

    /// Refuses the operation for good: see [`WorkError::final_result`](crate::once::WorkError::final_result).
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    ///
    /// # Cancel safety
    /// As for [`finish`](Self::finish).
    pub async fn refuse(self, value: ResultBody) -> Result<Outcome, RunOnceError> {
        let held = self.take().map_err(|whereabouts| self.not_here(whereabouts))?;
        spawn::finished(held.end(Worked::Refused(value))).await
    }

    /// Gives the operation up: it is rolled back, and its key is free again once this has returned. No statement of it may be under way:
    /// drop the operation where the future of one was dropped.
    ///
    /// # Cancel safety
    /// A dropped call lets the end come by itself, as dropping the operation does.
    pub async fn give_up(self) {
        if let Ok(held) = self.take() {
            spawn::finished(held.undo()).await;
        }
    }

    /// Why it cannot be ended now. At its deadline the timer has the transaction, or waits for it.
    fn not_here(&self, whereabouts: Whereabouts) -> RunOnceError {
        if whereabouts != Whereabouts::Lent || self.is_late.load(Ordering::Acquire) {
            return over();
        }
        let text = "the transaction of the operation is still lent; nothing of it is kept";
        RunOnceError::Failed(Failure::new(ErrorClass::Permanent, Reason::Permanent, text))
    }

    /// Takes the unit out of its slot, unless another has it or the operation has ended.
    fn take(&self) -> Result<Held<S>, Whereabouts> {
        let held = self.slot.try_lock().map_err(|_locked| Whereabouts::Lent)?.take().ok_or(Whereabouts::Ended)?;
        if let Some(timer) = &self.timer {
            timer.abort();
        }
        Ok(held)
    }
}

impl<S: Store> Drop for Operation<S> {
    fn drop(&mut self) {
        // Without a runtime the connection is closed, which rolls back too.
        match self.take() {
            Ok(held) => spawn::detached(held.cut_short()),
            Err(Whereabouts::Lent) => spawn::detached(end_when_back(Arc::clone(&self.slot))),
            Err(Whereabouts::Here { .. } | Whereabouts::Ended) => {}
        }
    }
}

impl<S: Store> OperationTx<'_, S> {
    /// The transaction as a handler has it.
    pub fn tx(&mut self) -> Tx<'_, S> {
        let Held { opened, collector, is_used, .. } = &mut *self.held;
        *is_used = true;
        opened.tx().of_operation(collector)
    }

    /// The connection to run statements on, of the store's own type.
    pub fn connection(&mut self) -> S::Connection<'_> {
        self.tx().into_connection()
    }

    /// Publishes an event of the operation: see [`Tx::publish`].
    ///
    /// # Errors
    /// [`PublishError`]. The operation then fails, also where its work goes on.
    pub fn publish(&mut self, event: Event) -> Result<EventId, PublishError> {
        let message = self.held.call.item.message.clone();
        self.tx().publish(&message, event)
    }
}

impl<S: PlainConnection> Deref for OperationTx<'_, S> {
    type Target = S::Plain;

    fn deref(&self) -> &S::Plain {
        S::plain(self.held.opened.unit())
    }
}

impl<S: PlainConnection> DerefMut for OperationTx<'_, S> {
    fn deref_mut(&mut self) -> &mut S::Plain {
        let Held { opened, is_used, .. } = &mut *self.held;
        *is_used = true;
        S::plain_mut(opened.unit_mut())
    }
}

impl<S: Store> Held<S> {
    async fn end(self, worked: Worked) -> Result<Outcome, RunOnceError> {
        let Self { opened, collector, span, rounds, since, mut call, .. } = self;
        call.own.engine.metrics.handler_time.record(since.elapsed());
        let mut answers = Answers::new(Some(&Gone), call.calls.allow_final_errors);
        answers.of = vec![None];
        #[cfg(idem_bugs)]
        {
            answers.early = self.early;
        }
        let (unit, work) = ((opened, span, rounds), (collector, worked));
        let own = &mut call.own;
        let decision = alone::end_one(&own.engine, &mut own.session, &call.item, unit, work, &mut answers).await;
        let result = answers.of.pop().flatten().unwrap_or(Err(NotKept::Absent));
        call.ended(decision, result).await
    }

    /// Rolls back, within the time for an answer, and gives the connection back.
    async fn undo(self) {
        let Self { opened, span, since, mut call, .. } = self;
        call.own.engine.metrics.handler_time.record(since.elapsed());
        call.own.session = close::give_up(&call.own.engine, opened).instrument(span.clone()).await;
        run::note_given_up(&call.own.engine, &span);
    }

    /// Ends it wherever its work has come to: a statement may be running, if there was one.
    async fn cut_short(self) {
        if !self.is_used {
            return self.undo().await;
        }
        let Self { opened, span, since, call, .. } = self;
        call.own.engine.metrics.handler_time.record(since.elapsed());
        close::abandon(&call.own.engine, opened).instrument(span.clone()).await;
        run::note_given_up(&call.own.engine, &span);
    }
}

/// Ends the operation at its deadline: at once, or where its transaction is lent when that comes back.
async fn end_late<S: Store>(slot: Slot<S>, is_late: Arc<AtomicBool>, deadline: Duration) {
    tokio::time::sleep(deadline).await;
    is_late.store(true, Ordering::Release);
    end_when_back(slot).await;
}

async fn end_when_back<S: Store>(slot: Slot<S>) {
    let held = slot.lock().await.take();
    if let Some(held) = held {
        held.cut_short().await;
    }
}

/// The work of an operation whose unit runs again.
struct Gone;

impl<S: Store> Handler<S> for Gone {
    async fn handle(&self, _: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        Err(CannotRepeat.into())
    }
}

fn over() -> RunOnceError {
    let text = "the operation has ended meanwhile, at its deadline; nothing of it is kept";
    RunOnceError::Failed(Failure::new(ErrorClass::Transient, Reason::Deadline, text))
}

/// Claims the key, or answers what is known of it.
pub(super) async fn begin<S: Store>(
    runs: &RunOnce<S>,
    message: Message,
    is_timed: bool,
) -> Result<Begun<S>, RunOnceError> {
    let mut call = runs.call(message).await?;
    let begun = async move {
        if let Some((decision, result)) = call.recorded().await? {
            return call.ended(decision, result).await.map(Begun::Known);
        }
        let mut answers = Answers::new(Some(&Gone), call.calls.allow_final_errors);
        let own = &mut call.own;
        match alone::begin_one(&own.engine, &mut own.session, &call.item, &mut answers).await {
            Ok((opened, span, rounds)) => Ok(Begun::First(held(call, opened, span, rounds, is_timed))),
            Err(decision) => {
                let result = answers.of.pop().flatten().unwrap_or(Err(NotKept::Absent));
                call.ended(decision, result).await.map(Begun::Known)
            }
        }
    };
    spawn::finished(begun.in_current_span()).await
}

fn held<S: Store>(call: Call<S>, opened: Opened<S>, span: Span, rounds: Rounds, is_timed: bool) -> Operation<S> {
    let (engine, message) = (Arc::clone(&call.own.engine), call.item.message.clone());
    let collector = Collector::of_operation(Arc::clone(&engine.publishing), message.clone());
    collector.runs_once();
    let deadline = engine.settings.handler_deadline;
    let since = Instant::now();
    let held = Held {
        opened,
        collector,
        span: span.clone(),
        rounds,
        since,
        is_used: false,
        #[cfg(idem_bugs)]
        early: None,
        call,
    };
    let slot = Arc::new(Mutex::new(Some(held)));
    let is_late = Arc::new(AtomicBool::new(false));
    let ends_late = || end_late(Arc::clone(&slot), Arc::clone(&is_late), deadline);
    let timer = is_timed.then(|| spawn::spawn(ends_late()).abort_handle());
    Operation { message, engine, span, slot, timer, is_late }
}
