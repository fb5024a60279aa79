//! Runs the handlers of a unit: one after the other, or at once on the transaction that they share.

use std::{
    borrow::Borrow,
    collections::HashMap,
    future::Future,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::{
    config::Concurrency,
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    failpoint,
    handler::{Answer, BatchAnswer, DynBatchHandler, DynHandler, Handled, Work},
    handler_error::HandlerError,
    message::Message,
    names::OrderingKey,
    outbox::{
        collect::{Collector, HandedIn},
        event::PublishError,
    },
    outcome::{Failure, Ticket},
    results::result::ResultBody,
    store::{
        Store,
        describe::{code, one_line},
        tx::Tx,
        unit::UnitOfWork,
    },
    telemetry::spans,
    unit::{engine::Engine, identify::Item, session::inject},
};

/// Why the handlers of a unit did not all succeed.
pub(super) enum HandlingError {
    /// These messages' handlers failed, and left the connection like this.
    Handlers { failed: Vec<(usize, Failure)>, left: TransactionState },
    /// The work of a call was refused for good, and this is its outcome.
    Final(ResultBody),
    /// A handler has spoilt the transaction.
    Unsealed(StoreError),
    /// The store did, or a failpoint.
    Store(StoreError),
}

/// In which state handlers left the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TransactionState {
    /// As they found it, and to be probed.
    Clean,
    /// Unknown: one panicked, or left a transaction open.
    Unknown,
    /// A statement may still run on it: one passed its deadline and was dropped in the middle.
    Busy,
}

/// The events and results of a unit's handlers, by the place of their message in the unit and in its order, without
/// handlers that handed nothing in.
pub(super) type AllHandedIn = Vec<(usize, HandedIn)>;

impl HandlingError {
    pub(super) fn one(index: usize, failure: Failure, left: TransactionState) -> Self {
        Self::Handlers { failed: vec![(index, failure)], left }
    }

    /// Of the states that several handlers left, the worst counts.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Store(error), _) | (_, Self::Store(error)) => Self::Store(error),
            // No consumer of handlers has one.
            (Self::Final(_) | Self::Unsealed(_), other) | (other, Self::Final(_) | Self::Unsealed(_)) => other,
            (Self::Handlers { mut failed, left }, Self::Handlers { failed: others, left: other }) => {
                failed.extend(others);
                Self::Handlers { failed, left: left.max(other) }
            }
        }
    }
}

/// Runs the handlers of these messages, and comes back only when no future of a handler is left. Answers their events and
/// results. `of_call` is the work that a call brought along, to run in place of a handler.
pub(super) async fn handle_all<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    unit: &mut S::Unit,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
    of_call: Option<&dyn DynHandler<S>>,
) -> Result<AllHandedIn, HandlingError> {
    match (&engine.work, engine.settings.handlers) {
        (Work::Batch(handler), _) => together(engine, &**handler, unit, items, fresh).await,
        (Work::Each(handler), Concurrency::InOrder) => in_order(engine, &*handler.0, unit, items, fresh).await,
        (Work::Each(handler), Concurrency::Pipelined { at_once }) => {
            side_by_side(engine, &*handler.0, unit, items, fresh, at_once).await
        }
        (Work::OfCall, _) => {
            let none = StoreError::Unsupported { what: "run work that no call has brought along" };
            let work = of_call.ok_or(HandlingError::Store(none))?;
            let mut all = Vec::new();
            for (index, ticket) in fresh {
                // If the work has spoilt the transaction, the append or the commit fails. What follows depends on its result.
                let handed_in = run_one(engine, work, index, &items[index].borrow().message, ticket, unit.tx()).await;
                all.extend(passed(handed_in).await?.map(|handed_in| (index, handed_in)));
            }
            Ok(all)
        }
    }
}

/// Runs the handlers one after the other.
async fn in_order<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    handler: &dyn DynHandler<S>,
    unit: &mut S::Unit,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
) -> Result<AllHandedIn, HandlingError> {
    let mut all = Vec::new();
    for (index, ticket) in fresh {
        let message = &items[index].borrow().message;
        let handed_in = run_one(engine, handler, index, message, ticket, unit.tx()).await?;
        all.extend(handed_in.map(|handed_in| (index, handed_in)));
        passed(checked::<S>(unit, index)).await?;
    }
    Ok(all)
}

