//! One unit of work: begin, claim, handle, seal and commit. Nothing cancels it between begin and commit but the limits
//! it sets itself, and each of those costs the connection.

use std::{
    borrow::{Borrow, Cow},
    future::Future,
    panic::AssertUnwindSafe,
    sync::atomic::Ordering,
    time::Duration,
};

use futures_util::FutureExt;

use super::{Inner, Item, batch};
use crate::{
    clock,
    config::ConsumerSettings,
    dead_letter::Reason,
    error::{BoxError, ClaimError, CommitError, ErrorClass, StoreError},
    failpoint,
    handler::{Answer, Handled, Work},
    message::Message,
    outcome::{self, Decision, Durable, Failure, Ticket, Verdict},
    store::{Claim, Recorded, Retention, Store, UnitOfWork, UnitOptions},
};

/// How a unit ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Every message has a decision, in order.
    Decided(Vec<Decision>),
    /// A unit of several messages was rolled back. Those named run alone; the others may run as one batch again.
    Isolate(Vec<usize>),
    /// Somebody holds a key of a unit of several messages: claim them one by one.
    Held,
    /// The store neither inserted a key nor found who has it.
    NoWinner(StoreError),
    /// The unit was rolled back because another got in the way; it may run again as it is.
    Again(StoreError),
    /// The answer to the commit was lost: claim again on a new connection.
    Unknown(BoxError),
    /// The store failed; its class says what to do.
    Trouble(StoreError),
}

/// Rounds of claim and read before a key counts as having no winner (C3, M24).
const CLAIM_ROUNDS: usize = 3;

/// Units in a row without a winner that end the consumer: a trigger or policy swallows its rows (B6).
const NO_WINNER_MAX: u32 = 5;

/// Runs one unit over `items` on `lane`, which is opened where there is none. The lane comes back after a normal end.
pub(crate) async fn run<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: Option<S::Lane>,
    lane_number: i32,
    items: &[J],
) -> (Option<S::Lane>, End) {
    let mut lane = match lane_or_open(inner, lane).await {
        Ok(lane) => lane,
        Err(error) => return (None, End::Trouble(error)),
    };
    let (clean, end) = run_on(inner, &mut lane, lane_number, items).await;
    if matches!(end, End::Decided(_)) {
        inner.no_winner.store(0, Ordering::Relaxed);
    }
    // A connection in an unknown state is closed, never used again (A15, A16).
    (clean.then_some(lane), end)
}

async fn lane_or_open<S: Store>(inner: &Inner<S>, lane: Option<S::Lane>) -> Result<S::Lane, StoreError> {
    match lane {
        Some(lane) => Ok(lane),
        None => answered(inner.settings.answer_timeout, "connecting", inner.store.open()).await,
    }
}

/// Waits for the store's answer at most this long. A server that is gone without a word would otherwise hold the lane
/// for as long as TCP does, which is hours (M28). The connection must be closed after a time-out.
async fn answered<T>(
    limit: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Unavailable { doing, source: Box::new(elapsed) }),
    }
}

fn options(settings: &ConsumerSettings, run: crate::RunId, lane: i32) -> UnitOptions {
    UnitOptions {
        run,
        lane,
        busy_timeout: settings.busy_timeout,
        idle_timeout: settings.handler_deadline + Duration::from_secs(5),
    }
}

