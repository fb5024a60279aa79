//! One unit of work: begin, claim, handle, seal and commit. Nothing cancels it between begin and commit but the limits
//! it sets itself, and each of those costs the connection.

use std::{borrow::Borrow, future::Future, pin::Pin, sync::atomic::Ordering};

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    bugs::{self, Bug},
    dead_letter::Reason,
    error::{BoxError, ClaimError, CommitError, ErrorClass, StoreError},
    failpoint,
    handler_error::HandlerError,
    names::RunId,
    outbox::collect::HandedIn,
    outcome::{self, Decision, Failure, Ticket, Verdict},
    results::result::ResultBody,
    store::{
        Store,
        claim::Claim,
        describe::{code, one_line},
        unit::UnitOfWork,
    },
    telemetry::spans,
    unit::{
        answers::Answers,
        append::append_all,
        claim::{Results, claim_all},
        decide::Outcomes,
        engine::Engine,
        fold::{self, Fold},
        handlers::{AllHandedIn, HandlingError, TransactionState, handle_all, unsealed},
        identify::Item,
        open::Open,
        session::{NO_LANE, answered, inject, is_lost, options, session_or_open},
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

/// Units in a row without a winner that end the consumer: a trigger or policy swallows its rows (B6).
const NO_WINNER_MAX: u32 = 5;

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

/// A unit whose keys are claimed, and of which something is fresh.
pub(crate) struct Opened<S: Store> {
    unit: S::Unit,
    /// The messages whose handlers are to run, each with its right to. They are gone when the handlers are.
    fresh: Vec<(usize, Ticket)>,
    /// Their places.
    indexes: Vec<usize>,
    fold: Fold,
    ledger: Outcomes,
    run: RunId,
    _open: Open,
}

/// Begins a unit and claims its keys. An error is the unit's end, where nothing is to run.
async fn open<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    session: S::Session,
    lane_number: i32,
    items: &[J],
    claimed_any: &mut bool,
    gate: Option<Gate<'_>>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> Result<Opened<S>, (Option<S::Session>, End)> {
    let run = engine.register(None).await.map_err(|error| (None, End::StoreFailed(error)))?.run;
    let limit = engine.settings.answer_timeout;
    let begin = engine.store.begin(session, options(&engine.settings, run, lane_number).alone(items.len() == 1));
    let begun = answered(limit, "beginning a transaction", begin).await;
    let mut unit = begun.map_err(|error| (None, store_failed(error)))?;
    let open = engine.open.begin();
    failpoint!(BEGIN).map_err(|injected| (None, store_failed(inject(injected))))?;
    let fold = fold::fold(items);
    let claims: Vec<Claim> = fold.claims.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let leader = |position: usize| Borrow::<Item>::borrow(&items[fold.claims[position]]);
    let rehash = |position, rule| engine.rehash(&leader(position).message, rule);
    let mut results = answers.is_some().then(Results::new);
    let claim = claim_all::<S>(&mut unit, &claims, rehash, results.as_mut());
    let begun = Instant::now();
    let claimed = tokio::time::timeout(engine.settings.busy_timeout + limit, claim).await;
    engine.metrics.claim_wait.record(begun.elapsed());
    let verdicts = match claimed {
        Ok(Ok(verdicts)) => verdicts,
        Ok(Err(error)) => return Err(claim_failed(engine, unit, error, items.len()).await),
        Err(elapsed) => return Err((None, store_failed(StoreError::unavailable("claiming keys", elapsed)))),
    };
    *claimed_any = true;
    failpoint!(CLAIMED).map_err(|injected| (None, store_failed(inject(injected))))?;
    let mut ledger = Outcomes::new(items.len());
    let fresh = fresh(verdicts, &fold, &mut ledger);
    if let Some(answers) = answers.as_deref_mut()
        && let Err(error) = answers.read(engine, &mut unit, items, &ledger, of_messages(results, &fold)).await
    {
        return Err((None, store_failed(error)));
    }
    if fresh.is_empty() {
        // Nothing was written, so there is nothing to commit: a duplicate consumes no transaction id.
        let session = rollback(engine, unit).await.unwrap_or_default();
        return Err((session, decide(engine, items, &fold, run, ledger, answers)));
    }
    if let Some(gate) = gate
        && !gate.await
    {
        return Err((rollback(engine, unit).await.unwrap_or_default(), End::NotBegun));
    }
    let indexes: Vec<usize> = fresh.iter().map(|(index, _)| *index).collect();
    Ok(Opened { unit, fresh, indexes, fold, ledger, run, _open: open })
}

