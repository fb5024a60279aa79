//! Dead letters: bad input, conflicts, the breaker, publishing, replays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, Message, SourceError, Store as _, Tenant,
    config::{OnConflict, RetryPolicy},
    consumer::Pause,
    dead_letter::{DeadLetter, Publisher, Reason},
    store::Bookkeeping,
    worker::WaitCause,
};
use idem_testkit::{
    Fault, Operation,
    memory::{Faults, Order, QueueOptions, Rate},
};

use super::{
    captured::Captured,
    fixture::{Fixture, Running, drain, message, within},
};

/// Bad input: each is set aside with its reason, and its neighbours are unharmed (J10, S1, S10).
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_set_aside_with_its_reason_and_harms_no_neighbour() {
    let fixture = Fixture::new();
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let bad = [
        (Message::new("{}"), Reason::MissingKey),
        (Message::new("not JSON, and no header"), Reason::Malformed),
        (message("", "ok"), Reason::Malformed),
        (message(&"k".repeat(256), "ok"), Reason::Malformed),
        (message("a\0b", "ok"), Reason::Malformed),
        (message("a\nb", "ok"), Reason::Malformed),
        (message("1", "ok").with_header("idempotencykey", "2"), Reason::Malformed),
        (message("1", r#"{"idempotencykey":"2"}"#), Reason::Malformed),
        (Message::new("ok").with_header("idempotencykey", vec![0xff, 0xfe]), Reason::Malformed),
        (Message::new(deep), Reason::Malformed),
        (message("large", &"x".repeat(2 << 20)), Reason::TooLarge),
    ];
    let mut expected = Vec::new();
    for (n, (message, reason)) in bad.into_iter().enumerate() {
        let origin = fixture.queue.publish(message).unwrap();
        expected.push((origin.to_string(), reason));
        fixture.publish(&format!("good-{n}"), "ok");
    }
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered), (11, 11));
    let mut found: Vec<(String, Reason)> =
        fixture.dead_letters().await.into_iter().map(|letter| (letter.origin, letter.reason)).collect();
    found.sort_by_key(|(origin, _)| expected.iter().position(|(other, _)| other == origin));
    assert_eq!(found, expected);
}

/// S3: another payload under a known key never runs and is no duplicate; it is audited.
#[tokio::test(flavor = "multi_thread")]
async fn b13_a_conflict_follows_the_policy_and_never_runs() {
    for (policy, dead_letters) in [(OnConflict::DeadLetter, 1), (OnConflict::Acknowledge, 0)] {
        let fixture = Fixture::new();
        fixture.publish("1", "paid");
        fixture.publish("1", "refunded");
        let summary = drain(&fixture, fixture.worker().on_conflict(policy)).await;
        assert_eq!((summary.processed, summary.conflicts, summary.duplicates), (1, 1, 0));
        assert_eq!(fixture.effects(), [("1".to_owned(), "paid".to_owned())]);
        assert_eq!(fixture.dead_letters().await.len(), dead_letters);
        assert_eq!(
            fixture.store.audited(),
            [("start".to_owned(), None), ("conflict".to_owned(), Some("1".to_owned()))]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b13_a_conflict_can_halt_the_consumer_until_somebody_resumes_it() {
    let fixture = Fixture::new();
    fixture.publish("1", "paid");
    fixture.publish("1", "refunded");
    let running = Running::new(fixture.worker().on_conflict(OnConflict::Halt));
    running.until("the halt", |running| matches!(running.view.pause(), Some(Pause::Control(..)))).await;
    let after = fixture.publish("2", "ok");
    running.stop().await.unwrap();
    assert_eq!(fixture.queue.history(&after).acknowledged, 0, "a halted consumer takes nothing in");
    // A new start is halted too, and says so where it was to end when idle.
    let again = Running::new(fixture.worker().until_idle(std::time::Duration::from_millis(20))).ended().await;
    assert!(matches!(again, Err(idem_core::worker::WorkerError::Halted)), "{again:?}");
}

/// J79: a conflict cannot be dealt with, because the database is away, and goes back to its lane: what comes behind it in its ordering
/// key does not go before it.
#[tokio::test]
async fn j79_a_conflict_that_goes_back_is_not_overtaken() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
    fixture.publish("1", "paid");
    drain(&fixture, fixture.worker()).await;
    fixture.publish("first", "block");
    let books = fixture.store.bookkeeping();
    let scope = books.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    let running = Running::new(fixture.worker().control_every(Duration::from_secs(5)));
    fixture.script.blocked().await;
    fixture.publish_ordered("customer", "1", "refunded");
    fixture.publish_ordered("customer", "2", "ok");
    within("the delivery", fixture.queue.until(|stats| stats.in_flight == 3)).await;
    // So many that the record is forgotten before the last of them.
    (0..8).for_each(|_| fixture.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Infrastructure)));
    fixture.script.unblock();
    running.until("the outage", |_| fixture.store.faults_left(Operation::Bookkeeping) < 8).await;
    assert!(fixture.store.forget(scope, &IdempotencyKey::new("1").unwrap()));
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.script.runs(), ["1", "first", "1", "2"]);
}