async fn run_on<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: &mut S::Lane,
    lane_number: i32,
    items: &[J],
) -> (bool, End) {
    let registered = match inner.register(None).await {
        Ok(registered) => registered,
        Err(error) => return (false, End::Trouble(error)),
    };
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(lane, options(&inner.settings, registered.run, lane_number));
    let mut unit = match answered(limit, "beginning a transaction", begin).await {
        Ok(unit) => unit,
        Err(error) => return (false, trouble(error)),
    };
    if let Err(injected) = failpoint!(BEGIN) {
        return (false, trouble(inject(injected)));
    }
    let fold = batch::fold(items);
    let claims: Vec<Claim> = fold.claims.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let rehash = |position: usize, rule| {
        let leader: &Item = items[fold.claims[position]].borrow();
        inner.rehash(&leader.message, rule)
    };
    let claim = claim_all::<S>(&mut unit, &claims, rehash);
    let verdicts = match tokio::time::timeout(inner.settings.busy_timeout + limit, claim).await {
        Ok(Ok(verdicts)) => verdicts,
        Ok(Err(error)) => return claim_failed(inner, unit, error, items.len()).await,
        Err(elapsed) => {
            return (false, trouble(StoreError::Unavailable { doing: "claiming keys", source: Box::new(elapsed) }));
        }
    };
    if let Err(injected) = failpoint!(CLAIMED) {
        return (false, trouble(inject(injected)));
    }
    let mut ledger = Ledger::new(items.len());
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
    // Keys were claimed in their own order; handlers run in the order of delivery.
    fresh.sort_by_key(|(index, _)| *index);
    if fresh.is_empty() {
        // Nothing was written, so there is nothing to commit: a duplicate consumes no transaction id (M25, R28).
        let clean = rollback(inner, unit).await.is_ok();
        return (clean, End::Decided(ledger.decide(inner, items, &fold, registered.run)));
    }
    let indexes: Vec<usize> = fresh.iter().map(|(index, _)| *index).collect();
    if let Err(stopped) = handle_all(inner, &mut unit, items, fresh).await {
        return stopped_early(inner, unit, stopped, items.len()).await;
    }
    if let Err(injected) = failpoint!(HANDLER_DONE).and(failpoint!(GUARD)) {
        return (false, trouble(inject(injected)));
    }
    match commit(inner, unit).await {
        Ok(()) => {
            indexes.iter().for_each(|index| ledger.committed(*index));
            (true, End::Decided(ledger.decide(inner, items, &fold, registered.run)))
        }
        Err(CommitError::Unknown(error)) => (false, End::Unknown(error)),
        Err(CommitError::RolledBack(error)) => (false, commit_refused::<S>(error, &indexes, items.len())),
    }
}

/// Claims every key and reads who has those that were not inserted, for a bounded number of rounds. One verdict a
/// claim, in order; none is `Unanswered`.
async fn claim_all<S: Store>(
    unit: &mut S::Unit<'_>,
    claims: &[Claim],
    rehash: impl Fn(usize, crate::HashRuleId) -> Option<crate::PayloadHash>,
) -> Result<Vec<Verdict>, ClaimError> {
    let mut verdicts: Vec<Option<Verdict>> = claims.iter().map(|_| None).collect();
    let mut open: Vec<usize> = (0..claims.len()).collect();
    for _ in 0..CLAIM_ROUNDS {
        // Also where there is nothing to claim: the claim puts the unit's limits back, and a store may send its BEGIN
        // with it.
        let asked = those(claims, &open);
        let answers = unit.claim(&asked).await?;
        one_answer_each(answers.len(), asked.len())?;
        let mut unanswered = Vec::new();
        for (index, answer) in open.into_iter().zip(answers) {
            match outcome::verdict(&claims[index], answer, |rule| rehash(index, rule)) {
                Verdict::Unanswered => unanswered.push(index),
                verdict @ (Verdict::Fresh(_)
                | Verdict::Duplicate(..)
                | Verdict::Conflict(..)
                | Verdict::Collision(_)) => verdicts[index] = Some(verdict),
            }
        }
        open = unanswered;
        if open.is_empty() {
            break;
        }
        let asked = those(claims, &open);
        let found = unit.read(&asked).await?;
        one_answer_each(found.len(), asked.len())?;
        let mut vanished = Vec::new();
        for (index, recorded) in open.into_iter().zip(found) {
            match recorded {
                Some(recorded) => {
                    verdicts[index] = Some(outcome::compare(&claims[index], recorded, |rule| rehash(index, rule)));
                }
                None => vanished.push(index),
            }
        }
        open = vanished;
        if open.is_empty() {
            break;
        }
    }
    match open.first() {
        Some(index) => Err(ClaimError::NoWinner { key: claims[*index].key.clone() }),
        None => Ok(verdicts.into_iter().flatten().collect()),
    }
}

