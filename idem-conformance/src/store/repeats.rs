//! Repeats: an expected one is looked up, without a unit, and gets the answer that a claim would give.

use std::{fmt, sync::Arc, time::Duration};

use idem_core::{
    Effects, Retention, RunOnce, Store,
    cleanup::Expiring,
    hash::{HashRules, JsonMembers, RawPayload},
    once::{Outcome, Request, RunOnceError},
    results::RESULT_BYTES_MAX,
    store::{Claimed, UnitOfWork as _},
};

use super::{
    fixture::{Fixture, Seen, Step, claim, msg, options, registration, write},
    gate::{Gate, within},
    records::clean,
    results::{Answering, answer, keep_results, of_run, once, work},
    subject::{Arrangement, StoreUnderTest},
};

const HOUR: Duration = Duration::from_secs(3600);

async fn call<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    payments: &RunOnce<Seen<T>>,
    key: &str,
    payload: &str,
) -> Result<Outcome, RunOnceError> {
    let work = work(fixture, vec![Step::Write("")], Arc::new(of_run));
    within("a call", payments.run(Request::new(key, payload), work)).await
}

/// How many units were begun, and how many look-ups were made outside of units.
fn costs<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> (usize, usize) {
    (fixture.spy.begun.get(), fixture.spy.looked_up.get())
}

/// V14: a call whose key was used before looks its record up and begins no unit, with the same payload and with another one.
pub async fn v14_a_repeat_begins_no_unit<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let first = call(&fixture, &payments, "a", "a").await.unwrap();
    assert_eq!((first.is_replayed(), costs(&fixture)), (false, (1, 0)));
    for repeats in 1..=3 {
        let again = call(&fixture, &payments, "a", "a").await.unwrap();
        assert_eq!((again.result(), again.is_replayed(), again.recorded().is_some()), (first.result(), true, true));
        assert_eq!(costs(&fixture), (1, repeats));
    }
    let other = call(&fixture, &payments, "a", "other").await;
    assert!(matches!(other, Err(RunOnceError::Conflict { .. })), "{other:?}");
    let asked = within("asking", payments.key_state(msg("a", ""))).await.unwrap();
    assert!(
        matches!(asked, idem_core::once::KeyState::Done { result: Ok(kept), .. } if kept.result == *first.result())
    );
    let known = within("asking", payments.peek(msg("a", "a"))).await.unwrap();
    assert!(known.is_some_and(|known| known.is_replayed() && known.result() == first.result()));
    assert_eq!(costs(&fixture), (1, 6));
    assert_eq!(fixture.runs.all(), ["a"]);
    fixture.assert_effects([("a", "a")]).await;
}

/// V14: a first run pays nothing for it. A key that others have used is claimed, and looked up where such repeats come one
/// after the other.
pub async fn v14_a_first_run_is_not_looked_up<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let (here, elsewhere) = (once(&fixture), fixture.elsewhere().await);
    let there = once(&elsewhere);
    let keys = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let mut first = Vec::new();
    for key in keys {
        first.push(call(&fixture, &here, key, key).await.unwrap().into_result());
    }
    assert_eq!(costs(&fixture), (8, 0));
    for (key, first) in keys.into_iter().zip(first) {
        let again = call(&elsewhere, &there, key, key).await.unwrap();
        assert_eq!((again.result(), again.is_replayed()), (&first, true));
    }
    assert_eq!(costs(&elsewhere), (4, 4));
    assert_eq!(elsewhere.spy.results_read.get(), 4, "one read in a unit has record and result");
    for (key, spent) in [("9", (5, 5)), ("10", (6, 5))] {
        assert!(!call(&elsewhere, &there, key, key).await.unwrap().is_replayed());
        assert_eq!(costs(&elsewhere), spent, "a wrong guess is made once");
    }
    assert!(within("asking", there.peek(msg("11", "11"))).await.unwrap().is_none());
    assert_eq!(fixture.runs.all().len(), 10);
}

/// The whole answer to a call, as text.
fn told(answered: &impl fmt::Debug) -> String {
    format!("{answered:?}")
}

