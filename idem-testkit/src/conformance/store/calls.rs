//! Calls of a `RunOnce` that share a unit, each behind a savepoint of its own.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Call, ConflictKind, Effects, Message, NotKept, Ran, ResultBody, RunOnce, RunOnceError, Store as _, Tenant,
    WorkError, store::UnitOfWork as _,
};

use super::{
    fixture::{Fixture, Seen, Step, claim, msg, options, registration},
    gate::{DEADLINE, PATIENCE, within},
    observed::LostCommit,
    results::{Answering, answer, keeps_results, of_run, once, refusal, work},
    subject::{HandlerAction, StoreUnderTest},
};

type Ended = Option<Result<Ran, RunOnceError>>;

/// A call that follows steps and then answers.
fn call<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    message: Message,
    steps: Vec<Step>,
    answering: impl Fn(usize) -> Result<ResultBody, WorkError> + Send + Sync + 'static,
) -> Call<Seen<T>> {
    let answering: Arc<Answering> = Arc::new(answering);
    Call::new(message, work(fixture, steps, answering))
}

/// A call that writes and answers something that no other run answers.
fn paying<T: StoreUnderTest>(fixture: &Fixture<'_, T>, key: &str) -> Call<Seen<T>> {
    call(fixture, msg(key, key), vec![Step::Write("")], of_run)
}

async fn together<T: StoreUnderTest>(payments: &RunOnce<Seen<T>>, calls: Vec<Call<Seen<T>>>) -> Vec<Ended> {
    within("a shared unit", async { payments.shared_unit().await.run(calls).await }).await
}

/// The answer to a call that comes alone: one that could not share a unit, or a repeat.
async fn alone<T: StoreUnderTest>(fixture: &Fixture<'_, T>, payments: &RunOnce<Seen<T>>, key: &str) -> Ran {
    let work = work(fixture, vec![Step::Write("")], Arc::new(of_run));
    within("a call alone", payments.run_message(msg(key, key), work)).await.unwrap()
}

fn value(ended: &Ended) -> &Ran {
    ended.as_ref().unwrap().as_ref().unwrap()
}

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One claim, one transaction, and an answer for each, which every repeat gets.
pub async fn v16_calls_share_a_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let ended = together::<T>(&payments, KEYS.iter().map(|key| paying(&fixture, key)).collect()).await;
    assert_eq!(fixture.spy.claimed().iter().map(Vec::len).collect::<Vec<_>>(), [5]);
    assert_eq!((fixture.spy.savepoints.get(), fixture.spy.appended.get()), (5, 1));
    for (key, ended) in KEYS.iter().zip(&ended) {
        let first = value(ended);
        assert!(!first.replayed && !first.is_error);
        let again = alone(&fixture, &payments, key).await;
        assert_eq!((&again.value, again.replayed), (&first.value, true));
    }
    fixture.assert_effects(KEYS.map(|key| (key, key))).await;
    assert_eq!(fixture.runs.all(), KEYS);
}

/// A refusal takes back what its own work has done, and nothing of those before it and after it.
pub async fn v16_a_refusal_among_calls_takes_back_its_own<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let refused = |key: &str| call(&fixture, msg(key, key), vec![Step::Write("")], refusal);
    let mut calls = vec![refused("a"), paying(&fixture, "b"), refused("c"), refused("d"), paying(&fixture, "e")];
    let spoilt = fixture.offers(HandlerAction::FailingStatement).await;
    if spoilt {
        let steps = vec![Step::Write(""), Step::Swallow(HandlerAction::FailingStatement)];
        calls.push(call(&fixture, msg("f", "f"), steps, refusal));
    }
    calls.push(paying(&fixture, "g"));
    let before = fixture.spy.claimed().len();
    let ended = together::<T>(&payments, calls).await;
    let are_errors: Vec<_> = ended.iter().map(|ended| value(ended).is_error).collect();
    let expected = [true, false, true, true, false].into_iter().chain(spoilt.then_some(true)).chain([false]);
    assert_eq!(are_errors, expected.collect::<Vec<_>>());
    assert_eq!(fixture.spy.claimed().len() - before, 1, "no call ran again");
    let effects = fixture.effects().await;
    assert_eq!(effects.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["b", "e", "g"]);
    assert_eq!(fixture.recorded().await.len(), ended.len(), "a refusal has its record");
    for (key, ended) in ["a", "b", "c"].iter().zip(&ended) {
        assert_eq!(alone(&fixture, &payments, key).await.value, value(ended).value);
    }
}

