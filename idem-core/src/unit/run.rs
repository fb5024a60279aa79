//! One unit of work: begin and claim (`open.rs`), handle, seal and commit (`close.rs`). Nothing cancels it between begin and commit but the
//! limits it sets itself, and each of those costs the connection.

use std::{borrow::Borrow, future::Future, pin::Pin, sync::atomic::Ordering};

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    dead_letter::Reason,
    error::{BoxError, ErrorClass, StoreError},
    outbox::collect::HandedIn,
    outcome::{Decision, Failure},
    store::Store,
    telemetry::spans,
    unit::{
        answers::Answers,
        close::{close, is_client_error},
        engine::Engine,
        handlers::{AllHandedIn, HandlingError, TransactionState, handle_all},
        identify::Item,
        open::{Opened, open},
        session::{NO_LANE, is_lost, session_or_open},
    },
};

/// How a unit ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Every message has a decision, in order.
    Decided(Vec<Decision>),
    /// A message was fresh, but its handler was not to run, and the claims were given up: see [`Gate`].
    NotBegun,
    /// The work of a call was refused for good, and its unit was rolled back. The next unit claims the key again and keeps the
    /// outcome, which is in the [`Answers`].
    Refused,
    /// A unit of several messages was rolled back. Those named run alone; the others may run as one batch again.
    Isolate(Vec<usize>),
    /// Another unit holds a key of a unit of several messages: claim them one by one.
    Held,
    /// The store neither inserted a key nor found its record.
    NoWinner(StoreError),
    /// The unit conflicted with another and was rolled back; it may run again as it is.
    Again(StoreError),
    /// The answer to the commit was lost: claim again on a new connection. It was the commit of the messages at these places;
    /// the others of the unit had been committed before, or are copies.
    Unknown { error: BoxError, of: Vec<usize> },
    /// The connection was lost while handlers ran.
    Lost(StoreError),
    /// The store failed; its class says what to do.
    StoreFailed(StoreError),
}

impl End {
    /// The value of `idem.unit.end`.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Decided(_) => "decided",
            Self::NotBegun => "not_begun",
            Self::Refused => "refused",
            Self::Isolate(_) => "isolate",
            Self::Held => "held",
            Self::NoWinner(_) => "no_winner",
            Self::Again(_) => "again",
            Self::Unknown { .. } => "unknown",
            Self::Lost(_) => "lost",
            Self::StoreFailed(_) => "store_failed",
        }
    }
}

/// Asked once the keys of a unit are claimed and something of it is fresh: whether its handlers run.
pub(crate) type Gate<'g> = Pin<&'g mut (dyn Future<Output = bool> + Send + 'g)>;

/// Runs one unit over `items` on `session`, which is opened where there is none. The session comes back after a normal end.
/// Results are left in `answers`, where they are asked for.
pub(crate) async fn run<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    lane_number: i32,
    items: &[J],
    gate: Option<Gate<'_>>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> (Option<S::Session>, End) {
    let was_idle = session.is_some() && lane_number == NO_LANE;
    let session = match session_or_open(engine, session).await {
        Ok(session) => session,
        Err(error) => return (None, End::StoreFailed(error)),
    };
    let span = spans::unit(&engine.name, items.len());
    let mut claimed = false;
    let asked = answers.as_deref_mut();
    let first = run_on(engine, session, lane_number, items, &mut claimed, gate, asked);
    let mut ended = first.instrument(span.clone()).await;
    // A session that was idle in a caller's own loop may have lost its server since, which its first statement shows. A
    // worker's lane probes the database in such a case; here the caller would see an outage that is over. One that does
    // not answer in time has no second chance: the caller would wait twice as long as was set.
    if was_idle && !claimed && matches!(&ended.1, End::StoreFailed(error) if is_lost(error)) {
        let session = match session_or_open(engine, None).await {
            Ok(session) => session,
            Err(error) => return (None, End::StoreFailed(error)),
        };
        let second = run_on(engine, session, lane_number, items, &mut claimed, None, answers);
        ended = second.instrument(span.clone()).await;
    }
    let (session, end) = ended;
    span.record("idem.unit.end", end.as_str());
    engine.metrics.batch_size.record(u32::try_from(items.len()).unwrap_or(u32::MAX));
    if matches!(end, End::Decided(_)) {
        engine.no_winner.store(0, Ordering::Relaxed);
    }
    (session, end)
}

/// One unit, around its handlers. A connection in an unknown state is closed, never used again (A15, A16): it is dropped with its unit.
async fn run_on<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: S::Session,
    lane_number: i32,
    items: &[J],
    claimed_any: &mut bool,
    gate: Option<Gate<'_>>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> (Option<S::Session>, End) {
    let asked = answers.as_deref_mut();
    let mut opened = match open(engine, session, lane_number, items, claimed_any, gate, asked).await {
        Ok(opened) => opened,
        Err(ended) => return ended,
    };
    let begun = Instant::now();
    let handled = handle(engine, &mut opened, items, answers.as_deref()).await;
    engine.metrics.handler_time.record(begun.elapsed());
    close(engine, opened, items, handled, answers).await
}

/// Runs the handlers. Of a call that was refused before nothing runs, and its outcome takes the place of its result.
async fn handle<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    opened: &mut Opened<S>,
    items: &[J],
    answers: Option<&Answers<'_, S>>,
) -> Result<AllHandedIn, HandlingError> {
    let (unit, fresh) = (&mut opened.unit, std::mem::take(&mut opened.fresh));
    let index = fresh.first().map_or(0, |(index, _)| *index);
    if let Some(outcome) = answers.and_then(|answers| answers.refused.clone()) {
        return Ok(vec![(index, HandedIn::of_error(outcome))]);
    }
    match handle_all(engine, unit, items, fresh, answers.and_then(|answers| answers.work)).await {
        Err(HandlingError::Final(_)) if !answers.is_some_and(|answers| answers.final_errors) => {
            let text = "the work was refused for good, but this consumer was not built with .final_errors()";
            let failure = Failure::new(ErrorClass::Permanent, Reason::Permanent, text).of("no-final-errors");
            Err(HandlingError::one(index, failure, TransactionState::Clean))
        }
        Ok(handed_in) if answers.is_some_and(|answers| answers.final_errors) => declined(engine, handed_in),
        handled => handled,
    }
}

/// A result with a status from 400 to 499 after an error that the work has noted is a refusal on every store, also where the
/// transaction could still be committed. It is not final where that error may pass.
fn declined<S: Store>(engine: &Engine<S>, mut handed_in: AllHandedIn) -> Result<AllHandedIn, HandlingError> {
    let Some((index, own)) = handed_in.first_mut() else { return Ok(handed_in) };
    let is_declined = own.result.as_ref().and_then(|result| result.status).is_some_and(is_client_error);
    let Some(noted) = own.noted.take_if(|_| is_declined) else { return Ok(handed_in) };
    let failure = engine.failure(noted);
    match own.result.take() {
        Some(outcome) if !failure.comes_again() => Err(HandlingError::Final(outcome)),
        _ => Err(HandlingError::one(*index, failure, TransactionState::Unknown)),
    }
}