/// V14: a record that is looked up decides as one that a claim has met: duplicates, other payloads, former and unknown rules of
/// hashing, refusals, results that are not there, keys that were erased.
pub async fn v14_what_is_looked_up_decides_as_a_claim_does<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let builder = || RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let plain = || once(&fixture);
    let json = || {
        let rules = HashRules::new(JsonMembers::without(["/at"]).unwrap()).and_formerly(RawPayload);
        builder().allow_final_errors().hash_rules(rules).build().unwrap()
    };
    let accepted: Arc<Answering> = Arc::new(|_| Ok(answer("private").with_reference("/orders/7")));
    let refused: Arc<Answering> =
        Arc::new(|_| Err(idem_core::once::WorkError::final_result(answer("no").with_status(402))));
    let brief =
        builder().allow_final_errors().result_retention(Retention::For(HOUR)).retention(Retention::For(48 * HOUR));
    for (payments, key, payload, answering) in [
        (plain(), "done", r#"{"id":1,"at":1}"#, &accepted),
        (plain(), "refused", "{}", &refused),
        (brief.build().unwrap(), "expired", "{}", &accepted),
    ] {
        let work = work(&fixture, vec![Step::Write("")], Arc::clone(answering));
        within("a first run", payments.run(Request::new(key, payload), work)).await.unwrap();
    }
    let silent = fixture.builder("payments", write).build().unwrap();
    super::fixture::process(&silent, [msg("silent", "{}")]).await;
    of_unknown_rule(&fixture).await;
    // The newest rule binds: a process that has the older one alone must have been started before.
    let mut olds = Vec::new();
    for _ in 0..2 * CALLS.iter().filter(|(rules, ..)| *rules == Rules::Old).count() {
        let old = plain();
        within("starting", old.start()).await.unwrap();
        olds.push(old);
    }
    call(&fixture, &json(), "canonical", r#"{"id":1,"at":1}"#).await.unwrap();
    // So long that the one answer ends which is kept for an hour.
    if fixture.arrange(Arrangement::Age(2 * HOUR)).await {
        assert_eq!(clean(&fixture, Expiring::Answers, Duration::ZERO, 100).await, 1);
    }
    let runs = fixture.runs.all().len();
    let mut all = Vec::new();
    for erased in [false, true] {
        if erased && !fixture.arrange(Arrangement::EraseKeys).await {
            break;
        }
        for (rules, key, payload, _) in CALLS {
            let payments = match rules {
                Rules::Old => olds.pop().unwrap(),
                Rules::New => json(),
            };
            let before = costs(&fixture);
            let claimed = told(&call(&fixture, &payments, key, payload).await);
            assert_eq!(costs(&fixture), (before.0 + 1, before.1), "{key}: claimed");
            let looked_up = told(&call(&fixture, &payments, key, payload).await);
            assert_eq!(costs(&fixture), (before.0 + 1, before.1 + 1), "{key}: looked up");
            assert_eq!(looked_up, claimed, "{key}: {payload}");
            all.push(claimed);
        }
    }
    let ages = subject.arranges(Arrangement::Age(HOUR));
    for ((_, key, payload, expected), claimed) in CALLS.iter().cycle().zip(&all) {
        let expected = if *key == "expired" && !ages { "Ok(" } else { *expected };
        assert!(claimed.starts_with(expected), "{key} {payload}: {claimed}");
    }
    assert_eq!(fixture.runs.all().len(), runs, "nothing runs");
}

/// By which rules a caller hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Old,
    New,
}