/// The claims at these indexes, copied only where it is not all of them.
fn those<'a>(claims: &'a [Claim], indexes: &[usize]) -> Cow<'a, [Claim]> {
    if indexes.len() == claims.len() {
        return Cow::Borrowed(claims);
    }
    indexes.iter().map(|index| claims[*index].clone()).collect()
}

fn one_answer_each(answers: usize, asked: usize) -> Result<(), StoreError> {
    if answers == asked {
        return Ok(());
    }
    Err(StoreError::Refused {
        problem: format!("the store gave {answers} answers for {asked} claims"),
        cure: "This breaks the contract of UnitOfWork: run idem_testkit::store_conformance! on the store".to_owned(),
    })
}

/// What stopped the handlers of a unit.
enum Stopped {
    /// These messages' handlers failed; the connection is to be probed.
    Failed(Vec<(usize, Failure)>),
    /// The same, and nobody knows what a handler left on the connection: it panicked, or left a transaction open.
    Spoilt(Vec<(usize, Failure)>),
    /// A handler passed its deadline and was dropped in the middle.
    Late(Vec<usize>, Failure),
    /// A failpoint.
    Injected(StoreError),
}

async fn handle_all<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    unit: &mut S::Unit<'_>,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
) -> Result<(), Stopped> {
    match &inner.work {
        Work::Each(handler) => {
            for (index, ticket) in fresh {
                let mut tx = unit.tx();
                let call = handler.handle_dyn(&items[index].borrow().message, &mut tx);
                match guarded(ticket, inner.settings.handler_deadline, call).await {
                    Handled::Answered(Ok(())) => {}
                    Handled::Answered(Err(error)) => return Err(Stopped::Failed(vec![(index, inner.failure(error))])),
                    Handled::Panicked => return Err(Stopped::Spoilt(vec![(index, panicked())])),
                    Handled::Late => return Err(Stopped::Late(vec![index], late(inner.settings.handler_deadline))),
                }
                drop(tx);
                unit.check().map_err(|error| Stopped::Spoilt(vec![(index, unsealed::<S>(&error))]))?;
                failpoint!(HANDLER_MID).map_err(|injected| Stopped::Injected(inject(injected)))?;
            }
            Ok(())
        }
        Work::Batch(handler) => {
            let indexes: Vec<usize> = fresh.iter().map(|(index, _)| *index).collect();
            let messages: Vec<&Message> = indexes.iter().map(|index| &items[*index].borrow().message).collect();
            let Some((_, ticket)) = fresh.into_iter().next() else { return Ok(()) };
            let mut tx = unit.tx();
            let call = handler.handle_dyn(&messages, &mut tx);
            let answer = match guarded(ticket, inner.settings.handler_deadline, call).await {
                Handled::Answered(Ok(answer)) => answer,
                Handled::Answered(Err(error)) => return Err(Stopped::Failed(for_all(&indexes, inner.failure(error)))),
                Handled::Panicked => return Err(Stopped::Spoilt(for_all(&indexes, panicked()))),
                Handled::Late => return Err(Stopped::Late(indexes, late(inner.settings.handler_deadline))),
            };
            drop(tx);
            let named = named(inner, &indexes, answer)?;
            if !named.is_empty() {
                return Err(Stopped::Failed(named));
            }
            unit.check().map_err(|error| Stopped::Spoilt(for_all(&indexes, unsealed::<S>(&error))))?;
            failpoint!(HANDLER_MID).map_err(|injected| Stopped::Injected(inject(injected)))
        }
    }
}

/// The messages that a batch handler named as culprits.
fn named<S: Store>(
    inner: &Inner<S>,
    indexes: &[usize],
    answer: crate::BatchAnswer,
) -> Result<Vec<(usize, Failure)>, Stopped> {
    let answers = match answer.0 {
        Answer::All => return Ok(Vec::new()),
        Answer::Each(answers) => answers,
    };
    if answers.len() != indexes.len() {
        let text = format!("the batch handler gave {} answers for {} messages", answers.len(), indexes.len());
        let failure = Failure::new(ErrorClass::Permanent, Reason::Permanent, text);
        return Err(Stopped::Failed(for_all(indexes, failure)));
    }
    let failed = indexes.iter().zip(answers).filter_map(|(index, answer)| Some((*index, answer.err()?)));
    Ok(failed.map(|(index, error)| (index, inner.failure(error))).collect())
}