/// Where any work fails, nothing of the unit is kept, and each call is to run alone.
pub async fn v16_a_failure_among_calls_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let builder = RunOnce::builder_shared(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let builder = builder.final_errors().busy_timeout(PATIENCE / 2).handler_deadline(DEADLINE).lanes(1);
    let payments = builder.build_once().unwrap();
    for failing in [Step::Fail, Step::FailForGood, Step::Panic, Step::Hang] {
        for place in 0..3 {
            let bad = || call(&fixture, msg("bad", "bad"), vec![Step::Write(""), failing.clone()], of_run);
            let calls = (0..3).map(|at| if at == place { bad() } else { paying(&fixture, KEYS[at]) });
            let ended = together::<T>(&payments, calls.collect()).await;
            assert!(ended.iter().all(Option::is_none), "{failing:?}: {ended:?}");
            assert_eq!((fixture.effects().await.len(), fixture.recorded().await.len()), (0, 0), "{failing:?}");
        }
    }
    // A refusal that was not declared is such a failure too.
    let builder = RunOnce::builder_shared(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let undeclared = builder.build_once().unwrap();
    let refused = call(&fixture, msg("bad", "bad"), vec![Step::Write("")], refusal);
    let ended = together::<T>(&undeclared, vec![paying(&fixture, "a"), refused]).await;
    assert!(ended.iter().all(Option::is_none), "{ended:?}");
    assert!(!alone(&fixture, &payments, "a").await.replayed);
    fixture.assert_effects([("a", "a")]).await;
}

/// A9, A12, A14: when one work spoils the transaction and says nothing, no call's effect is acknowledged, wherever that
/// work stands.
pub async fn v16_a_transaction_that_one_call_has_spoilt_is_nobodys<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    for action in [
        HandlerAction::Commit,
        HandlerAction::Rollback,
        HandlerAction::CommitAndBegin,
        HandlerAction::FailingStatement,
        HandlerAction::UnreadFailure,
        HandlerAction::DeferredFailure,
        HandlerAction::NestedLeft,
    ] {
        if !fixture.offers(action).await {
            continue;
        }
        for place in 0..3 {
            let bad = || call(&fixture, msg("bad", "bad"), vec![Step::Write(""), Step::Swallow(action)], of_run);
            let calls = (0..3).map(|at| if at == place { bad() } else { paying(&fixture, KEYS[at]) });
            let ended = together::<T>(&payments, calls.collect()).await;
            assert!(ended.iter().all(Option::is_none), "{action:?} at {place}: {ended:?}");
            assert_eq!(
                (fixture.effects().await.len(), fixture.recorded().await.len()),
                (0, 0),
                "{action:?} at {place}"
            );
        }
    }
}

/// A5, A6: after a lost answer to the commit, each call finds out alone, and has its one value.
pub async fn v16_a_lost_commit_of_calls_is_found_out<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    for (lost, runs, keys) in
        [(LostCommit::Committed, 1, ["a", "b", "c"]), (LostCommit::RolledBack, 2, ["d", "e", "f"])]
    {
        fixture.spy.lose_commits(&[lost]);
        let ended = together::<T>(&payments, keys.iter().map(|key| paying(&fixture, key)).collect()).await;
        assert!(ended.iter().all(Option::is_none), "{lost:?}: {ended:?}");
        for key in keys {
            let found = alone(&fixture, &payments, key).await;
            assert_eq!((found.replayed, fixture.runs.of(key)), (lost == LostCommit::Committed, runs), "{lost:?}");
            assert_eq!(alone(&fixture, &payments, key).await.value, found.value);
        }
    }
    fixture.assert_effects(["a", "b", "c", "d", "e", "f"].map(|key| (key, key))).await;
}

/// Two calls with one key are one operation, with another payload they are a conflict, and a recorded answer is read
/// back.
pub async fn v16_copies_and_conflicts_among_calls<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let known = alone(&fixture, &payments, "known").await;
    let other = |key: &str| call(&fixture, msg(key, "another"), vec![Step::Write("")], of_run);
    let calls = ["a", "a", "known", "b"].map(|key| paying(&fixture, key)).into_iter();
    let ended = together::<T>(&payments, calls.chain([other("a"), other("known")]).collect()).await;
    assert_eq!((&value(&ended[0]).value, value(&ended[0]).replayed), (&value(&ended[1]).value, false));
    assert!(value(&ended[1]).replayed);
    assert_eq!((&value(&ended[2]).value, value(&ended[2]).replayed), (&known.value, true));
    assert!(!value(&ended[3]).replayed);
    for ended in &ended[4..] {
        let conflict = matches!(ended, Some(Err(RunOnceError::Conflict { kind: ConflictKind::OtherPayload, .. })));
        assert!(conflict, "{ended:?}");
    }
    fixture.assert_effects(["a", "b", "known"].map(|key| (key, key))).await;
    assert_eq!((fixture.runs.of("a"), fixture.runs.of("known")), (1, 1));
    let audited = within("reading the audit trail", subject.audited()).await;
    assert_eq!(audited.iter().filter(|(action, _)| action == "conflict").count(), 2, "{audited:?}");
}

