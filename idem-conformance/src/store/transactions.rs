//! Handlers that misuse their transaction, and the outcome that must follow.

use idem_core::{Decision, ErrorClass, Message};

use super::{
    fixture::{Fixture, Kind, Step, decide, msg, process, redeliver, write},
    gate::{DEADLINE, Gate},
    subject::{HandlerAction, StoreUnderTest},
};

/// A plan that does `step` in the first run of `order-2`, after it has written.
fn once(step: Step) -> impl Fn(&Message, usize) -> Vec<Step> + Send + Sync + 'static {
    move |message, run| {
        let is_culprit = run == 1 && message.key().is_some_and(|key| key.as_str() == "order-2");
        if is_culprit { vec![Step::Write(""), step.clone()] } else { vec![Step::Write("")] }
    }
}

fn batch_of_three() -> Vec<Message> {
    ["order-1", "order-2", "order-3"].map(|key| msg(key, "paid")).to_vec()
}

/// Runs a batch of three in whose middle a handler does `step` once, redelivers, and finds all effects there once.
async fn mischief_in_mid_batch<T: StoreUnderTest>(subject: &T, action: HandlerAction, step: Step) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(action).await {
        return;
    }
    redeliver(&fixture.consumer(once(step)), batch_of_three()).await;
    fixture.assert_effects(["order-1", "order-2", "order-3"].map(|key| (key, "paid"))).await;
}

/// An action that a handler swallows once is not acknowledged; the redelivery runs.
async fn swallowed_is_not_acknowledged<T: StoreUnderTest>(subject: &T, action: HandlerAction) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(action).await {
        return;
    }
    let consumer = fixture.consumer(move |_, run| match run {
        1 => vec![Step::Write(""), Step::Swallow(action)],
        _ => vec![Step::Write("")],
    });
    let kinds = process(&consumer, [msg("order-1", "paid")]).await;
    assert!(matches!(kinds[..], [Kind::Failed(_)]), "{kinds:?}");
    fixture.assert_effects([]).await;
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A9: a handler that swallows a failed statement is not acknowledged; the redelivery runs.
pub async fn swallowed_sql_error_is_not_acknowledged<T: StoreUnderTest>(subject: &T) {
    swallowed_is_not_acknowledged(subject, HandlerAction::FailingStatement).await;
}

/// A9: the same in mid-batch: neighbours are unharmed.
pub async fn swallowed_sql_error_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::FailingStatement, Step::Swallow(HandlerAction::FailingStatement))
        .await;
}

/// A11: an unread error spoils the transaction all the same.
pub async fn unread_error_is_not_acknowledged<T: StoreUnderTest>(subject: &T) {
    swallowed_is_not_acknowledged(subject, HandlerAction::UnreadFailure).await;
}

/// A10: a unit that a deferred constraint refuses at COMMIT is rolled back for certain, and is a failure of its
/// message.
pub async fn deferred_error_at_commit_is_a_failure<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::DeferredFailure).await {
        return;
    }
    let consumer = fixture.consumer(|message, _| match message.key().map(|key| key.as_str()) {
        Some("order-2") => vec![Step::Write(""), Step::Act(HandlerAction::DeferredFailure)],
        Some(_) | None => vec![Step::Write("")],
    });
    let kinds = process(&consumer, batch_of_three()).await;
    assert!(matches!(kinds[..], [Kind::Processed, Kind::Failed(_), Kind::Processed]), "{kinds:?}");
    fixture.assert_effects(["order-1", "order-3"].map(|key| (key, "paid"))).await;
}

/// A12: a raw COMMIT in the middle of a batch of three, whose refusal the handler hands on: all effects are there once.
pub async fn raw_commit_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::Commit, Step::Act(HandlerAction::Commit)).await;
}

/// A12: the same where the handler swallows the refusal.
pub async fn swallowed_raw_commit_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::Commit, Step::Swallow(HandlerAction::Commit)).await;
}

