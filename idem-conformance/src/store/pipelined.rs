//! Handlers of one unit that run at once, on the transaction that they share. Where a store does not share it, every case
//! finds the setting refused.

use std::sync::Arc;

use idem_core::{
    Concurrency, ConfigError, Decision, DedupConsumer, Effects, ErrorClass, Message, Store as _, dead_letter::Reason,
    message::OrderingKey,
};

use super::{
    fixture::{Fixture, Kind, Seen, Step, decide, msg, process, write},
    gate::{DEADLINE, Gate},
    observed::LostCommit,
    subject::{HandlerAction, StoreUnderTest},
};

type Consumer<T> = DedupConsumer<Seen<T>>;
type Plan = dyn Fn(&Message, usize) -> Vec<Step> + Send + Sync;

/// A consumer whose handlers run at once; `None` where the store refuses that, which is then checked.
fn at_once<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    at_once: usize,
    plan: impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static,
) -> Option<Consumer<T>> {
    let builder = fixture.builder("orders", plan).handlers(Concurrency::Pipelined { at_once });
    let built = builder.handler_deadline(DEADLINE * 5).build();
    if fixture.store.capabilities().concurrent_handlers {
        return Some(built.unwrap());
    }
    assert_eq!(refused(built), "handlers", "a store that does not share its transaction refuses it");
    None
}

fn refused<C>(built: Result<C, ConfigError>) -> &'static str {
    built.map(|_| ()).unwrap_err().field
}

fn key(message: &Message) -> &str {
    message.key().map_or("", |key| key.as_str())
}

/// The step of `culprit` in each of its runs; the others write.
fn only(culprit: &'static str, steps: Vec<Step>) -> Arc<Plan> {
    Arc::new(move |message, _| if key(message) == culprit { steps.clone() } else { vec![Step::Write("")] })
}

fn many() -> Vec<String> {
    (0..20).map(|number| format!("order-{number:02}")).collect()
}

/// The setting is refused where it has no meaning: calls beyond the transaction, a batch handler, zero at once, and a
/// store that does not share its transaction.
pub async fn handlers_at_once_are_refused_where_they_cannot_be<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let builder = || fixture.builder("orders", write).handlers(Concurrency::pipelined());
    assert_eq!(refused(builder().effects(Effects::Outside).handler_deadline(DEADLINE).build()), "handlers");
    assert_eq!(refused(builder().batch_handler(fixture.probe(write)).build()), "handlers");
    let built = builder().build();
    if fixture.store.capabilities().concurrent_handlers {
        assert!(built.is_ok());
        let nobody = builder().handlers(Concurrency::Pipelined { at_once: 0 }).build();
        assert_eq!(refused(nobody), "handlers.at_once");
    } else {
        assert_eq!(refused(built), "handlers");
    }
}

/// All handlers of a batch have begun before the first one ends, and all effects are there once.
pub async fn handlers_run_at_once_and_commit_together<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let plan = move |_: &Message, _| vec![Step::Write("before"), Step::Pass(inside.clone())];
    let Some(consumer) = at_once(&fixture, 100, plan) else { return };
    let keys = many();
    let messages: Vec<_> = keys.iter().map(|key| msg(key, "paid")).collect();
    let call = {
        let (consumer, messages) = (consumer.clone(), messages.clone());
        tokio::spawn(async move { process(&consumer, messages).await })
    };
    gate.arrived(20).await;
    fixture.assert_effects([]).await;
    gate.open();
    assert_eq!(call.await.unwrap(), vec![Kind::Processed; 20]);
    assert_eq!(process(&consumer, messages).await, vec![Kind::Duplicate; 20]);
    assert_eq!(fixture.runs.all(), keys, "begun in the order of delivery");
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// The bound on how many run at once holds.
pub async fn no_more_handlers_run_at_once_than_allowed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let plan = move |_: &Message, _| vec![Step::Pass(inside.clone()), Step::Write("")];
    let Some(consumer) = at_once(&fixture, 2, plan) else { return };
    let call = tokio::spawn(async move { process(&consumer, ["a", "b", "c", "d"].map(|key| msg(key, "p"))).await });
    gate.arrived(2).await;
    // A look at the database takes longer than the start of another handler would.
    fixture.assert_effects([]).await;
    assert_eq!(fixture.runs.all(), ["a", "b"]);
    gate.open();
    assert_eq!(call.await.unwrap(), [Kind::Processed; 4]);
    fixture.assert_effects(["a", "b", "c", "d"].map(|key| (key, "p"))).await;
}