/// A failure that names no culprit, for each message: they all run alone.
fn for_all(indexes: &[usize], failure: Failure) -> Vec<(usize, Failure)> {
    let Some((first, others)) = indexes.split_first() else { return Vec::new() };
    let others: Vec<_> = others.iter().map(|index| (*index, failure.clone_text())).collect();
    std::iter::once((*first, failure)).chain(others).collect()
}

/// Runs one call of a handler. The ticket is used up.
async fn guarded<T>(
    ticket: Ticket,
    deadline: Duration,
    call: impl Future<Output = Result<T, crate::HandlerError>> + Send,
) -> Handled<T> {
    let _used = ticket;
    match tokio::time::timeout(deadline, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => Handled::Answered(answer),
        // The panic's text may quote the payload, and the panic hook has printed it for the developer (S4).
        Ok(Err(_panic)) => Handled::Panicked,
        Err(_elapsed) => Handled::Late,
    }
}

fn panicked() -> Failure {
    Failure::new(ErrorClass::Transient, Reason::AttemptsExhausted, "the handler panicked")
}

fn late(deadline: Duration) -> Failure {
    let text = format!("the handler passed its deadline of {deadline:?}");
    Failure::new(ErrorClass::Transient, Reason::Deadline, text)
}

fn unsealed<S: Store>(error: &StoreError) -> Failure {
    Failure::new(error.class(), Reason::AttemptsExhausted, super::describe::<S>(error))
}

/// Ends a unit whose handlers did not all succeed.
async fn stopped_early<S: Store>(inner: &Inner<S>, unit: S::Unit<'_>, stopped: Stopped, items: usize) -> (bool, End) {
    let (failed, keep) = match stopped {
        Stopped::Injected(error) => return (false, trouble(error)),
        Stopped::Late(indexes, failure) => {
            // The handler may have left a statement running, so the server is told over another connection.
            let _ = tokio::time::timeout(inner.settings.answer_timeout, unit.abandon()).await;
            return (
                false,
                alone_or_isolated(indexes.into_iter().map(|index| (index, failure.clone_text())).collect(), items),
            );
        }
        Stopped::Failed(failed) => (failed, true),
        Stopped::Spoilt(failed) => (failed, false),
    };
    // Rolling back probes the connection: if it is broken, that is what failed, whatever the handler made of it.
    match rollback(inner, unit).await {
        Err(error) => (false, trouble(error)),
        Ok(()) if failed.iter().any(|(_, failure)| failure.class == ErrorClass::RunUnitAgain) => {
            (keep, End::Again(in_the_way(failed)))
        }
        Ok(()) => (keep, alone_or_isolated(failed, items)),
    }
}

fn in_the_way(failed: Vec<(usize, Failure)>) -> StoreError {
    let text = failed.into_iter().find(|(_, failure)| failure.class == ErrorClass::RunUnitAgain).map(|(_, f)| f.text);
    StoreError::Contended { doing: "running a handler", source: text.unwrap_or_default().into() }
}

/// A message that failed alone has its decision. In a unit of several, what failed is tried alone before anybody is
/// charged: the failure may be a neighbour's doing.
fn alone_or_isolated(failed: Vec<(usize, Failure)>, items: usize) -> End {
    let indexes = failed.iter().map(|(index, _)| *index).collect();
    match failed.into_iter().next() {
        Some((_, failure)) if items == 1 => End::Decided(vec![Decision::Failed(failure)]),
        Some(_) | None => End::Isolate(indexes),
    }
}

