//! The runs that count as attempts, and the end of the count.

use std::time::Duration;

use idem_core::{
    ConsumerName, Effects, ErrorClass, Store as _, Tenant, config::RetryPolicy, dead_letter::Reason, hash::PayloadHash,
    store::Bookkeeping as _,
};

use idem_testkit::{Fault, Operation};

use super::{
    captured::Captured,
    fixture::{Fixture, Running, drain, message, within},
};

fn attempts(attempts: u32) -> RetryPolicy {
    RetryPolicy::new(attempts, Duration::from_millis(1), Duration::from_millis(5))
}

/// D28: a message that went well has no attempts behind it: its key may be used again once the record is gone, and runs.
#[tokio::test(flavor = "multi_thread")]
async fn d28_a_message_that_went_well_leaves_no_count() {
    for allowed in [1, 2, 5] {
        let fixture = Fixture::new();
        fixture.publish("nightly", "ok");
        let consumer =
            || fixture.consumer().effects(Effects::Outside).handler_deadline(Duration::from_secs(60)).build().unwrap();
        drain(&fixture, fixture.worker_of(consumer()).retry(attempts(allowed))).await;
        let next = next_attempt(&fixture, "nightly", "ok").await;
        // Of many, one that is missing is worth no statement.
        assert_eq!(next, if allowed > 2 { 2 } else { 1 }, "of {allowed}");
    }
}

/// A worker whose messages run alone, and wait for a key for a moment.
fn outside(fixture: &Fixture, allowed: u32) -> Running {
    let consumer = fixture
        .consumer()
        .effects(Effects::Outside)
        .handler_deadline(Duration::from_secs(60))
        .busy_timeout(Duration::from_millis(50));
    Running::new(fixture.worker_of(consumer.build().unwrap()).retry(attempts(allowed)))
}

/// D29: a copy that comes while the last attempt runs is not set aside: it waits for the key, and is a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn d29_a_copy_of_a_running_last_attempt_is_not_set_aside() {
    let first = Fixture::new();
    let second = Fixture { store: first.store.clone(), script: first.script.clone(), ..Fixture::new() };
    first.publish("charge", "block");
    let running = outside(&first, 1);
    first.script.blocked().await;
    second.publish("charge", "block");
    let other = outside(&second, 1);
    other
        .until("the copy to wait", |other| other.view.summary().busy > 0 || other.view.summary().dead_lettered > 0)
        .await;
    first.script.unblock();
    within("the first", first.queue.drained()).await;
    within("the copy", second.queue.drained()).await;
    let (ran, waited) = (running.stop().await.unwrap(), other.stop().await.unwrap());
    assert_eq!((ran.processed, waited.duplicates, waited.dead_lettered), (1, 1, 0));
    assert_eq!(first.counted(), [("charge".to_owned(), 1)].into());
    assert!(first.dead_letters().await.is_empty());
}

/// J71: the last attempt fails, and another holder of the key runs the message before it is set aside: it waits for the key, and is
/// a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn j71_a_last_attempt_that_failed_is_not_set_aside_while_the_message_runs_elsewhere() {
    let fixture = Fixture::new();
    fixture.publish("charge", "block, then fail once");
    let running = outside(&fixture, 1);
    fixture.script.blocked().await;
    let patience = Duration::from_secs(60);
    let elsewhere = fixture.consumer().effects(Effects::Outside).handler_deadline(patience).busy_timeout(patience);
    let elsewhere = elsewhere.build().unwrap();
    let copy = message("charge", "block, then fail once");
    fixture.store.inject(Operation::Claim, Fault::Delay(Duration::ZERO));
    let copy = tokio::spawn(async move { elsewhere.process(vec![copy]).await });
    // It gets the key once the failed attempt is rolled back.
    running.until("the copy to claim", |_| fixture.store.faults_left(Operation::Claim) == 0).await;
    fixture.store.inject(Operation::Begin, Fault::Delay(Duration::from_secs(1)));
    fixture.script.unblock();
    fixture.script.blocked().await;
    let decided = |running: &Running| running.view.summary().busy > 0 || running.view.summary().dead_lettered > 0;
    running.until("the failed one to wait", decided).await;
    assert_eq!(running.view.summary().dead_lettered, 0);
    fixture.script.unblock();
    within("the copy", copy).await.unwrap().unwrap();
    within("the failed one", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates, summary.dead_lettered), (0, 1, 0));
    assert!(fixture.dead_letters().await.is_empty());
}

/// J71: the database is away when a message is to be set aside, whose key has another payload's record when it is back: a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn j71_what_is_a_conflict_when_it_is_set_aside_after_an_outage_comes_to_its_end() {
    let fixture = Fixture::new();
    assert_eq!(next_attempt(&fixture, "charge", "ok").await, 1);
    fixture.publish("charge", "ok");
    // Those of its run, and of two tries to set it aside.
    for fault in [Fault::Delay(Duration::ZERO), Fault::ConnectionLost, Fault::Delay(Duration::from_secs(1))] {
        fixture.store.inject(Operation::Begin, fault);
    }
    let running = outside(&fixture, 1);
    running.until("the second try", |_| fixture.store.faults_left(Operation::Begin) == 0).await;
    let elsewhere = fixture.consumer().build().unwrap();
    elsewhere.process(vec![message("charge", "another")]).await.unwrap();
    within("the conflict", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().conflicts, 1);
    assert_eq!(fixture.dead_letters().await[0].reason, Reason::Conflict);
}