/// Callers with key and payload, and how their answers begin.
const CALLS: [(Rules, &str, &str, &str); 11] = [
    (Rules::Old, "done", r#"{"id":1,"at":1}"#, "Ok(Replayed"),
    (Rules::Old, "done", r#"{"id":1,"at":2}"#, "Err(Conflict"),
    (Rules::New, "done", r#"{"id":1,"at":1}"#, "Ok(Replayed"),
    (Rules::New, "done", r#"{"at":1,"id":1}"#, "Err(Conflict"),
    (Rules::New, "canonical", r#"{"at":2,"id":1}"#, "Ok(Replayed"),
    (Rules::New, "canonical", r#"{"at":2,"id":2}"#, "Err(Conflict"),
    (Rules::Old, "canonical", r#"{"id":1,"at":1}"#, "Err(Conflict"),
    (Rules::Old, "refused", "{}", "Ok(Refused"),
    (Rules::Old, "silent", "{}", "Err(NotKept"),
    (Rules::Old, "expired", "{}", "Err(NotKept"),
    (Rules::Old, "unknown", "{}", "Err(Conflict"),
];

/// Records a key by a rule that no consumer here knows.
async fn of_unknown_rule<T: StoreUnderTest>(fixture: &Fixture<'_, T>) {
    let registered = fixture.register_as(&registration("payments")).await.unwrap();
    let later = registration("later").hash_rules(vec!["fn:of-a-later-build".to_owned()]);
    let unknown = fixture.register_as(&later).await.unwrap().hash_rules[0];
    let lane = fixture.open().await;
    let mut unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    let claims = [claim(&registered, "unknown", "{}").hash_rule(unknown)];
    assert_eq!(within("claiming", unit.claim(&claims)).await.unwrap(), [Claimed::Inserted]);
    within("committing", unit.commit()).await.1.unwrap();
}

/// V14: a key that is held and not committed is unknown, and a look-up does not wait for it.
pub async fn v14_what_is_not_committed_is_not_known<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let (elsewhere, gate) = (fixture.elsewhere().await, Gate::new());
    let (here, there) = (once(&fixture), once(&elsewhere));
    within("starting", there.start()).await.unwrap();
    let steps = vec![Step::Write(""), Step::Pass(gate.clone())];
    let owner = here.run(Request::new("a", "a"), work(&fixture, steps, Arc::new(of_run)));
    let asker = async {
        gate.arrived(1).await;
        let known = there.peek(msg("a", "a")).await;
        gate.open();
        known
    };
    let (owner, asker) = within("both calls", async { tokio::join!(owner, asker) }).await;
    assert!(matches!(asker, Ok(None)), "{asker:?}");
    let owner = owner.unwrap();
    assert!(!owner.is_replayed());
    let known = within("asking", there.peek(msg("a", "a"))).await.unwrap();
    assert_eq!(known.map(Outcome::into_result), Some(owner.into_result()));
}

/// V14: a store looks up what it was asked for, in the order in which it was asked, with the results that there are.
pub async fn v14_many_keys_are_looked_up_in_their_order<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let plan = |message: &idem_core::Message, _: usize| match message.key().map(|key| key.as_str()) {
        Some("silent") => vec![Step::Write("")],
        _ => vec![Step::Write(""), Step::SetResult(answer("kept"))],
    };
    let orders = fixture.builder("orders", plan).keep_results(RESULT_BYTES_MAX).build().unwrap();
    super::fixture::process(&orders, ["b", "silent", "a"].map(|key| msg(key, key))).await;
    let registered = fixture.register().await;
    let claims = ["a", "b", "new", "silent"].map(|key| claim(&registered, key, key));
    let lane = fixture.open().await;
    let looking = fixture.store.look_up(lane, options(registered.run), &claims);
    let (lane, found) = within("looking up", looking).await.unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|found| found.as_ref().map(|found| (found.recorded.key.as_str(), found.result.is_some())))
        .collect();
    assert_eq!(seen, [Some(("a", true)), Some(("b", true)), None, Some(("silent", false))]);
    // The same in a unit, and on the lane that has looked before.
    let mut unit = within("beginning", fixture.store.begin(lane.unwrap(), options(registered.run))).await.unwrap();
    match &within("claiming", unit.claim(&claims[..1])).await.unwrap()[..] {
        [Claimed::NotInserted] => {}
        [Claimed::Found(recorded)] => assert_eq!(Some(recorded), found[0].as_ref().map(|found| &found.recorded)),
        other => panic!("a recorded key: {other:?}"),
    }
    assert_eq!(within("looking up", unit.look_up(&claims)).await.unwrap(), found);
    within("rolling back", unit.rollback()).await.unwrap();
}

/// V15: conflicts are in the audit trail once a key, and of so many keys: no refusal has the database write each time.
pub async fn v15_conflicts_are_noted_once_a_key_and_of_few_keys<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let noted = async || {
        let audited = within("reading the audit trail", subject.audited()).await;
        let keys = audited.into_iter().filter(|(action, _)| action == "conflict");
        keys.filter_map(|(_, key)| key).collect::<Vec<_>>()
    };
    for number in 0..40 {
        let key = format!("k-{number:02}");
        call(&fixture, &payments, &key, "p").await.unwrap();
        for _ in 0..3 {
            let other = call(&fixture, &payments, &key, "other").await;
            assert!(matches!(other, Err(RunOnceError::Conflict { .. })), "{other:?}");
        }
    }
    let mut expected: Vec<String> = (0..32).map(|number| format!("k-{number:02}")).collect();
    let mut keys = noted().await;
    keys.sort();
    assert_eq!(keys, expected);
    // Another process notes what it has met itself.
    call(&fixture, &once(&fixture), "k-39", "other").await.unwrap_err();
    expected.push("k-39".to_owned());
    keys = noted().await;
    keys.sort();
    assert_eq!(keys, expected);
}