/// A handler that always fails meets the breaker: 10,000 messages make at most about 50 dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_always_fails_meets_the_breaker_and_goes_on_when_it_is_mended() {
    let fixture = Fixture::new();
    (0..10_000).for_each(|n| drop(fixture.publish(&format!("k{n}"), "permanent")));
    let running = Running::new(fixture.worker());
    running.until("the breaker", |running| running.view.pause() == Some(Pause::Breaker)).await;
    fixture.script.mend();
    within("draining the queue after the mend", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert!(summary.dead_lettered <= 50, "{} dead letters", summary.dead_lettered);
    assert_eq!(summary.processed + summary.dead_lettered, 10_000);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// Cannot be reached, for a cause that only the client's error has.
struct Unreachable;

#[async_trait]
impl Publisher for Unreachable {
    async fn publish(&self, _: &DeadLetter) -> Result<(), SourceError> {
        Err(SourceError::Unavailable {
            doing: "publishing a dead letter",
            source: "the certificate has expired".into(),
        })
    }
}

/// Never answers.
struct Silent;

#[async_trait]
impl Publisher for Silent {
    async fn publish(&self, _: &DeadLetter) -> Result<(), SourceError> {
        std::future::pending().await
    }
}

/// Counts how often it is asked.
struct Asked<P>(Arc<AtomicUsize>, P);

#[async_trait]
impl<P: Publisher> Publisher for Asked<P> {
    async fn publish(&self, letter: &DeadLetter) -> Result<(), SourceError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.publish(letter).await
    }
}

/// J30: the log says why a dead letter is not confirmed: the cause, which the client's error has, and not its cover alone.
#[tokio::test]
async fn j30_the_log_says_why_a_dead_letter_is_not_confirmed() {
    let (captured, _guard) = Captured::log(tracing::Level::WARN);
    let fixture = Fixture::new();
    fixture.publish("1", "permanent");
    let running = Running::new(fixture.worker().publisher(Unreachable));
    let line = || captured.lines().into_iter().find(|line| line.contains("a dead letter was not confirmed"));
    running.until("the line", |_| line().is_some()).await;
    let line = line().unwrap();
    assert!(line.contains("publishing a dead letter") && line.contains("the certificate has expired"), "{line}");
    running.stop().await.unwrap();
}

/// J57: a topic or queue that confirms nothing, for any reason, does not stop a key for ever: the row has the message,
/// and after the time that a message waits uncharged the row alone is the dead letter.
#[tokio::test]
async fn j57_a_publisher_that_confirms_nothing_holds_no_key_for_ever() {
    let (captured, _guard) = Captured::log(tracing::Level::ERROR);
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
    let poison = fixture.publish_ordered("customer-1", "poison", "permanent");
    fixture.publish_ordered("customer-1", "behind it", "ok");
    let waits = Duration::from_millis(200);
    let running = Running::new(fixture.worker().database_wait_max(waits).publisher(Unreachable));
    let causes = || running.view.waits().into_iter().map(|wait| wait.cause).collect::<Vec<_>>();
    running.until("the wait", |_| causes() == [WaitCause::Publisher]).await;
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().dead_lettered, 1);
    assert_eq!(fixture.queue.history(&poison).dead_lettered, 1);
    assert_eq!(fixture.counted(), [("behind it".to_owned(), 1)].into());
    let letters = fixture.dead_letters().await;
    assert!(letters[0].payload_kept && letters[0].published_at.is_none(), "{letters:?}");
    let lines = captured.lines();
    assert!(lines.iter().any(|line| line.contains("its row alone has it") && line.contains("expired")), "{lines:?}");
}