/// J72: another transaction is in the way of a claim, which is made again at once. A process that is handed the message meanwhile
/// finds no attempt used up.
#[tokio::test(flavor = "multi_thread")]
async fn j72_a_claim_that_is_made_again_costs_no_attempt() {
    let fixture = Fixture::new();
    fixture.publish("charge", "ok");
    fixture.store.inject(Operation::Claim, Fault::Error(ErrorClass::RunUnitAgain));
    fixture.store.inject(Operation::Claim, Fault::Hang);
    let running = outside(&fixture, 1);
    running.until("the second claim", |_| fixture.store.faults_left(Operation::Claim) == 0).await;
    running.drop_run().await;
    assert_eq!(next_attempt(&fixture, "charge", "ok").await, 1);
}

/// J91: conflicts with other transactions that cost one message an attempt are not counted to the next one, which has to run again only
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn j91_the_conflicts_of_one_message_are_not_charged_to_the_next() {
    let fixture = Fixture::new();
    fixture.publish("first", "ok");
    fixture.publish("second", "ok");
    for _ in 0..6 {
        fixture.store.inject(Operation::Claim, Fault::Error(ErrorClass::RunUnitAgain));
    }
    let summary = drain(&fixture, fixture.worker().retry(attempts(2))).await;
    assert_eq!((summary.processed, summary.dead_lettered, summary.retries), (2, 0, 1));
}

/// D30: two messages of one key that both fail, in two orders at once, come to their ends: neither begins the other's count
/// anew.
#[tokio::test(flavor = "multi_thread")]
async fn d30_two_failing_messages_of_one_key_are_both_set_aside() {
    let fixture = Fixture::new();
    fixture.publish_ordered("east", "order-1", "fail");
    fixture.publish_ordered("west", "order-1", "fail too");
    let consumer = fixture.consumer().build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer).retry(attempts(3))).await;
    assert_eq!((summary.processed, summary.dead_lettered, summary.retries), (0, 2, 4));
    let letters = fixture.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.attempts == 3), "{letters:?}");
}

/// D37: a copy that was counted before it turned out to be a duplicate leaves no count either, or its key could not be used
/// again after the retention.
#[tokio::test(flavor = "multi_thread")]
async fn d37_a_duplicate_that_ran_alone_leaves_no_count() {
    let first = Fixture::new();
    let second = Fixture { store: first.store.clone(), script: first.script.clone(), ..Fixture::new() };
    first.publish("nightly", "block");
    let running = outside(&first, 2);
    first.script.blocked().await;
    second.publish("nightly", "block");
    let other = outside(&second, 2);
    other.until("the copy to wait", |other| other.view.summary().busy > 0).await;
    first.script.unblock();
    within("the first", first.queue.drained()).await;
    within("the copy", second.queue.drained()).await;
    assert_eq!((running.stop().await.unwrap().processed, other.stop().await.unwrap().duplicates), (1, 1));
    assert!(next_attempt(&first, "nightly", "block").await <= 2, "the next use of the key has no attempt left");
}

/// D44: attempts that are used up when a message comes say nothing of how they ended, and neither does its dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn d44_used_up_attempts_claim_no_cause() {
    let fixture = Fixture::new();
    for _ in 0..3 {
        next_attempt(&fixture, "nightly", "ok").await;
    }
    fixture.publish("nightly", "ok");
    let summary = drain(&fixture, fixture.worker().retry(attempts(3))).await;
    assert_eq!((summary.processed, summary.dead_lettered), (0, 1));
    let letter = fixture.dead_letters().await.remove(0);
    assert_eq!(letter.reason, Reason::AttemptsExhausted);
    for said in [
        "its 3 attempts were counted before",
        "each failed, or its process or its connection ended",
        "the logs of the workers",
    ] {
        assert!(letter.error.contains(said), "{}", letter.error);
    }
}

/// D36: an attempt that was counted although the answer was lost is not counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn d36_a_count_whose_answer_was_lost_costs_no_attempt() {
    let fixture = Fixture::new();
    let consumer = fixture.consumer().effects(Effects::Outside).handler_deadline(Duration::from_secs(60));
    let worker = fixture.worker_of(consumer.build().unwrap()).retry(attempts(1)).control_every(Duration::from_secs(5));
    let running = Running::new(worker);
    fixture.publish("first", "ok");
    within("the first", fixture.queue.drained()).await;
    fixture.store.inject(Operation::Bookkeeping, Fault::AnswerLost);
    fixture.publish("charge", "ok");
    within("the second", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (2, 0));
}

/// D50: a count that fails for another cause is no sign of a database without a connection left.
#[tokio::test]
async fn d50_a_count_that_fails_otherwise_is_no_lack_of_connections() {
    let (captured, _guard) = Captured::log(tracing::Level::WARN);
    let fixture = Fixture::new();
    let consumer =
        fixture.consumer().effects(Effects::Outside).handler_deadline(Duration::from_secs(60)).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).control_every(Duration::from_secs(5)));
    fixture.publish("first", "ok");
    within("the first", fixture.queue.drained()).await;
    fixture.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Transient));
    fixture.publish("charge", "ok");
    within("the second", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().processed, 2);
    let lines = captured.lines();
    assert!(!lines.iter().any(|line| line.contains("no connection left")), "{lines:?}");
}

/// The number that the next attempt of this message would get.
pub(super) async fn next_attempt(fixture: &Fixture, key: &str, payload: &str) -> u32 {
    // Only a consumer that was started has a scope.
    fixture.consumer().build().unwrap().start().await.unwrap();
    let books = fixture.store.bookkeeping();
    let scope = books.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    let key = idem_core::IdempotencyKey::new(key).unwrap();
    books.count_attempt(scope, &key, PayloadHash::of(payload.as_bytes())).await.unwrap()
}
