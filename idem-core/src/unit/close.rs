//! The second half of a unit, after its handlers: events and results are appended, and it is sealed and committed, or rolled back.

use std::borrow::Borrow;

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    dead_letter::Reason,
    error::{CommitError, ErrorClass, StoreError},
    failpoint,
    handler_error::HandlerError,
    names::RunId,
    outcome::{Decision, Failure},
    results::result::ResultBody,
    store::{
        Store,
        describe::{code, one_line},
        unit::UnitOfWork,
    },
    unit::{
        answers::Answers,
        append::append_all,
        decide::Outcomes,
        engine::Engine,
        fold::Fold,
        handlers::{AllHandedIn, HandlingError, TransactionState, unsealed},
        identify::Item,
        open::Opened,
        run::End,
        session::{answered, inject},
    },
};

/// Ends a unit by what its handlers have answered: appends their events and results, seals and commits, or rolls back.
pub(super) async fn close<S: Store, J: Borrow<Item> + Sync>(
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

/// Rolls back a unit whose work was given up, at its beginning or between two statements.
pub(crate) async fn give_up<S: Store>(engine: &Engine<S>, opened: Opened<S>) -> Option<S::Session> {
    rollback(engine, opened.unit).await.unwrap_or_default()
}

/// Ends a unit on the server whose work may have left a statement running.
pub(crate) async fn abandon<S: Store>(engine: &Engine<S>, opened: Opened<S>) {
    let _ = tokio::time::timeout(engine.settings.answer_timeout, opened.unit.abandon()).await;
}

/// Decides every message of a unit that went well, and leaves their results in `answers`.
pub(super) fn decide<S: Store, J: Borrow<Item>>(
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
        let may_be_final = answers.allow_final_errors && answers.refused.is_none();
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

pub(super) fn is_client_error(status: u16) -> bool {
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

pub(super) fn store_failed(error: StoreError) -> End {
    if error.class() == ErrorClass::RunUnitAgain { End::Again(error) } else { End::StoreFailed(error) }
}

/// The handlers are over, and the connection does not answer.
fn lost(error: StoreError) -> End {
    if error.class() == ErrorClass::Infrastructure { End::Lost(error) } else { store_failed(error) }
}

pub(super) async fn rollback<S: Store>(engine: &Engine<S>, unit: S::Unit) -> Result<Option<S::Session>, StoreError> {
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