/// J77: a message comes again, after its assignment was lost, while its dead letter waits for a confirmation: it has had its
/// attempts, and waits once more.
#[tokio::test]
async fn j77_what_comes_again_while_its_publication_waits_does_not_run() {
    let fixture = Fixture::new();
    let poison = fixture.publish("poison", "permanent");
    let asked = Arc::new(AtomicUsize::new(0));
    let running = Running::new(fixture.worker().publisher(Asked(Arc::clone(&asked), Unreachable)));
    running.until("a try", |_| asked.load(Ordering::Relaxed) > 0).await;
    fixture.queue.disconnect();
    within("the next delivery", fixture.queue.until(|stats| stats.redelivered > 0)).await;
    let before = asked.load(Ordering::Relaxed);
    running.until("a try of the next delivery", |_| asked.load(Ordering::Relaxed) > before + 1).await;
    assert_eq!(fixture.script.runs_of("poison"), 1);
    running.stop().await.unwrap();
    let history = fixture.queue.history(&poison);
    assert_eq!((history.acknowledged, history.dead_lettered), (0, 0));
}

/// J78: the row of a dead letter is written, its answer is lost, and the message comes again: it has had its attempts, and is set
/// aside once more.
#[tokio::test]
async fn j78_what_was_set_aside_without_an_answer_does_not_run_again() {
    let fixture = Fixture::new();
    let poison = fixture.publish("poison", "block, then fail");
    let running = Running::new(
        fixture
            .worker()
            .retry(RetryPolicy::new(1, Duration::from_millis(1), Duration::from_millis(5)))
            .control_every(Duration::from_secs(5)),
    );
    fixture.script.blocked().await;
    (0..3).for_each(|_| fixture.store.inject(Operation::Bookkeeping, Fault::AnswerLost));
    fixture.script.unblock();
    running.until("the row", |_| fixture.store.faults_left(Operation::Bookkeeping) < 3).await;
    fixture.queue.disconnect();
    within("the next delivery", fixture.queue.until(|stats| stats.redelivered > 0)).await;
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().dead_lettered, 1);
    assert_eq!((fixture.script.runs_of("poison"), fixture.dead_letters().await.len()), (1, 1));
    assert_eq!(fixture.queue.history(&poison).dead_lettered, 1);
}

/// J57: a message that the row does not have is not acknowledged for it.
#[tokio::test]
async fn j57_what_only_a_publisher_could_keep_waits_on() {
    let fixture = Fixture::new();
    let poison = fixture.publish("poison", "permanent");
    let asked = Arc::new(AtomicUsize::new(0));
    let worker = fixture.worker().database_wait_max(Duration::from_millis(1)).dead_letter_payload_bytes_max(1);
    let running = Running::new(worker.publisher(Asked(Arc::clone(&asked), Unreachable)));
    // Long past the time after which a row that has the payload is enough: waits grow from 1 ms.
    running.until("more than ten tries", |_| asked.load(Ordering::Relaxed) > 10).await;
    running.stop().await.unwrap();
    let history = fixture.queue.history(&poison);
    assert_eq!((history.acknowledged, history.dead_lettered), (0, 0));
}

/// J57: a publisher that never answers is one that has not confirmed: its call is dropped, and the worker goes on.
#[tokio::test(start_paused = true)]
async fn j57_a_publisher_that_never_answers_stops_nobody() {
    let fixture = Fixture::new();
    fixture.publish("poison", "permanent");
    fixture.publish("good", "ok");
    let running = Running::new(fixture.worker().database_wait_max(Duration::ZERO).publisher(Silent));
    tokio::time::timeout(Duration::from_secs(600), fixture.queue.drained()).await.expect("the queue is drained");
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 1));
}

