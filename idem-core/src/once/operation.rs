//! [`Operation`]: an operation under way as a value, for work that cannot be put into a closure.
//!
//! Its unit stands in a slot. [`Operation::tx`] takes the slot's lock for as long as the transaction is lent, so that nothing else can be sent
//! on it meanwhile; what ends the operation needs the lock too.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard},
    task::AbortHandle,
    time::Instant,
};
use tracing::{Instrument as _, Span};

use crate::{
    dead_letter::Reason,
    error::ErrorClass,
    handler::Handler,
    handler_error::{CannotRepeat, HandlerError},
    message::Message,
    names::IdempotencyKey,
    once::{Call, Ran, RunOnce, RunOnceError},
    outbox::{
        collect::Collector,
        event::{Event, PublishError},
    },
    outcome::Failure,
    results::result::{NotKept, ResultBody},
    spawn,
    store::{Store, tx::Tx},
    unit::{
        alone::{self, Rounds},
        answers::Answers,
        close,
        open::Opened,
        run::Worked,
    },
};

/// The answer of [`RunOnce::once`](crate::RunOnce::once).
#[derive(Debug)]
pub enum Begun<S: Store> {
    /// The operation is new, its key is claimed, and its transaction is open.
    First(Operation<S>),
    /// It was done before, with this answer.
    Known(Ran),
}

/// An operation under way. Dropped before its end, it is rolled back, and its key is free again. Where its transaction was used, a statement
/// may still be running, so that its connection is closed; [`give_up`](Self::give_up) keeps the connection.
///
/// It has a connection of its own until its end, one of as many as there are [`lanes`](crate::RunOnceBuilder::lanes): a
/// task that has one and begins another may wait for itself. It takes at most the
/// [deadline of handlers](crate::RunOnceBuilder::handler_deadline), after which nothing of it is kept.
///
/// Its work cannot run again. Where the transaction could not be committed for another's sake, it fails with [`CannotRepeat`].
pub struct Operation<S: Store> {
    message: Message,
    slot: Slot<S>,
    deadline: AbortHandle,
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
    call: Call<S>,
}

/// The transaction of an [`Operation`], lent. Where it is dropped it goes back, or is rolled back if the operation has ended meanwhile.
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
        let slot = Arc::clone(&self.slot).try_lock_owned().map_err(|_locked| over())?;
        let held = OwnedMutexGuard::try_map(slot, Option::as_mut).map_err(|_ended| over())?;
        Ok(OperationTx { held, _operation: PhantomData })
    }

    /// Commits the operation with this as its result.
    ///
    /// # Errors
    /// [`RunOnceError`]. Where the transaction could not be committed for another's sake, nothing of it is kept: ask again with
    /// the same key.
    ///
    /// # Cancel safety
    /// A dropped call lets the commit finish. Ask again with the same key to learn the outcome.
    pub async fn finish(self, value: ResultBody) -> Result<Ran, RunOnceError> {
        let held = self.take().ok_or_else(over)?;
        // A result that is refused fails the operation, and is noted.
        let _ = held.collector.set_result(&self.message, value);
        let worked = Worked::Well { is_taken: held.is_used };
        spawn::finished(held.end(worked)).await
    }

    /// Refuses the operation for good: see [`WorkError::final_result`](crate::WorkError::final_result).
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    ///
    /// # Cancel safety
    /// As for [`finish`](Self::finish).
    pub async fn refuse(self, value: ResultBody) -> Result<Ran, RunOnceError> {
        let held = self.take().ok_or_else(over)?;
        spawn::finished(held.end(Worked::Refused(value))).await
    }

    /// Gives the operation up: it is rolled back, and its key is free again once this has returned. No statement of it may be under way:
    /// drop the operation where the future of one was dropped.
    ///
    /// # Cancel safety
    /// A dropped call lets the end come by itself, as dropping the operation does.
    pub async fn give_up(self) {
        if let Some(held) = self.take() {
            spawn::finished(held.undo()).await;
        }
    }

    /// Takes the unit out of its slot, unless the operation has ended.
    fn take(&self) -> Option<Held<S>> {
        let held = self.slot.try_lock().ok()?.take()?;
        self.deadline.abort();
        Some(held)
    }
}