/// Ends a unit by what its handlers have answered: appends their events and results, seals and commits, or rolls back.
async fn close<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    opened: Opened<S>,
    items: &[J],
    handled: Result<AllHandedIn, HandlingError>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> (Option<S::Session>, End) {
    let Opened { unit, fresh: _, indexes, fold, mut ledger, run, _open } = opened;
    let session = match commit_handled(engine, unit, items, handled, &indexes, answers.as_deref_mut()).await {
        Ok(session) => session,
        Err(ended) => return ended,
    };
    #[cfg(idem_bugs)]
    if let Some(late) = answers.as_deref_mut().and_then(|answers| answers.late.take()) {
        let Some(session) = session else { return (None, End::NotBegun) };
        return match crate::unit::planted::in_second_unit(engine, session, items, late, (answers, &fold)).await {
            Ok((session, decisions)) => (session, End::Decided(decisions)),
            Err(error) => (None, End::Again(error)),
        };
    }
    indexes.iter().for_each(|index| ledger.committed(*index));
    (session, decide(engine, items, &fold, run, ledger, answers))
}

/// Results by the places of their messages.
fn of_messages(results: Option<Results>, fold: &Fold) -> Results {
    results.into_iter().flatten().map(|(position, result)| (fold.claims[position], result)).collect()
}

/// Decides every message of a unit that went well, and leaves their results in `answers`.
fn decide<S: Store, J: Borrow<Item>>(
    engine: &Engine<S>,
    items: &[J],
    fold: &Fold,
    run: RunId,
    ledger: Outcomes,
    answers: Option<&mut Answers<'_, S>>,
) -> End {
    let decisions = ledger.decide(engine, items, fold, run);
    if let Some(answers) = answers {
        answers.end(&decisions, fold);
    }
    End::Decided(decisions)
}

