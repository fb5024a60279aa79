//! The first half of a unit: it begins, and claims its keys. [`Opened`] is what its handlers get.

use std::{borrow::Borrow, sync::atomic::Ordering};

use tokio::time::Instant;

use crate::{
    error::{ClaimError, ErrorClass, StoreError},
    failpoint,
    names::RunId,
    outcome::{self, Decision, Ticket, Verdict},
    store::{Store, claim::Claim, tx::Tx, unit::UnitOfWork as _},
    unit::{
        answers::Answers,
        behind::{ahead, must_ask},
        claim::{Results, claim_all},
        close::{decide, rollback, store_failed},
        decide::Outcomes,
        engine::Engine,
        fold::{self, Fold},
        identify::Item,
        open_units::Open,
        run::{End, Gate},
        session::{answered, inject, options},
    },
};

/// Units in a row without a winner that end the consumer: a trigger or policy swallows its rows (B6).
const NO_WINNER_MAX: u32 = 5;

/// A unit whose keys are claimed, and of which something is fresh.
pub(crate) struct Opened<S: Store> {
    pub(super) unit: S::Unit,
    /// The messages whose handlers are to run, each with its right to. They are gone when the handlers are.
    pub(super) fresh: Vec<(usize, Ticket)>,
    /// Their places.
    pub(super) indexes: Vec<usize>,
    pub(super) fold: Fold,
    pub(super) ledger: Outcomes,
    pub(super) run: RunId,
    pub(super) _open: Open,
}

impl<S: Store> Opened<S> {
    /// The transaction, for work that is another's.
    pub(crate) fn tx(&mut self) -> Tx<'_, S> {
        self.unit.tx()
    }

    pub(crate) fn unit(&self) -> &S::Unit {
        &self.unit
    }

    pub(crate) fn unit_mut(&mut self) -> &mut S::Unit {
        &mut self.unit
    }
}

/// Begins a unit and claims its keys. An error is the unit's end, where nothing is to run.
pub(super) async fn open<S: Store, J: Borrow<Item> + Sync>(
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
    match ahead(engine, &mut unit, items).await {
        Ok(ahead) if ahead.is_empty() => {}
        Ok(ahead) => return Err((rollback(engine, unit).await.unwrap_or_default(), End::Behind(ahead))),
        Err(error) => return Err((None, store_failed(error))),
    }
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
    if must_ask(engine, &unit, items) {
        return Err((rollback(engine, unit).await.unwrap_or_default(), End::Behind(Vec::new())));
    }
    if let Some(gate) = gate
        && !gate.await
    {
        return Err((rollback(engine, unit).await.unwrap_or_default(), End::NotBegun));
    }
    let indexes: Vec<usize> = fresh.iter().map(|(index, _)| *index).collect();
    Ok(Opened { unit, fresh, indexes, fold, ledger, run, _open: open })
}

/// Results by the places of their messages.
fn of_messages(results: Option<Results>, fold: &Fold) -> Results {
    results.into_iter().flatten().map(|(position, result)| (fold.claims[position], result)).collect()
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
