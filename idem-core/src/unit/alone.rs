//! After a failed unit a consumer without a worker runs each message alone, in order, so that an innocent
//! handler runs at most twice and only the culprit is charged.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
};

use tracing::Span;

use crate::{
    dead_letter::Reason,
    error::{ErrorClass, StoreError},
    failpoint,
    handler_error::CannotRepeat,
    hash::PayloadHash,
    message::Message,
    names::{OrderingKey, ScopeId},
    outbox::collect::Collector,
    outcome::{Decision, Failure},
    policy::{self, Action, Known, Seen},
    store::{
        Store,
        describe::{code, one_line},
    },
    unit::{
        answers::{self, Answers, Decided},
        engine::Engine,
        identify::Item,
        open::Opened,
        run::{End, Worked, begin_alone, end_alone, run},
        session::{NO_LANE, inject},
    },
};

/// How often a unit runs as it is before its messages run alone, or are handed back.
const ROUNDS_MAX: u32 = 3;

/// Decides every message, in order, and gives it back, with results where the caller asks for them.
pub(crate) async fn process<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    messages: Vec<Message>,
    mut answers: Option<&mut Answers<'_, S>>,
) -> Vec<Decided> {
    let mut decided: Vec<Option<Decided>> = messages.iter().map(|_| None).collect();
    let (mut positions, mut items) = (Vec::new(), Vec::new());
    for (position, message) in messages.into_iter().enumerate() {
        match engine.identify(message, None).await {
            Ok(item) => {
                positions.push(position);
                items.push(item);
            }
            Err(rejected) => {
                let decision = Decision::Failed(rejected.failure);
                decided[position] = Some(Decided { message: rejected.message, decision, result: None });
            }
        }
    }
    let fits = engine.store.capabilities().messages_max.is_none_or(|max| items.len() <= max);
    let share = fits && engine.coalesce_calls() && items.iter().all(|item| !engine.calls_outside(&item.message));
    let decisions =
        if share && !items.is_empty() { whole(engine, session, &items, answers.as_deref_mut()).await } else { None };
    let decisions = match decisions {
        Some(decisions) => decisions,
        None => alone(engine, session, &items, answers.as_deref_mut()).await,
    };
    let known = answers.map(|answers| std::mem::take(&mut answers.of)).unwrap_or_default();
    // A message without a decision would go back to the broker.
    let decisions = decisions.into_iter().chain(std::iter::repeat_with(|| Decision::Busy));
    let known = known.into_iter().chain(std::iter::repeat(None));
    for (((position, item), decision), known) in positions.into_iter().zip(items).zip(decisions).zip(known) {
        // Results of a round whose COMMIT had no answer count for nothing.
        let is_done = matches!(decision, Decision::Processed(_) | Decision::Duplicate(..));
        let result = known.filter(|_| is_done);
        decided[position] = Some(Decided { message: item.message, decision, result });
    }
    decided.into_iter().flatten().collect()
}

/// Runs the unit as a whole; `None` where its messages must run alone.
pub(crate) async fn whole<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    items: &[Item],
    answers: Option<&mut Answers<'_, S>>,
) -> Option<Vec<Decision>> {
    rest(engine, session, items, Rounds::of(items.len()), answers).await
}

async fn rest<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    items: &[Item],
    mut rounds: Rounds,
    mut answers: Option<&mut Answers<'_, S>>,
) -> Option<Vec<Decision>> {
    while rounds.begin() {
        let (kept, end) = run(engine, session.take(), NO_LANE, items, None, answers.as_deref_mut()).await;
        *session = kept;
        if let ControlFlow::Break(decided) = rounds.after(engine, end, items.len(), answers.as_deref()).await {
            return decided;
        }
    }
    rounds.spent::<S>(items.len())
}

/// The rounds in which a unit runs as it is. Without a worker nothing is counted or held: where a worker would do so, the call ends, with the
/// cause as the decision.
pub(crate) struct Rounds {
    known: Known,
    contended: Option<StoreError>,
    cause: Option<String>,
    round: u32,
}

impl Rounds {
    fn of(items: usize) -> Self {
        let known = Known { attempt: u32::from(items == 1), attempts_max: u32::MAX, ..Known::default() };
        Self { known, contended: None, cause: None, round: 0 }
    }

    /// Whether there is another round.
    fn begin(&mut self) -> bool {
        self.known.again = self.round;
        self.round < ROUNDS_MAX
    }