/// Messages of one ordering key run one after the other, those of others beside them.
pub async fn handlers_of_one_ordering_key_run_in_turn<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let plan = move |message: &Message, _| {
        let waits = key(message).ends_with('1');
        if waits { vec![Step::Pass(inside.clone()), Step::Write("")] } else { vec![Step::Write("")] }
    };
    let Some(consumer) = at_once(&fixture, 100, plan) else { return };
    let of = |order: &'static str, key: &str| msg(key, "p").with_ordering_key(OrderingKey::new(order));
    let messages = [of("a", "a-1"), of("a", "a-2"), of("b", "b-1"), of("a", "a-3"), of("b", "b-2"), msg("c", "p")];
    let call = tokio::spawn(async move { process(&consumer, messages).await });
    gate.arrived(2).await;
    fixture.assert_effects([]).await;
    assert_eq!(fixture.runs.all(), ["a-1", "b-1", "c"], "none overtakes in an ordering key, and others do not wait");
    gate.open();
    assert_eq!(call.await.unwrap(), [Kind::Processed; 6]);
    let runs = fixture.runs.all();
    let place = |key: &str| runs.iter().position(|run| run == key);
    assert!(place("a-2") < place("a-3"), "{runs:?}");
    fixture.assert_effects(["a-1", "a-2", "a-3", "b-1", "b-2", "c"].map(|key| (key, "p"))).await;
}

/// At the first failure no further handler begins; those that run end before the transaction does, and no other message
/// is charged. Then the messages run again, each alone.
pub async fn nobody_begins_after_a_failure_and_all_end_before_the_rollback<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let plan = move |message: &Message, run| match key(message) {
        "runs" if run == 1 => vec![Step::Pass(inside.clone()), Step::Write("")],
        "fails" => vec![Step::Write(""), Step::Fail],
        _ => vec![Step::Write("")],
    };
    let Some(consumer) = at_once(&fixture, 2, plan) else { return };
    let messages = ["runs", "fails", "later"].map(|key| msg(key, "p"));
    let call = tokio::spawn(async move { process(&consumer, messages).await });
    gate.arrived(1).await;
    fixture.assert_effects([]).await;
    assert_eq!(fixture.runs.all(), ["runs", "fails"], "the third does not begin in the place of the second");
    assert_eq!(fixture.spy.claimed().len(), 1, "the unit goes on while a handler of it runs");
    gate.open();
    assert_eq!(call.await.unwrap(), [Kind::Processed, Kind::Failed(ErrorClass::Transient), Kind::Processed]);
    assert_eq!(fixture.runs.all(), ["runs", "fails", "runs", "fails", "later"], "then alone, and in order");
    fixture.assert_effects([("runs", "p"), ("later", "p")]).await;
}

/// One message of twenty fails; its neighbours are handled and run at most twice.
async fn culprit_among_twenty<T: StoreUnderTest>(fixture: &Fixture<'_, T>, steps: Vec<Step>) -> Option<Decision> {
    let plan = only("order-07", steps);
    let consumer = at_once(fixture, 100, move |message, run| plan(message, run))?;
    let keys = many();
    let mut decisions = decide(&consumer, keys.iter().map(|key| msg(key, "paid"))).await;
    for (key, decision) in keys.iter().zip(&decisions) {
        let is_culprit = key == "order-07";
        assert_eq!(Kind::of(decision) == Kind::Processed, !is_culprit, "{key}: {decision:?}");
        assert!(fixture.runs.of(key) <= 2, "{key} ran {} times", fixture.runs.of(key));
    }
    let innocent = keys.iter().filter(|key| *key != "order-07");
    fixture.assert_effects(innocent.map(|key| (key.as_str(), "paid"))).await;
    Some(decisions.swap_remove(7))
}