async fn claim_failed<S: Store>(inner: &Inner<S>, unit: S::Unit<'_>, error: ClaimError, items: usize) -> (bool, End) {
    let clean = rollback(inner, unit).await.is_ok();
    let end = match error {
        ClaimError::Held if items == 1 => End::Decided(vec![Decision::Busy]),
        ClaimError::Held => End::Held,
        ClaimError::NoWinner { .. } => {
            let in_a_row = inner.no_winner.fetch_add(1, Ordering::Relaxed) + 1;
            let problem = error.to_string();
            if in_a_row >= NO_WINNER_MAX {
                let cure = "Remove it, then restart the worker".to_owned();
                return (clean, End::Trouble(StoreError::Refused { problem, cure }));
            }
            End::NoWinner(StoreError::Failed {
                doing: "claiming keys",
                class: ErrorClass::Transient,
                source: problem.into(),
            })
        }
        ClaimError::Store(error) => return (clean && error.class() != ErrorClass::Infrastructure, trouble(error)),
    };
    (clean, end)
}

fn trouble(error: StoreError) -> End {
    if error.class() == ErrorClass::RunUnitAgain { End::Again(error) } else { End::Trouble(error) }
}

fn inject(injected: failpoint::Injected) -> StoreError {
    StoreError::Unavailable { doing: "passing a failpoint", source: Box::new(injected) }
}

async fn rollback<S: Store>(inner: &Inner<S>, unit: S::Unit<'_>) -> Result<(), StoreError> {
    failpoint!(ROLLBACK).map_err(inject)?;
    answered(inner.settings.answer_timeout, "rolling back", unit.rollback()).await
}

/// Commits. A client's limit is the only one that holds here: PostgreSQL's own time-outs do not apply to a COMMIT that
/// waits for a standby (M11), and a dropped COMMIT is merely unknown.
async fn commit<S: Store>(inner: &Inner<S>, unit: S::Unit<'_>) -> Result<(), CommitError> {
    match tokio::time::timeout(inner.settings.commit_timeout, unit.commit()).await {
        Ok(Ok(())) => failpoint!(COMMIT_OK).map_err(|injected| CommitError::Unknown(Box::new(injected))),
        Ok(Err(error)) => Err(error),
        Err(elapsed) => Err(CommitError::Unknown(Box::new(elapsed))),
    }
}

/// A commit that was certainly rolled back: by a deferred constraint, a conflict with another transaction, or because
/// the seal found that a handler had ended or broken the transaction (A9, A10, A12).
fn commit_refused<S: Store>(error: StoreError, fresh: &[usize], items: usize) -> End {
    match error.class() {
        ErrorClass::RunUnitAgain => End::Again(error),
        ErrorClass::Infrastructure | ErrorClass::Fatal => End::Trouble(error),
        class @ (ErrorClass::Transient | ErrorClass::Permanent) => {
            let reason = if class == ErrorClass::Permanent { Reason::Permanent } else { Reason::AttemptsExhausted };
            let text = super::describe::<S>(&error);
            let failed = fresh.iter().map(|index| (*index, Failure::new(class, reason, text.clone())));
            alone_or_isolated(failed.collect(), items)
        }
    }
}

/// Looks up which of these messages have a record already, in one read-only unit. `None` for those that have none.
pub(crate) async fn look<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: Option<S::Lane>,
    lane_number: i32,
    items: &[J],
) -> (Option<S::Lane>, Result<Vec<Option<Decision>>, StoreError>) {
    let mut lane = match lane_or_open(inner, lane).await {
        Ok(lane) => lane,
        Err(error) => return (None, Err(error)),
    };
    let found = look_on(inner, &mut lane, lane_number, items).await;
    (found.is_ok().then_some(lane), found)
}