impl<S: Store> Drop for Operation<S> {
    fn drop(&mut self) {
        // Without a runtime the connection is closed, which rolls back too.
        if let Some(held) = self.take() {
            spawn::detached(held.cut_short());
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

    /// Publishes an event of the operation: see [`Tx::publish`].
    ///
    /// # Errors
    /// [`PublishError`]. The operation then fails, also where its work goes on.
    pub fn publish(&mut self, event: Event) -> Result<IdempotencyKey, PublishError> {
        let message = self.held.call.item.message.clone();
        self.tx().publish(&message, event)
    }
}

impl<S: Store> Held<S> {
    async fn end(self, worked: Worked) -> Result<Ran, RunOnceError> {
        let Self { opened, collector, span, rounds, since, mut call, .. } = self;
        call.own.engine.metrics.handler_time.record(since.elapsed());
        let mut answers = Answers::new(Some(&Gone), call.calls.final_errors);
        answers.of = vec![None];
        let (unit, work) = ((opened, span, rounds), (collector, worked));
        let own = &mut call.own;
        let decision = alone::end_one(&own.engine, &mut own.session, &call.item, unit, work, &mut answers).await;
        let result = answers.of.pop().flatten().unwrap_or(Err(NotKept::Absent));
        call.ended(decision, result).await
    }

    /// Rolls back, within the time for an answer, and gives the connection back.
    async fn undo(self) {
        let Self { opened, mut call, .. } = self;
        call.own.session = close::give_up(&call.own.engine, opened).await;
    }

    /// Ends it wherever its work has come to: a statement may be running, if there was one.
    async fn cut_short(self) {
        if !self.is_used {
            return self.undo().await;
        }
        let Self { opened, call, .. } = self;
        close::abandon(&call.own.engine, opened).await;
    }
}

/// Ends the operation at its deadline: at once, or where its transaction is lent when that comes back.
async fn end_late<S: Store>(slot: Slot<S>, deadline: Duration) {
    tokio::time::sleep(deadline).await;
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
pub(super) async fn begin<S: Store>(runs: &RunOnce<S>, message: Message) -> Result<Begun<S>, RunOnceError> {
    let mut call = runs.call(message).await?;
    let begun = async move {
        if let Some((decision, result)) = call.recorded().await? {
            return call.ended(decision, result).await.map(Begun::Known);
        }
        let mut answers = Answers::new(Some(&Gone), call.calls.final_errors);
        let own = &mut call.own;
        match alone::begin_one(&own.engine, &mut own.session, &call.item, &mut answers).await {
            Ok((opened, span, rounds)) => Ok(Begun::First(held(call, opened, span, rounds))),
            Err(decision) => {
                let result = answers.of.pop().flatten().unwrap_or(Err(NotKept::Absent));
                call.ended(decision, result).await.map(Begun::Known)
            }
        }
    };
    spawn::finished(begun.in_current_span()).await
}

fn held<S: Store>(call: Call<S>, opened: Opened<S>, span: Span, rounds: Rounds) -> Operation<S> {
    let (engine, message) = (&call.own.engine, call.item.message.clone());
    let collector = Collector::of_operation(Arc::clone(&engine.publishing), message.clone());
    collector.runs_once();
    let deadline = engine.settings.handler_deadline;
    let since = Instant::now();
    let held = Held { opened, collector, span, rounds, since, is_used: false, call };
    let slot = Arc::new(Mutex::new(Some(held)));
    let deadline = spawn::spawn(end_late(Arc::clone(&slot), deadline)).abort_handle();
    Operation { message, slot, deadline }
}