    /// What the end of a round decides, or that another one follows. `None` where the messages must run alone.
    async fn after<S: Store>(
        &mut self,
        engine: &Engine<S>,
        end: End,
        items: usize,
        answers: Option<&Answers<'_, S>>,
    ) -> ControlFlow<Option<Vec<Decision>>> {
        if matches!(end, End::Refused) {
            // The next unit keeps the outcome of the work, and does not run it.
            return match failpoint!(REFUSED) {
                Ok(()) => ControlFlow::Continue(()),
                Err(injected) => {
                    ControlFlow::Break(Some(vec![Decision::Failed(store_failure::<S>(&inject(injected)))]))
                }
            };
        }
        self.round += 1;
        let (seen, error) = match end {
            // Another process has claimed the key of a refused operation meanwhile, and decides it.
            End::Decided(decisions)
                if matches!(decisions[..], [Decision::Busy])
                    && self.round < ROUNDS_MAX
                    && answers.is_some_and(|answers| answers.refused.is_some()) =>
            {
                return ControlFlow::Continue(());
            }
            End::Decided(decisions) => return ControlFlow::Break(Some(with_cause(decisions, self.cause.take()))),
            End::Behind(ahead) if ahead.is_empty() => return ControlFlow::Continue(()),
            // A worker keeps it in order. Here its caller does.
            End::Behind(_) if items == 1 => return ControlFlow::Break(Some(vec![Decision::Busy])),
            End::Behind(_) | End::Isolate(_) | End::Held | End::NotBegun | End::Refused => {
                return ControlFlow::Break(None);
            }
            End::Unknown { error, .. } => {
                (Seen::CommitUnanswered, StoreError::Unavailable { doing: "committing", source: error })
            }
            End::Again(error) => (Seen::Contended, error),
            End::NoWinner(error) => (Seen::NoWinner, error),
            End::Lost(error) | End::StoreFailed(error) => (Seen::StoreFailed(error.class()), error),
        };
        match policy::after(&self.known, seen) {
            // The next round claims on a new connection, which shows how the commit ended (A5, A6).
            Action::ClaimAgain => {
                tracing::warn!(idem.consumer = %engine.name, error = one_line::<S>(&error), "the answer to a commit was lost");
                let error = one_line::<S>(&error);
                self.cause =
                    Some(format!("the answer to the commit was lost, and nothing had been committed: {error}"));
                self.contended = None;
                ControlFlow::Continue(())
            }
            Action::RunAgain => {
                tracing::debug!(idem.consumer = %engine.name, error = one_line::<S>(&error), "the unit runs again");
                self.cause = Some(format!("{} ({})", one_line::<S>(&error), error.class()));
                self.contended = Some(error);
                ControlFlow::Continue(())
            }
            Action::RunAlone if items > 1 => ControlFlow::Break(None),
            Action::Retry if seen == Seen::Contended && items > 1 => ControlFlow::Break(None),
            Action::RunAlone
            | Action::AskTheDatabase
            | Action::AwaitTheDatabase
            | Action::Wait(_)
            | Action::Retry
            | Action::Later(_)
            | Action::DeadLetter
            | Action::Stop => {
                let failed = (0..items).map(|_| Decision::Failed(store_failure::<S>(&error)));
                ControlFlow::Break(Some(failed.collect()))
            }
        }
    }

    /// The decisions after the last round. A message that ran alone each time has failed with the error of its unit.
    fn spent<S: Store>(self, items: usize) -> Option<Vec<Decision>> {
        self.contended.filter(|_| items == 1).map(|error| vec![Decision::Failed(store_failure::<S>(&error))])
    }
}

/// Begins the unit of one message whose work is another's. An error is its decision.
pub(crate) async fn begin_one<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    item: &Item,
    answers: &mut Answers<'_, S>,
) -> Result<(Opened<S>, Span, Rounds), Decision> {
    let mut rounds = Rounds::of(1);
    while rounds.begin() {
        match begin_alone(engine, session.take(), item, answers).await {
            Ok((opened, span)) => return Ok((opened, span, rounds)),
            Err((kept, end)) => {
                *session = kept;
                if let ControlFlow::Break(decided) = rounds.after(engine, end, 1, Some(answers)).await {
                    return Err(of_one(decided));
                }
            }
        }
    }
    Err(of_one(rounds.spent::<S>(1)))
}