/// Appends what the handlers handed in, seals and commits. On an error the unit has ended so.
async fn commit_handled<S: Store, J: Borrow<Item> + Sync>(
    engine: &Engine<S>,
    mut unit: S::Unit,
    items: &[J],
    handled: Result<AllHandedIn, HandlingError>,
    indexes: &[usize],
    mut answers: Option<&mut Answers<'_, S>>,
) -> Result<Option<S::Session>, (Option<S::Session>, End)> {
    let mut handed_in = match handled {
        Ok(handed_in) => handed_in,
        Err(HandlingError::Final(outcome)) => return Err(refused(engine, unit, outcome, answers).await),
        Err(stopped) => return Err(stopped_early(engine, unit, stopped, indexes, items.len()).await),
    };
    let spoilt = answers.as_deref().and_then(|answers| Spoilt::of(answers, &mut handed_in));
    failpoint!(HANDLER_DONE).map_err(|injected| (None, store_failed(inject(injected))))?;
    let publishes = !handed_in.is_empty();
    if let Some(answers) = answers.as_deref_mut() {
        answers.note(&handed_in);
    }
    let handed_in = before_commit(handed_in, answers.as_deref_mut());
    if !handed_in.is_empty()
        && let Err(stopped) = append_all(engine, &mut unit, items, handed_in).await
    {
        return Err(match (stopped, spoilt) {
            (HandlingError::Unsealed(error), Some(spoilt)) => match spoilt.ends::<S>(engine, &error) {
                Ok(outcome) => refused(engine, unit, outcome, answers).await,
                Err(failure) => {
                    let session = rollback(engine, unit).await.unwrap_or_default();
                    (session, End::Decided(vec![Decision::Failed(failure)]))
                }
            },
            (stopped, _) => stopped_early(engine, unit, stopped, indexes, items.len()).await,
        });
    }
    failpoint!(GUARD).map_err(|injected| (None, store_failed(inject(injected))))?;
    let (session, committed) = commit(engine, unit).await;
    match (committed, spoilt) {
        (Ok(()), _) => {}
        (Err(CommitError::Unknown(error)), _) => {
            return Err((None, End::Unknown { error, of: indexes.to_vec() }));
        }
        (Err(CommitError::RolledBack(error @ StoreError::Unsealed { .. })), Some(spoilt)) => {
            let end = match (spoilt.ends::<S>(engine, &error), answers) {
                (Ok(outcome), Some(answers)) => {
                    answers.refused = Some(outcome);
                    // The store has ended the transaction.
                    End::Refused
                }
                (Ok(_), None) => End::NotBegun,
                (Err(failure), _) => End::Decided(vec![Decision::Failed(failure)]),
            };
            return Err((session, end));
        }
        (Err(CommitError::RolledBack(error)), _) => {
            return Err((None, commit_refused::<S>(error, indexes, items.len())));
        }
    }
    if publishes {
        engine.published.notify_one();
    }
    Ok(session)
}

/// The end of a call whose work has spoilt its transaction: a statement failed, and the work went on.
struct Spoilt {
    /// Its result, where that has a status from 400 to 499 and may be final.
    declined: Option<ResultBody>,
    /// The error of the statement, where the work has noted it.
    noted: Option<HandlerError>,
}

impl Spoilt {
    /// `None` for the messages of a handler, which run again.
    fn of<S: Store>(answers: &Answers<'_, S>, handed_in: &mut AllHandedIn) -> Option<Self> {
        answers.work?;
        let own = handed_in.first_mut().map(|(_, own)| own);
        let noted = own.and_then(|own| own.noted.take());
        let may_be_final = answers.final_errors && answers.refused.is_none();
        let result = handed_in.first().and_then(|(_, own)| own.result.clone()).filter(|_| may_be_final);
        let declined = result.filter(|result| result.status.is_some_and(is_client_error));
        Some(Self { declined, noted })
    }

    /// The final outcome, or the failure. A caller waits for it, so it is transient only where the noted error is: another run
    /// would spoil its transaction too.
    fn ends<S: Store>(self, engine: &Engine<S>, error: &StoreError) -> Result<ResultBody, Failure> {
        let failure = match self.noted {
            Some(noted) => engine.failure(noted),
            None => {
                Failure::new(ErrorClass::Permanent, Reason::Permanent, one_line::<S>(error)).with_code(code::<S>(error))
            }
        };
        match self.declined {
            Some(outcome) if failure.class == ErrorClass::Permanent => Ok(outcome),
            Some(_) | None => Err(failure),
        }
    }
}