/// A12: a raw ROLLBACK in the middle of a batch.
pub async fn raw_rollback_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::Rollback, Step::Swallow(HandlerAction::Rollback)).await;
}

/// A12: a raw COMMIT and a BEGIN: the transaction that is open afterwards is not the one that claimed.
pub async fn raw_commit_and_begin_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::CommitAndBegin, Step::Swallow(HandlerAction::CommitAndBegin)).await;
}

/// A14: a nested transaction that is left open in mid-batch.
pub async fn nested_transaction_left_open_in_mid_batch_loses_nothing<T: StoreUnderTest>(subject: &T) {
    mischief_in_mid_batch(subject, HandlerAction::NestedLeft, Step::Swallow(HandlerAction::NestedLeft)).await;
}

/// A12: a handler that ends its transaction and says that all is well is never acknowledged.
pub async fn a_handler_that_ends_its_transaction_is_not_acknowledged<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    for action in [HandlerAction::Commit, HandlerAction::Rollback, HandlerAction::CommitAndBegin] {
        if !fixture.offers(action).await {
            continue;
        }
        let consumer = fixture.consumer(move |_, _| vec![Step::Write(""), Step::Swallow(action)]);
        let kinds = process(&consumer, [msg("order-1", "paid")]).await;
        assert!(matches!(kinds[..], [Kind::Failed(_)]), "{action:?}: {kinds:?}");
        assert!(fixture.recorded().await.is_empty(), "{action:?} left a record");
        assert!(fixture.effects().await.is_empty(), "{action:?} left an effect");
    }
    redeliver(&fixture.consumer(write), vec![msg("order-1", "paid")]).await;
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A14: a nested transaction that is left open is not acknowledged, and the redelivery runs.
pub async fn nested_transaction_left_open_is_not_acknowledged<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::NestedLeft).await {
        return;
    }
    let consumer = fixture.consumer(|_, run| match run {
        1 => vec![Step::Act(HandlerAction::NestedLeft)],
        _ => vec![Step::Write("")],
    });
    let kinds = process(&consumer, [msg("order-1", "paid")]).await;
    assert!(matches!(kinds[..], [Kind::Failed(_)]), "{kinds:?}");
    fixture.assert_effects([]).await;
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// Contract of Handler 2: a nested transaction that the handler ends is its own affair.
pub async fn a_nested_transaction_commits_with_its_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::NestedCommitted).await {
        return;
    }
    let consumer = fixture.consumer(|_, _| vec![Step::Act(HandlerAction::NestedCommitted)]);
    assert_eq!(process(&consumer, batch_of_three()).await, [Kind::Processed; 3]);
    assert_eq!(process(&consumer, batch_of_three()).await, [Kind::Duplicate; 3]);
    fixture.assert_effects(["order-1", "order-2", "order-3"].map(|key| (key, "paid"))).await;
}

/// A nested transaction that committed inside a unit that fails is gone with the unit.
pub async fn a_nested_transaction_is_rolled_back_with_its_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::NestedCommitted).await {
        return;
    }
    let consumer = fixture.consumer(|_, _| vec![Step::Act(HandlerAction::NestedCommitted), Step::Fail]);
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Failed(ErrorClass::Transient)]);
    fixture.assert_effects([]).await;
}

/// A nested transaction that is rolled back takes nothing with it, neither the claim nor what was written before.
pub async fn a_nested_rollback_keeps_what_is_around_it<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::NestedRolledBack).await {
        return;
    }
    let consumer = fixture.consumer(|_, _| vec![Step::Write(""), Step::Act(HandlerAction::NestedRolledBack)]);
    assert_eq!(process(&consumer, batch_of_three()).await, [Kind::Processed; 3]);
    assert_eq!(process(&consumer, batch_of_three()).await, [Kind::Duplicate; 3]);
    fixture.assert_effects(["order-1", "order-2", "order-3"].map(|key| (key, "paid"))).await;
}