/// Ends that unit after its work, and decides the message. Where the unit runs again, the work of `answers` runs in place of the other's.
pub(crate) async fn end_one<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    item: &Item,
    (opened, span, mut rounds): (Opened<S>, Span, Rounds),
    work: (Collector<'_>, Worked),
    answers: &mut Answers<'_, S>,
) -> Decision {
    let (kept, end) = end_alone(engine, (opened, span), item, work, answers).await;
    *session = kept;
    of_one(match rounds.after(engine, end, 1, Some(answers)).await {
        ControlFlow::Break(decided) => decided,
        ControlFlow::Continue(()) => rest(engine, session, std::slice::from_ref(item), rounds, Some(answers)).await,
    })
}

/// A second run of work that cannot run again fails for the error that ended the first one.
fn with_cause(mut decisions: Vec<Decision>, cause: Option<String>) -> Vec<Decision> {
    let Some(cause) = cause else { return decisions };
    for decision in &mut decisions {
        if let Decision::Failed(failure) = decision
            && failure.error.as_ref().is_some_and(|error| error.downcast_ref::<CannotRepeat>().is_some())
        {
            failure.text = format!("{}. The cause: {cause}", failure.text);
        }
    }
    decisions
}

async fn alone<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    items: &[Item],
    mut answers: Option<&mut Answers<'_, S>>,
) -> Vec<Decision> {
    let mut known: Vec<Option<answers::Known>> = items.iter().map(|_| None).collect();
    if items.len() > 1 {
        // Injected errors mean nothing here: nothing is under way.
        let _ = failpoint!(ISOLATE);
    }
    let mut decisions = Vec::with_capacity(items.len());
    let mut waiting: HashSet<(ScopeId, &str)> = HashSet::new();
    let mut ordered: HashSet<&OrderingKey> = HashSet::new();
    let mut failed_for_good: HashMap<(ScopeId, &str, PayloadHash), Failure> = HashMap::new();
    let mut down: Option<Failure> = None;
    for (item, known) in items.iter().zip(&mut known) {
        // Each further message would only wait for the same database in turn.
        if let Some(failure) = &down {
            decisions.push(Decision::Failed(failure.clone_text()));
            continue;
        }
        let key = item.claim.as_ref().map(|claim| (claim.scope, claim.key.as_str()));
        let order = item.message.ordering_key();
        // Messages behind one that waits for another attempt wait too (D7, D10).
        if key.is_some_and(|key| waiting.contains(&key)) || order.is_some_and(|order| ordered.contains(order)) {
            decisions.push(Decision::Busy);
            continue;
        }
        // An equal copy of a message that failed for good follows it, without a run of its own.
        let content = key.zip(item.claim.as_ref()).map(|((scope, key), claim)| (scope, key, claim.hash));
        if let Some(failure) = content.and_then(|content| failed_for_good.get(&content)) {
            decisions.push(Decision::Failed(failure.clone_text()));
            continue;
        }
        let mut apart = answers.as_deref().map(Answers::apart);
        let decision = decide_one(engine, session, item, apart.as_mut()).await;
        *known = apart.and_then(|mut apart| apart.of.pop()).flatten();
        if let (Decision::Failed(failure), Some(content)) = (&decision, content)
            && failure.class == ErrorClass::Permanent
        {
            failed_for_good.insert(content, failure.clone_text());
        }
        let waits = match &decision {
            Decision::Busy => true,
            Decision::Failed(failure) => failure.class != ErrorClass::Permanent,
            Decision::Processed(_) | Decision::Duplicate(..) | Decision::Conflict(..) => false,
        };
        if let Decision::Failed(failure) = &decision
            && matches!(failure.class, ErrorClass::Infrastructure | ErrorClass::Fatal)
            && failure.error.is_none()
        {
            down = Some(failure.clone_text());
        }
        if waits {
            waiting.extend(key);
            ordered.extend(order);
        }
        decisions.push(decision);
    }
    if let Some(answers) = &mut answers {
        answers.of = known;
    }
    decisions
}

/// Decides one message in a unit of its own.
pub(crate) async fn decide_one<S: Store>(
    engine: &Engine<S>,
    session: &mut Option<S::Session>,
    item: &Item,
    answers: Option<&mut Answers<'_, S>>,
) -> Decision {
    of_one(whole(engine, session, std::slice::from_ref(item), answers).await)
}

/// Without an answer after that many rounds, the outcome is unknown: the message goes back and is claimed again.
fn of_one(decided: Option<Vec<Decision>>) -> Decision {
    decided.and_then(|decisions| decisions.into_iter().next()).unwrap_or(Decision::Busy)
}

pub(crate) fn store_failure<S: Store>(error: &StoreError) -> Failure {
    let failure = Failure::new(error.class(), Reason::AttemptsExhausted, one_line::<S>(error));
    failure.with_code(code::<S>(error))
}