/// G8, G9: a dead letter is published and confirmed before its original is settled.
#[tokio::test(flavor = "multi_thread")]
async fn g8_an_unconfirmed_dead_letter_is_published_again_before_its_original_is_settled() {
    let fixture = Fixture::new();
    let aside = fixture.broker.create("aside", QueueOptions::default()).unwrap();
    aside.misbehave(Faults { publishes_refused: Rate::Always, ..Faults::default() });
    let origin = fixture.publish("1", "permanent");
    let running = Running::new(fixture.worker().publisher(aside.publisher()));
    within("the row", async {
        while fixture.dead_letters().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(fixture.queue.history(&origin).dead_lettered, 0);
    aside.misbehave(Faults::default());
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    let published = aside.unsettled();
    assert_eq!(published.len(), 1);
    let header = |name: &str| published[0].headers().text(name).map(str::to_owned);
    assert_eq!(header("idem-reason").as_deref(), Some("permanent"));
    assert_eq!(header("idem-origin").as_deref(), Some(origin.as_str()));
    assert_eq!(header("idem-consumer").as_deref(), Some("ledger"));
    assert_eq!(header("idempotencykey").as_deref(), Some("1"));
    assert_eq!(published[0].payload().map(|payload| payload.to_vec()), Some(b"permanent".to_vec()));
    assert!(fixture.dead_letters().await[0].published_at.is_some());
    assert_eq!(fixture.script.runs_of("1"), 1, "publishing again does not run the handler again");
}

/// C7: a dead letter is replayed by a running worker under its own key, and runs, because a failed message left no
/// record.
#[tokio::test(flavor = "multi_thread")]
async fn c7_a_replayed_dead_letter_runs_once_through_a_running_worker() {
    let fixture = Fixture::new();
    fixture.publish("1", "fail");
    fixture.publish("2", "ok");
    let running = Running::new(fixture.worker());
    within("draining the queue", fixture.queue.drained()).await;
    let letter = fixture.dead_letters().await.remove(0);
    // It fails once more, and stays what it is.
    assert_eq!(fixture.store.bookkeeping().due_now(&[letter.id], "ann").await.unwrap(), 1);
    running.until("the failed replay", |running| running.view.summary().replayed == 1).await;
    assert_eq!(fixture.counted().get("1"), None);
    fixture.script.mend();
    assert_eq!(fixture.store.bookkeeping().due_now(&[letter.id], "ann").await.unwrap(), 1);
    running.until("the replay", |running| running.view.summary().replayed == 2).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted(), [("1".to_owned(), 1), ("2".to_owned(), 1)].into());
    let letter = fixture.dead_letters().await.remove(0);
    assert!(letter.replayed.is_some(), "{letter:?}");
}

/// A32: a dead letter that the broker has confirmed is not published again when its original is delivered once more, as
/// after a crash between the two.
#[tokio::test(flavor = "multi_thread")]
async fn a32_a_confirmed_dead_letter_is_not_published_again() {
    let fixture = Fixture::new();
    let aside = fixture.broker.create("aside", QueueOptions::default()).unwrap();
    // The broker does not learn that the original was settled, so it is delivered again.
    fixture.queue.misbehave(Faults { settles_lost: Rate::Always, ..Faults::default() });
    let origin = fixture.publish("1", "permanent");
    // However often it is delivered, it is set aside for the same reason.
    let retry = RetryPolicy::new(1_000, Duration::from_millis(1), Duration::from_millis(5));
    let running = Running::new(fixture.worker().retry(retry).publisher(aside.publisher()));
    within("two more deliveries", fixture.queue.until(|stats| stats.delivered > 2)).await;
    fixture.queue.misbehave(Faults::default());
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert!(fixture.queue.history(&origin).deliveries > 2);
    assert_eq!(aside.unsettled().len(), 1, "published once");
    let letters = fixture.dead_letters().await;
    assert_eq!((letters.len(), letters[0].copies), (1, 1));
}

/// A29, A32: two lives of one queue, on one database: another message at a used origin is another dead letter, and is
/// published too.
#[tokio::test(flavor = "multi_thread")]
async fn a29_another_message_at_a_used_origin_is_kept_and_published() {
    let first = Fixture::new();
    let second = Fixture { store: first.store.clone(), ..Fixture::new() };
    let mut origins = Vec::new();
    for (fixture, key) in [(&first, "order-OLD"), (&second, "order-NEW")] {
        let aside = fixture.broker.create("aside", QueueOptions::default()).unwrap();
        origins.push(fixture.publish(key, "permanent"));
        let summary = drain(fixture, fixture.worker().publisher(aside.publisher())).await;
        assert_eq!(summary.dead_lettered, 1);
        let published = aside.unsettled();
        assert_eq!(
            published.iter().map(|message| message.headers().text("idempotencykey")).collect::<Vec<_>>(),
            [Some(key)]
        );
    }
    assert_eq!(origins[0], origins[1]);
    let letters = first.dead_letters().await;
    let keys: Vec<_> = letters.iter().map(|letter| letter.key.as_ref().unwrap().as_str()).collect();
    assert_eq!(keys, ["order-OLD", "order-NEW"]);
    assert!(letters.iter().all(|letter| letter.published_at.is_some() && letter.copies == 1), "{letters:?}");
}