/// Whether the handler of the message at `index` left the transaction as it found it.
fn checked<S: Store>(unit: &S::Unit, index: usize) -> Result<(), HandlingError> {
    unit.check().map_err(|error| HandlingError::one(index, unsealed::<S>(&error), TransactionState::Unknown))
}

/// Runs the handlers of different ordering keys at once, and those of one in turn. After the first failure none begins,
/// and those that run end by themselves or at their deadlines: a failed statement fails its neighbours' statements
/// behind it, so the culprit is not known yet.
async fn side_by_side<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    handler: &dyn DynHandler<S>,
    unit: &S::Unit,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
    at_once: usize,
) -> Result<AllHandedIn, HandlingError> {
    let stop = AtomicBool::new(false);
    let in_turn = async |group: Vec<(usize, Ticket)>| {
        let mut all = Vec::new();
        for (index, ticket) in group {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let message = &items[index].borrow().message;
            let ended = match unit.shared_tx() {
                Some(tx) => run_one(engine, handler, index, message, ticket, tx).await,
                None => Err(HandlingError::Store(StoreError::Unsupported { what: "share its transaction" })),
            };
            match passed(ended).await {
                Ok(handed_in) => all.extend(handed_in.map(|handed_in| (index, handed_in))),
                Err(stopped) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(stopped);
                }
            }
        }
        Ok(all)
    };
    let mut running = stream::iter(groups(items, fresh)).map(in_turn).buffer_unordered(at_once);
    let mut all: Result<AllHandedIn, HandlingError> = Ok(Vec::new());
    while let Some(ended) = running.next().await {
        all = match (all, ended) {
            (Ok(mut all), Ok(handed_in)) => {
                all.extend(handed_in);
                Ok(all)
            }
            (Ok(_), Err(stopped)) | (Err(stopped), Ok(_)) => Err(stopped),
            (Err(stopped), Err(other)) => Err(stopped.and(other)),
        };
    }
    // As they would stand had the handlers run one after the other.
    all.map(|mut all| {
        all.sort_by_key(|(index, _)| *index);
        all
    })
}

/// The messages by their ordering keys, each group and the groups in the order of delivery.
fn groups<J: Borrow<Item>>(items: &[J], fresh: Vec<(usize, Ticket)>) -> Vec<Vec<(usize, Ticket)>> {
    let mut groups: Vec<Vec<(usize, Ticket)>> = Vec::with_capacity(fresh.len());
    let mut of: HashMap<&OrderingKey, usize> = HashMap::new();
    for (index, ticket) in fresh {
        let next = groups.len();
        let key = items[index].borrow().message.ordering_key();
        match groups.get_mut(key.map_or(next, |key| *of.entry(key).or_insert(next))) {
            Some(group) => group.push((index, ticket)),
            None => groups.push(vec![(index, ticket)]),
        }
    }
    groups
}

/// Runs the handler for one message. Answers its events and results, if any.
async fn run_one<S: Store>(
    engine: &Engine<S>,
    handler: &dyn DynHandler<S>,
    index: usize,
    message: &Message,
    ticket: Ticket,
    mut tx: Tx<'_, S>,
) -> Result<Option<HandedIn>, HandlingError> {
    let deadline = engine.settings.handler_deadline;
    let span = spans::process(&engine.name, engine.source.get(), &[message]);
    let collector = Collector::of_one(&engine.publishing, message);
    let mut tx = tx.collecting(&collector);
    let call = handler.handle_dyn(message, &mut tx).instrument(span.clone());
    match note_end(&span, timed(engine, guarded(ticket, deadline, call)).await) {
        Handled::Answered(Ok(())) => {}
        Handled::Answered(Err(mut error)) => {
            let Some(outcome) = error.take_outcome() else {
                return Err(HandlingError::one(index, engine.failure(error), TransactionState::Clean));
            };
            drop(tx);
            return Err(refused_for_good(engine, index, collector, outcome));
        }
        Handled::Panicked => return Err(HandlingError::one(index, panicked(), TransactionState::Unknown)),
        Handled::TimedOut => return Err(HandlingError::one(index, late(deadline), TransactionState::Busy)),
    }
    let is_taken = tx.is_taken();
    drop(tx);
    went_well(engine, index, collector, is_taken)
}

/// The events and the result of work that went well, if any.
pub(super) fn went_well<S: Store>(
    engine: &Engine<S>,
    index: usize,
    collector: Collector<'_>,
    is_taken: bool,
) -> Result<Option<HandedIn>, HandlingError> {
    let handed_in = collector.finish();
    let mut handed_in =
        handed_in.map_err(|error| HandlingError::one(index, refused(&error), TransactionState::Clean))?;
    let handed_in = handed_in.pop().filter(|handed_in| !handed_in.is_empty());
    engine.note_use(is_taken || handed_in.is_some());
    Ok(handed_in)
}