async fn look_on<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    lane: &mut S::Lane,
    lane_number: i32,
    items: &[J],
) -> Result<Vec<Option<Decision>>, StoreError> {
    let registered = inner.register(None).await?;
    let limit = inner.settings.answer_timeout;
    let begin = inner.store.begin(lane, options(&inner.settings, registered.run, lane_number));
    let mut unit = answered(limit, "beginning a transaction", begin).await?;
    let positions: Vec<usize> = (0..items.len()).filter(|index| items[*index].borrow().claim.is_some()).collect();
    let claims: Vec<Claim> = positions.iter().filter_map(|index| items[*index].borrow().claim.clone()).collect();
    let found = answered(limit, "looking keys up", unit.read(&claims)).await?;
    one_answer_each(found.len(), claims.len())?;
    answered(limit, "rolling back", unit.rollback()).await?;
    let mut decisions: Vec<Option<Decision>> = items.iter().map(|_| None).collect();
    for ((index, claim), recorded) in positions.into_iter().zip(&claims).zip(found) {
        let Some(recorded) = recorded else { continue };
        let verdict = outcome::compare(claim, recorded, |rule| inner.rehash(&items[index].borrow().message, rule));
        decisions[index] = decision(verdict);
    }
    Ok(decisions)
}

fn decision(verdict: Verdict) -> Option<Decision> {
    match verdict {
        Verdict::Duplicate(recorded, durable) => Some(Decision::Duplicate(recorded, durable)),
        Verdict::Conflict(recorded, kind) => Some(Decision::Conflict(recorded, kind)),
        Verdict::Collision(_) => {
            let text = "another key has the same id in the store; nothing ran";
            Some(Decision::Failed(Failure::new(ErrorClass::Permanent, Reason::KeyCollision, text)))
        }
        Verdict::Fresh(_) | Verdict::Unanswered => None,
    }
}

/// What is known of each message of a unit, until every one has its decision.
struct Ledger {
    verdicts: Vec<Option<Verdict>>,
    committed: Vec<bool>,
}

impl Ledger {
    fn new(items: usize) -> Self {
        Self { verdicts: (0..items).map(|_| None).collect(), committed: vec![false; items] }
    }

    fn note(&mut self, index: usize, verdict: Verdict) {
        self.verdicts[index] = Some(verdict);
    }

    fn committed(&mut self, index: usize) {
        self.committed[index] = true;
    }

    /// Decides every message. Followers are compared with the record that their leader left or met (D10).
    fn decide<S: Store, J: Borrow<Item>>(
        mut self,
        inner: &Inner<S>,
        items: &[J],
        fold: &batch::Fold,
        run: crate::RunId,
    ) -> Vec<Decision> {
        let records: Vec<Option<Recorded>> =
            (0..items.len()).map(|index| self.record(inner, items[index].borrow(), index, run)).collect();
        (0..items.len())
            .map(|index| {
                if self.committed[index] {
                    return Decision::Processed(Durable::committed());
                }
                if let Some(decision) = self.verdicts[index].take().and_then(decision) {
                    return decision;
                }
                let item: &Item = items[index].borrow();
                let recorded = fold.leader[index].and_then(|leader| records[leader].clone());
                let verdict = item.claim.as_ref().zip(recorded).map(|(claim, recorded)| {
                    outcome::compare(claim, recorded, |rule| inner.rehash(&item.message, rule))
                });
                // A message without a verdict is a bug; handing it back loses nothing.
                verdict.and_then(decision).unwrap_or(Decision::Busy)
            })
            .collect()
    }

    /// The record that a leader left or met.
    fn record<S: Store>(&self, inner: &Inner<S>, item: &Item, index: usize, run: crate::RunId) -> Option<Recorded> {
        if self.committed[index] {
            let claim = item.claim.as_ref()?;
            let processed_at = clock::wall();
            let expires_at = match inner.settings.retention {
                Retention::For(time) => processed_at.checked_add(time),
                Retention::Forever => None,
            };
            let (key, hash, hash_rule) = (claim.key.clone(), claim.hash, claim.hash_rule);
            return Some(Recorded { key, hash, hash_rule, processed_at, processed_by: run, expires_at });
        }
        match self.verdicts[index].as_ref()? {
            Verdict::Duplicate(recorded, _) | Verdict::Conflict(recorded, _) | Verdict::Collision(recorded) => {
                Some(recorded.clone())
            }
            Verdict::Fresh(_) | Verdict::Unanswered => None,
        }
    }
}