/// D1: a statement that fails takes the transaction and all its neighbours' statements with it, and only its own message
/// is charged.
pub async fn a_failed_statement_among_handlers_at_once_charges_its_own_message<T: StoreUnderTest>(subject: &T) {
    if subject.offers(HandlerAction::FailingStatement) {
        let failing = Step::Act(HandlerAction::FailingStatement);
        culprit_among_twenty(&Fixture::new(subject), vec![Step::Write(""), failing]).await;
    }
}

/// A9: the same where the handler swallows the error.
pub async fn a_swallowed_error_among_handlers_at_once_charges_its_own_message<T: StoreUnderTest>(subject: &T) {
    if subject.offers(HandlerAction::FailingStatement) {
        let swallowed = Step::Swallow(HandlerAction::FailingStatement);
        culprit_among_twenty(&Fixture::new(subject), vec![Step::Write(""), swallowed]).await;
    }
}

/// A17, D1: a panic.
pub async fn a_panic_among_handlers_at_once_charges_its_own_message<T: StoreUnderTest>(subject: &T) {
    let failed = culprit_among_twenty(&Fixture::new(subject), vec![Step::Write(""), Step::Panic]).await;
    let Some(failed) = failed else { return };
    assert_eq!(Kind::of(&failed), Kind::Failed(ErrorClass::Transient));
}

/// A18, D1: a handler that never answers. Its neighbours end; it is dropped at its deadline, and the connection with it.
pub async fn a_late_handler_among_handlers_at_once_charges_its_own_message<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let Some(failed) = culprit_among_twenty(&fixture, vec![Step::Write(""), Step::Hang]).await else { return };
    assert!(fixture.spy.opened.get() >= 3, "a connection on which a handler was dropped is not used again");
    assert!(matches!(&failed, Decision::Failed(failure) if failure.reason == Reason::Deadline), "{failed:?}");
}

/// A12: a statement that concerns the transaction or the session is refused before it is sent: one handler's ROLLBACK TO
/// would undo its neighbours' writes silently, and its COMMIT would end them. Here it tries and does not care.
pub async fn what_belongs_to_all_is_out_of_one_handlers_reach<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let actions = [
        HandlerAction::Commit,
        HandlerAction::Rollback,
        HandlerAction::CommitAndBegin,
        HandlerAction::NestedCommitted,
        HandlerAction::NestedRolledBack,
        HandlerAction::NestedLeft,
    ];
    let tried = actions.map(Step::Swallow).to_vec();
    let plan = move |message: &Message, _| {
        let mut steps = vec![Step::Write("")];
        if key(message) == "order-07" {
            steps.extend(tried.clone());
        }
        steps
    };
    let Some(consumer) = at_once(&fixture, 100, plan) else { return };
    let keys = many();
    assert_eq!(process(&consumer, keys.iter().map(|key| msg(key, "paid"))).await, vec![Kind::Processed; 20]);
    assert_eq!(fixture.runs.all().len(), 20, "nothing was spoilt, so no message ran twice");
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// A5, A6, D6: an unknown commit of handlers at once is resolved by claiming again.
pub async fn a_lost_answer_to_a_commit_of_handlers_at_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let Some(consumer) = at_once(&fixture, 100, write) else { return };
    for (lost, expected) in [(LostCommit::Committed, Kind::Duplicate), (LostCommit::RolledBack, Kind::Processed)] {
        fixture.spy.lose_commits(&[lost]);
        let keys: Vec<_> = (0..5).map(|number| format!("{lost:?}-{number}")).collect();
        assert_eq!(process(&consumer, keys.iter().map(|key| msg(key, "paid"))).await, vec![expected; 5], "{lost:?}");
    }
    assert_eq!(fixture.effects().await.len(), 10, "each effect once");
}