/// The end of work that was refused for good with this outcome.
pub(super) fn refused_for_good<S: Store>(
    engine: &Engine<S>,
    index: usize,
    collector: Collector<'_>,
    outcome: ResultBody,
) -> HandlingError {
    // What the work has noted comes first: an outcome that may come of an error that passes is not final.
    if let Some(noted) = collector.noted_error().map(|noted| engine.failure(noted))
        && noted.comes_again()
    {
        return HandlingError::one(index, noted, TransactionState::Unknown);
    }
    match engine.publishing.check_result(&outcome) {
        Ok(()) => HandlingError::Final(outcome),
        Err(error) => HandlingError::one(index, refused(&error), TransactionState::Clean),
    }
}

/// A handler whose event or result was refused fails for good, whatever it answered.
fn refused(error: &PublishError) -> Failure {
    Failure::new(ErrorClass::Permanent, Reason::Permanent, error.to_string()).of(error.cause())
}

/// Passes the failpoint between two handlers.
pub(super) async fn passed<T>(ended: Result<T, HandlingError>) -> Result<T, HandlingError> {
    let answer = ended?;
    failpoint!(HANDLER_MID).map_err(|injected| HandlingError::Store(inject(injected)))?;
    Ok(answer)
}

/// Runs a batch handler for all of them.
async fn together<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    handler: &dyn DynBatchHandler<S>,
    unit: &mut S::Unit,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
) -> Result<AllHandedIn, HandlingError> {
    let indexes: Vec<usize> = fresh.iter().map(|(index, _)| *index).collect();
    let messages: Vec<&Message> = indexes.iter().map(|index| &items[*index].borrow().message).collect();
    let Some((_, ticket)) = fresh.into_iter().next() else { return Ok(Vec::new()) };
    let all = |failure, left| HandlingError::Handlers { failed: for_all(&indexes, failure), left };
    let deadline = engine.settings.handler_deadline;
    let collector = Collector::of_many(&engine.publishing, &messages);
    let mut own = unit.tx();
    let mut tx = own.collecting(&collector);
    let span = spans::process(&engine.name, engine.source.get(), &messages);
    let call = handler.handle_dyn(&messages, &mut tx).instrument(span.clone());
    let answer = match note_end(&span, timed(engine, guarded(ticket, deadline, call)).await) {
        Handled::Answered(Ok(answer)) => answer,
        Handled::Answered(Err(error)) => return Err(all(engine.failure(error), TransactionState::Clean)),
        Handled::Panicked => return Err(all(panicked(), TransactionState::Unknown)),
        Handled::TimedOut => return Err(all(late(deadline), TransactionState::Busy)),
    };
    let is_taken = tx.is_taken();
    drop(tx);
    drop(own);
    let named = named(engine, &indexes, answer)?;
    if !named.is_empty() {
        return Err(HandlingError::Handlers { failed: named, left: TransactionState::Clean });
    }
    let handed_in = collector.finish().map_err(|error| all(refused(&error), TransactionState::Clean))?;
    engine.note_use(is_taken || handed_in.iter().any(|handed_in| !handed_in.is_empty()));
    passed(unit.check().map_err(|error| all(unsealed::<S>(&error), TransactionState::Unknown))).await?;
    Ok(indexes.into_iter().zip(handed_in).filter(|(_, handed_in)| !handed_in.is_empty()).collect())
}

/// The messages that a batch handler named as culprits.
fn named<S: Store>(
    engine: &Engine<S>,
    indexes: &[usize],
    answer: BatchAnswer,
) -> Result<Vec<(usize, Failure)>, HandlingError> {
    let answers = match answer.0 {
        Answer::All => return Ok(Vec::new()),
        Answer::Each(answers) => answers,
    };
    if answers.len() != indexes.len() {
        let text = format!("the batch handler gave {} answers for {} messages", answers.len(), indexes.len());
        let failure = Failure::new(ErrorClass::Permanent, Reason::Permanent, text).of("answers-do-not-match");
        return Err(HandlingError::Handlers { failed: for_all(indexes, failure), left: TransactionState::Clean });
    }
    let failed = indexes.iter().zip(answers).filter_map(|(index, answer)| Some((*index, answer.err()?)));
    Ok(failed.map(|(index, error)| (index, engine.failure(error))).collect())
}