/// A25: when the connection was killed, the failure counts as the connection's even if the handler hides the error:
/// handed on, put into words of its own, called permanent, or swallowed. The redelivery runs.
pub async fn a_killed_connection_is_infrastructure_whatever_the_handler_says<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let kill = HandlerAction::KillConnection;
    if !fixture.offers(kill).await {
        return;
    }
    for step in [Step::Act(kill), Step::ActAsText(kill), Step::ActAsPermanent(kill)] {
        let inner = step.clone();
        let consumer = fixture.consumer(move |_, _| vec![Step::Write(""), inner.clone()]);
        let kinds = process(&consumer, [msg("order-1", "paid")]).await;
        assert_eq!(kinds, [Kind::Failed(ErrorClass::Infrastructure)], "{step:?}");
        fixture.assert_effects([]).await;
    }
    let consumer = fixture.consumer(move |_, _| vec![Step::Write(""), Step::Swallow(kill)]);
    let kinds = process(&consumer, [msg("order-1", "paid")]).await;
    assert!(!kinds[0].is_settled(), "{kinds:?}");
    redeliver(&fixture.consumer(once(Step::Act(kill))), batch_of_three()).await;
    fixture.assert_effects(["order-1", "order-2", "order-3"].map(|key| (key, "paid"))).await;
}

/// A18, A7: a statement that takes minutes ends with the handler's deadline, on the server too: its key is free soon.
pub async fn a_blocked_statement_ends_with_the_deadline<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::Block).await {
        return;
    }
    let builder = fixture.builder("orders", |_, run| match run {
        1 => vec![Step::Write(""), Step::Act(HandlerAction::Block)],
        _ => vec![Step::Write("")],
    });
    let consumer = builder.handler_deadline(DEADLINE).build().unwrap();
    let kinds = process(&consumer, [msg("order-1", "paid")]).await;
    assert_eq!(kinds, [Kind::Failed(ErrorClass::Transient)]);
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// Contract of UnitOfWork 1: no other session sees effects or record before the commit, and every one sees both after
/// it.
pub async fn nothing_is_visible_before_the_commit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let consumer = fixture.consumer(move |_, _| vec![Step::Write(""), Step::Pass(inside.clone())]);
    let call = tokio::spawn(async move { process(&consumer, [msg("order-1", "paid")]).await });
    gate.arrived(1).await;
    fixture.assert_effects([]).await;
    gate.open();
    assert_eq!(call.await.unwrap(), [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// S4: the error of a failed statement holds no value of the message.
pub async fn an_errors_text_quotes_no_payload<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::FailingStatement).await {
        return;
    }
    let consumer = fixture.consumer(|_, _| vec![Step::Write(""), Step::Act(HandlerAction::FailingStatement)]);
    let decisions = decide(&consumer, [msg("canary-key", "canary-payload")]).await;
    let Decision::Failed(failure) = &decisions[0] else { panic!("{decisions:?}") };
    assert!(!failure.text.is_empty());
    assert!(!failure.text.contains("canary"), "{}", failure.text);
}

/// The store finds its driver's errors however deep they are wrapped, and says nothing of errors that are not its own.
pub async fn errors_of_others_are_not_classified<T: StoreUnderTest>(subject: &T) {
    use idem_core::Store;
    let foreign = std::fmt::Error;
    assert_eq!(T::Store::classify(&foreign), None);
    assert_eq!(T::Store::describe(&foreign), None);
    let fixture = Fixture::new(subject);
    if !fixture.offers(HandlerAction::FailingStatement).await {
        return;
    }
    let consumer = fixture.consumer(|_, _| vec![Step::Act(HandlerAction::FailingStatement)]);
    let decisions = decide(&consumer, [msg("order-1", "paid")]).await;
    let Decision::Failed(failure) = &decisions[0] else { panic!("{decisions:?}") };
    let error = failure.error.as_ref().map(|error| error.inner()).unwrap_or_else(|| panic!("{failure:?}"));
    assert_eq!(T::Store::classify(error), Some(failure.class), "the driver's error is in the chain of {error:?}");
}