/// A tenant's calls are not committed or rolled back with another's.
pub async fn v16_calls_of_two_tenants_share_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let tenant_of = |message: &Message| Tenant::new(message.headers().text("tenant")?).ok();
    let builder = RunOnce::builder_shared(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let payments = builder.final_errors().tenant_of(tenant_of).build_once().unwrap();
    let of = |tenant: &str, key: &str| {
        let message = msg(key, key).with_header("tenant", tenant.to_owned());
        call(&fixture, message, vec![Step::Write("")], of_run)
    };
    let ended = together::<T>(&payments, vec![of("red", "a"), of("blue", "b"), of("red", "c")]).await;
    assert!(ended[0].is_some() && ended[1].is_none() && ended[2].is_some(), "{ended:?}");
    fixture.assert_effects([("a", "a"), ("c", "c")]).await;
    // One that is no message of theirs is refused, and the others are not.
    let stray = call(&fixture, msg("d", "d"), vec![Step::Write("")], of_run);
    let ended = together::<T>(&payments, vec![stray, of("blue", "b")]).await;
    assert!(matches!(ended[0], Some(Err(RunOnceError::Refused(_)))), "{ended:?}");
    assert!(!value(&ended[1]).replayed);
}

/// A work that answers nothing that may be kept has its unit rolled back, as it would alone.
pub async fn v16_a_result_over_the_bound_among_calls_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let builder = RunOnce::builder_shared(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let payments = builder.final_errors().keeps_results(1_000).build_once().unwrap();
    let larger = || ResultBody::new(vec![b'x'; 1_001]);
    let answerings: [fn(ResultBody) -> Result<ResultBody, WorkError>; 2] =
        [Ok, |body| Err(WorkError::final_result(body))];
    for answering in answerings {
        let too_large = call(&fixture, msg("b", "b"), vec![Step::Write("")], move |_| answering(larger()));
        let ended = together::<T>(&payments, vec![paying(&fixture, "a"), too_large, paying(&fixture, "c")]).await;
        assert!(ended.iter().all(Option::is_none), "{ended:?}");
        assert_eq!((fixture.effects().await.len(), fixture.recorded().await.len()), (0, 0));
    }
    // Where a record has lost its answer, only its own call gets that error.
    let absent = fixture.builder("payments", super::fixture::write).build().unwrap();
    super::fixture::process(&absent, [msg("old", "old")]).await;
    let ended = together::<T>(&payments, vec![paying(&fixture, "old"), paying(&fixture, "a")]).await;
    assert!(matches!(&ended[0], Some(Err(RunOnceError::NotKept { why: NotKept::Absent, .. }))), "{ended:?}");
    assert_eq!(value(&ended[1]).value.status, answer("").status);
}

/// A key that another process holds is waited for once, for all, and then each call runs alone.
pub async fn v16_a_held_key_among_calls_has_each_run_alone<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keeps_results(&fixture) {
        return;
    }
    let builder = RunOnce::builder_shared(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let payments = builder.final_errors().busy_timeout(Duration::from_millis(200)).build_once().unwrap();
    within("starting", payments.start()).await.unwrap();
    let registered = fixture.register_as(&registration("payments")).await.unwrap();
    let mut session = fixture.open().await;
    let mut owner = within("beginning", fixture.store.begin(&mut session, options(registered.run))).await.unwrap();
    within("claiming", owner.claim(&[claim(&registered, "b", "b")])).await.unwrap();
    let ended = together::<T>(&payments, ["a", "b", "c"].map(|key| paying(&fixture, key)).into()).await;
    assert!(ended.iter().all(Option::is_none), "{ended:?}");
    assert!(fixture.runs.all().is_empty(), "nothing ran in vain");
    within("rolling back", owner.rollback()).await.unwrap();
    for key in ["a", "b", "c"] {
        assert!(!alone(&fixture, &payments, key).await.replayed);
    }
    fixture.assert_effects(["a", "b", "c"].map(|key| (key, key))).await;
}