/// A failure that names no culprit, for each message: they all run alone.
fn for_all(indexes: &[usize], failure: Failure) -> Vec<(usize, Failure)> {
    let Some((first, others)) = indexes.split_first() else { return Vec::new() };
    let others: Vec<_> = others.iter().map(|index| (*index, failure.clone_text())).collect();
    std::iter::once((*first, failure)).chain(others).collect()
}

/// Measures a call of the handler for a message of a broker.
async fn timed<S: Store, T>(engine: &Engine<S>, call: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = call.await;
    if let Some(metrics) = engine.consumed.get() {
        metrics.processed.record(begun.elapsed());
    }
    answer
}

/// Runs one call of a handler. The ticket is used up.
async fn guarded<T>(
    ticket: Ticket,
    deadline: Duration,
    call: impl Future<Output = Result<T, HandlerError>> + Send,
) -> Handled<T> {
    let _used = ticket;
    match tokio::time::timeout(deadline, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => Handled::Answered(answer),
        // The panic's text may quote the payload, and the panic hook has printed it for the developer (S4).
        Ok(Err(_panic)) => Handled::Panicked,
        Err(_elapsed) => Handled::TimedOut,
    }
}

/// Polls the work of an operation that another holds, as a handler's call is polled. An error is what ended it early.
pub(crate) async fn attended<S: Store, T, E>(
    engine: &Engine<S>,
    message: &Message,
    work: impl Future<Output = Result<T, E>> + Send,
) -> Result<Result<T, E>, Failure> {
    let span = spans::process(&engine.name, engine.source.get(), &[message]);
    let deadline = engine.settings.handler_deadline;
    let work = AssertUnwindSafe(work.instrument(span.clone())).catch_unwind();
    match tokio::time::timeout(deadline, work).await {
        Ok(Ok(answer)) => {
            note_error(&span, answer.is_err().then_some("handler"));
            Ok(answer)
        }
        Ok(Err(_panic)) => {
            note_error(&span, Some("panic"));
            Err(panicked())
        }
        Err(_elapsed) => {
            note_error(&span, Some("deadline"));
            Err(late(deadline))
        }
    }
}

/// Notes on the span of a call that it failed, and how.
fn note_end<T>(span: &Span, handled: Handled<T>) -> Handled<T> {
    note_error(
        span,
        match &handled {
            Handled::Answered(Ok(_)) => None,
            Handled::Answered(Err(_)) => Some("handler"),
            Handled::Panicked => Some("panic"),
            Handled::TimedOut => Some("deadline"),
        },
    );
    handled
}

fn note_error(span: &Span, error: Option<&'static str>) {
    if let Some(error) = error {
        span.record("error.type", error);
        span.record("otel.status_code", "ERROR");
    }
}

fn panicked() -> Failure {
    Failure::new(ErrorClass::Transient, Reason::AttemptsExhausted, "the handler panicked").of("panic")
}

fn late(deadline: Duration) -> Failure {
    let text = format!("the handler passed its deadline of {deadline:?}");
    Failure::new(ErrorClass::Transient, Reason::Deadline, text)
}

pub(super) fn unsealed<S: Store>(error: &StoreError) -> Failure {
    let failure = Failure::new(error.class(), Reason::AttemptsExhausted, one_line::<S>(error));
    failure.with_code(code::<S>(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A15, A18: a connection on which one handler left a statement running is never used again, however well its
    /// neighbours ended.
    #[test]
    fn of_what_several_handlers_left_the_worst_counts() {
        let states = [TransactionState::Clean, TransactionState::Unknown, TransactionState::Busy];
        for (worse, first) in states.into_iter().enumerate() {
            for (bad, second) in states.into_iter().enumerate() {
                let both = HandlingError::one(0, panicked(), first).and(HandlingError::one(1, panicked(), second));
                let HandlingError::Handlers { failed, left } = both else { panic!("handlers failed") };
                assert_eq!((failed.len(), left), (2, states[worse.max(bad)]));
            }
        }
        let store = || HandlingError::Store(StoreError::Unsupported { what: "do anything" });
        assert!(matches!(
            store().and(HandlingError::one(0, panicked(), TransactionState::Clean)),
            HandlingError::Store(_)
        ));
        assert!(matches!(
            HandlingError::one(0, panicked(), TransactionState::Clean).and(store()),
            HandlingError::Store(_)
        ));
    }
}
