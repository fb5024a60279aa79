//! One unit of work: begin and claim (`open.rs`), handle, seal and commit (`close.rs`). Nothing cancels it between begin and commit but the
//! limits it sets itself, and each of those costs the connection.

use std::{borrow::Borrow, future::Future, pin::Pin, sync::atomic::Ordering};

use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::{
    dead_letter::Reason,
    error::{BoxError, ErrorClass, StoreError},
    outbox::collect::{Collector, HandedIn},
    outcome::{Decision, Failure},
    results::result::ResultBody,
    store::{Store, unit::Ahead},
    telemetry::spans,
    unit::{
        answers::Answers,
        close::{close, is_client_error},
        engine::Engine,
        handlers::{AllHandedIn, HandlingError, TransactionState, handle_all, passed, refused_for_good, went_well},
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
    /// Rows of the ordering keys of the messages at these places are not over. Nothing was claimed. Where none is named, it is not known of
    /// which: the unit runs again as it is, and asks.
    Behind(Vec<(usize, Ahead)>),
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
            Self::Behind(_) => "behind",
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
    let span = spans::unit(&engine.name, items.len());
    let asked = answers.as_deref_mut();
    let opening = open_or_again(engine, session, lane_number, items, gate, asked).instrument(span.clone());
    let ended = match opening.await {
        Ok(mut opened) => {
            let rest = async {
                let begun = Instant::now();
                let handled = handle(engine, &mut opened, items, answers.as_deref()).await;
                engine.metrics.handler_time.record(begun.elapsed());
                close(engine, opened, items, handled, answers).await
            };
            rest.instrument(span.clone()).await
        }
        Err(ended) => ended,
    };
    note_end(engine, &span, items.len(), &ended.1);
    ended
}

/// The first half of a unit of one message whose work is another's. An error is its end.
pub(crate) async fn begin_alone<S: Store>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    item: &Item,
    answers: &mut Answers<'_, S>,
) -> Result<(Opened<S>, Span), (Option<S::Session>, End)> {
    let span = spans::unit(&engine.name, 1);
    let items = std::slice::from_ref(item);
    let opening = open_or_again(engine, session, NO_LANE, items, None, Some(answers)).instrument(span.clone());
    match opening.await {
        Ok(opened) => Ok((opened, span)),
        Err(ended) => {
            note_end(engine, &span, 1, &ended.1);
            Err(ended)
        }
    }
}

/// What another's work has handed in, as a handler's is judged.
pub(crate) enum Worked {
    /// It went well, and has used its connection or not.
    Well { is_taken: bool },
    /// It was refused for good, with this outcome.
    Refused(ResultBody),
}

/// The second half of a unit that [`begin_alone`] has opened, after its work.
pub(crate) async fn end_alone<S: Store>(
    engine: &Engine<S>,
    (mut opened, span): (Opened<S>, Span),
    item: &Item,
    (collector, worked): (Collector<'_>, Worked),
    answers: &mut Answers<'_, S>,
) -> (Option<S::Session>, End) {
    let rest = async {
        // The right to the work is used up.
        opened.fresh.clear();
        let handled = match worked {
            Worked::Well { is_taken } => passed(went_well(engine, 0, collector, is_taken)).await,
            Worked::Refused(outcome) => Err(refused_for_good(engine, 0, collector, outcome)),
        };
        let handled = handled.map(|handed_in| handed_in.map(|handed_in| (0, handed_in)).into_iter().collect());
        let handled = judged(engine, 0, handled, Some(answers));
        close(engine, opened, std::slice::from_ref(item), handled, Some(answers)).await
    };
    let ended = rest.instrument(span.clone()).await;
    note_end(engine, &span, 1, &ended.1);
    ended
}

/// Notes the end of a unit whose work was given up.
pub(crate) fn note_given_up<S: Store>(engine: &Engine<S>, span: &Span) {
    note_end(engine, span, 1, &End::Decided(Vec::new()));
}

fn note_end<S: Store>(engine: &Engine<S>, span: &Span, items: usize, end: &End) {
    span.record("idem.unit.end", end.as_str());
    engine.metrics.batch_size.record(u32::try_from(items).unwrap_or(u32::MAX));
    if matches!(end, End::Decided(_)) {
        engine.no_winner.store(0, Ordering::Relaxed);
    }
}

async fn open_or_again<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: Option<S::Session>,
    lane_number: i32,
    items: &[J],
    gate: Option<Gate<'_>>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> Result<Opened<S>, (Option<S::Session>, End)> {
    let was_idle = session.is_some() && lane_number == NO_LANE;
    let session = session_or_open(engine, session).await.map_err(|error| (None, End::StoreFailed(error)))?;
    let mut claimed = false;
    match open(engine, session, lane_number, items, &mut claimed, gate, answers.as_deref_mut()).await {
        // A session that was idle in a caller's own loop may have lost its server since, which its first statement shows. A
        // worker's lane probes the database in such a case; here the caller would see an outage that is over. One that does
        // not answer in time has no second chance: the caller would wait twice as long as was set.
        Err((_, End::StoreFailed(error))) if was_idle && !claimed && is_lost(&error) => {
            let session = session_or_open(engine, None).await.map_err(|error| (None, End::StoreFailed(error)))?;
            open(engine, session, lane_number, items, &mut claimed, None, answers).await
        }
        opened => opened,
    }
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
    let handled = handle_all(engine, unit, items, fresh, answers.and_then(|answers| answers.work)).await;
    judged(engine, index, handled, answers)
}

/// What handlers have answered, by the settings of the call.
fn judged<S: Store>(
    engine: &Engine<S>,
    index: usize,
    handled: Result<AllHandedIn, HandlingError>,
    answers: Option<&Answers<'_, S>>,
) -> Result<AllHandedIn, HandlingError> {
    match handled {
        Err(HandlingError::Final(_)) if !answers.is_some_and(|answers| answers.allow_final_errors) => {
            let text = "the work was refused for good, but this consumer was not built with .allow_final_errors()";
            let failure = Failure::new(ErrorClass::Permanent, Reason::Permanent, text).of("no-final-errors");
            Err(HandlingError::one(index, failure, TransactionState::Clean))
        }
        Ok(handed_in) if answers.is_some_and(|answers| answers.allow_final_errors) => declined(engine, handed_in),
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