/// Rolls back the unit of a call whose work was refused for good. Rolling back probes the connection: an outcome that may come
/// of a lost one is not final.
async fn refused<S: Store>(
    engine: &Engine<S>,
    unit: S::Unit,
    outcome: ResultBody,
    answers: Option<&mut Answers<'_, S>>,
) -> (Option<S::Session>, End) {
    match (rollback(engine, unit).await, answers) {
        (Err(error), _) => (None, lost(error)),
        (Ok(session), Some(answers)) => {
            answers.refused = Some(outcome);
            (session, End::Refused)
        }
        (Ok(session), None) => (session, End::NotBegun),
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

fn is_client_error(status: u16) -> bool {
    (400..500).contains(&status)
}

/// The events and results that are written before the commit: all.
#[cfg(not(idem_bugs))]
fn before_commit<S: Store>(handed_in: AllHandedIn, _: Option<&mut Answers<'_, S>>) -> AllHandedIn {
    handed_in
}

/// The same, but for a planted bug, which writes results after the commit.
#[cfg(idem_bugs)]
fn before_commit<S: Store>(mut handed_in: AllHandedIn, answers: Option<&mut Answers<'_, S>>) -> AllHandedIn {
    if let Some(answers) = answers
        && bugs::planted(Bug::ResultInSecondTx)
    {
        let mut late = AllHandedIn::new();
        for (index, handed) in &mut handed_in {
            late.push((*index, handed.result_apart()));
        }
        answers.late = Some(late);
        handed_in.retain(|(_, handed)| !handed.is_empty());
    }
    handed_in
}

/// Notes the messages that are decided already, and answers the rest in the order of delivery.
fn fresh(verdicts: Vec<Verdict>, fold: &Fold, ledger: &mut Outcomes) -> Vec<(usize, Ticket)> {
    let mut fresh = Vec::new();
    for (verdict, index) in verdicts.into_iter().zip(&fold.claims) {
        match verdict {
            Verdict::Fresh(ticket) => fresh.push((*index, ticket)),
            Verdict::Duplicate(..) | Verdict::Conflict(..) | Verdict::Collision(_) | Verdict::Unanswered => {
                ledger.note(*index, verdict);
            }
        }
    }
    let unprotected = fold.leader.iter().enumerate().filter(|(_, leader)| leader.is_none());
    fresh.extend(unprotected.map(|(index, _)| (index, outcome::unprotected())));
    // Keys were claimed in their own order.
    fresh.sort_by_key(|(index, _)| *index);
    fresh
}

/// Ends a unit whose handlers did not all succeed.
async fn stopped_early<S: Store>(
    engine: &Engine<S>,
    unit: S::Unit,
    stopped: HandlingError,
    fresh: &[usize],
    items: usize,
) -> (Option<S::Session>, End) {
    let (failed, keep) = match stopped {
        HandlingError::Store(error) => return (None, store_failed(error)),
        // Calls alone have one, and it ends their unit otherwise.
        HandlingError::Final(_) => return (rollback(engine, unit).await.unwrap_or_default(), End::NotBegun),
        HandlingError::Unsealed(error) => {
            let failure = unsealed::<S>(&error);
            (fresh.iter().map(|index| (*index, failure.clone_text())).collect(), false)
        }
        HandlingError::Handlers { failed, left: TransactionState::Busy } => {
            // The handler may have left a statement running, so the server ends it over another connection.
            let _ = tokio::time::timeout(engine.settings.answer_timeout, unit.abandon()).await;
            return (None, alone_or_isolated(failed, items));
        }
        HandlingError::Handlers { failed, left } => (failed, left == TransactionState::Clean),
    };
    // Rolling back probes the connection: if it is broken, that is the failure, whatever the handler answered.
    match rollback(engine, unit).await {
        Err(error) => (None, lost(error)),
        Ok(session) => {
            let is_contended = failed.iter().any(|(_, failure)| failure.class == ErrorClass::RunUnitAgain);
            let end = if is_contended { End::Again(in_the_way(failed)) } else { alone_or_isolated(failed, items) };
            (session.filter(|_| keep), end)
        }
    }
}

fn in_the_way(failed: Vec<(usize, Failure)>) -> StoreError {
    let text = failed.into_iter().find(|(_, failure)| failure.class == ErrorClass::RunUnitAgain).map(|(_, f)| f.text);
    StoreError::Contended { doing: "running a handler", source: text.unwrap_or_default().into() }
}

/// A message that failed alone has its decision. In a unit of several, failed messages are tried alone before any is
/// charged: a neighbour may be the cause.
fn alone_or_isolated(failed: Vec<(usize, Failure)>, items: usize) -> End {
    let indexes = failed.iter().map(|(index, _)| *index).collect();
    match failed.into_iter().next() {
        Some((_, failure)) if items == 1 => End::Decided(vec![Decision::Failed(failure)]),
        Some(_) | None => End::Isolate(indexes),
    }
}

async fn claim_failed<S: Store>(
    engine: &Engine<S>,
    unit: S::Unit,
    error: ClaimError,
    items: usize,
) -> (Option<S::Session>, End) {
    let session = rollback(engine, unit).await.unwrap_or_default();
    let end = match error {
        ClaimError::Held if items == 1 => End::Decided(vec![Decision::Busy]),
        ClaimError::Held => End::Held,
        ClaimError::NoWinner { .. } => {
            let in_a_row = engine.no_winner.fetch_add(1, Ordering::Relaxed) + 1;
            let problem = error.to_string();
            if in_a_row >= NO_WINNER_MAX {
                let cure = "Remove it, then restart the worker".to_owned();
                return (session, End::StoreFailed(StoreError::Refused { problem, cure }));
            }
            End::NoWinner(StoreError::Failed {
                doing: "claiming keys",
                class: ErrorClass::Transient,
                source: problem.into(),
            })
        }
        ClaimError::Store(error) => {
            return (session.filter(|_| error.class() != ErrorClass::Infrastructure), store_failed(error));
        }
    };
    (session, end)
}

fn store_failed(error: StoreError) -> End {
    if error.class() == ErrorClass::RunUnitAgain { End::Again(error) } else { End::StoreFailed(error) }
}

/// The handlers are over, and the connection does not answer.
fn lost(error: StoreError) -> End {
    if error.class() == ErrorClass::Infrastructure { End::Lost(error) } else { store_failed(error) }
}

async fn rollback<S: Store>(engine: &Engine<S>, unit: S::Unit) -> Result<Option<S::Session>, StoreError> {
    failpoint!(ROLLBACK).map_err(inject)?;
    answered(engine.settings.answer_timeout, "rolling back", unit.rollback()).await
}

/// Commits. A client's limit is the only one that holds here: PostgreSQL's own time-outs do not apply to a COMMIT that
/// waits for a standby, and a dropped COMMIT is merely unknown.
async fn commit<S: Store>(engine: &Engine<S>, unit: S::Unit) -> (Option<S::Session>, Result<(), CommitError>) {
    let begun = Instant::now();
    let committed = tokio::time::timeout(engine.settings.commit_timeout, unit.commit()).await;
    engine.metrics.commit_time.record(begun.elapsed());
    match committed {
        Ok((session, Err(CommitError::Unknown(_)))) if bugs::planted(Bug::UnknownIsCommitted) => (session, Ok(())),
        Err(_) if bugs::planted(Bug::UnknownIsCommitted) => (None, Ok(())),
        Ok((session, Ok(()))) => {
            (session, failpoint!(COMMIT_OK).map_err(|injected| CommitError::Unknown(Box::new(injected))))
        }
        Ok(ended) => ended,
        Err(elapsed) => (None, Err(CommitError::Unknown(Box::new(elapsed)))),
    }
}

/// A commit that was certainly rolled back: by a deferred constraint, a conflict with another transaction, or because
/// the seal found that a handler had ended or broken the transaction (A9, A10, A12).
fn commit_refused<S: Store>(error: StoreError, fresh: &[usize], items: usize) -> End {
    match error.class() {
        ErrorClass::RunUnitAgain => End::Again(error),
        ErrorClass::Infrastructure | ErrorClass::Fatal => End::StoreFailed(error),
        class @ (ErrorClass::Transient | ErrorClass::Permanent) => {
            let reason = if class == ErrorClass::Permanent { Reason::Permanent } else { Reason::AttemptsExhausted };
            let failure = Failure::new(class, reason, one_line::<S>(&error)).with_code(code::<S>(&error));
            let failed = fresh.iter().map(|index| (*index, failure.clone_text()));
            alone_or_isolated(failed.collect(), items)
        }
    }
}
