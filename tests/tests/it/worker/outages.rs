//! Databases that go away, commits whose answer is lost, brokers that misbehave.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    DedupConsumer, Effects, ErrorClass, Handler, HandlerError, Message, Tx, Worker, config::RetryPolicy,
    dead_letter::Reason, worker::WorkerBuilder,
};
use idem_testkit::{
    Fault, MemoryStore, Operation,
    memory::{Faults, MemorySource, Order, QueueOptions, Rate, Revoke},
};

use super::fixture::{Fixture, Running, drain, within};

/// A worker that has handled a first message, so that no fault meets its start.
async fn started(fixture: &Fixture, worker: WorkerBuilder<MemoryStore, MemorySource>) -> Running {
    fixture.publish("first", "ok");
    let running = Running::new(worker);
    within("the first message", fixture.queue.drained()).await;
    running
}

/// A25: trouble with the database pauses; it burns no attempt and sets nothing aside.
#[tokio::test(flavor = "multi_thread")]
async fn a25_an_outage_of_the_database_charges_nobody() {
    let operations = [Operation::Open, Operation::Begin, Operation::Claim, Operation::Commit, Operation::Rollback];
    for operation in operations.into_iter().chain([Operation::Read, Operation::Statement, Operation::Bookkeeping]) {
        let fixture = Fixture::new();
        let running = started(&fixture, fixture.worker()).await;
        for _ in 0..6 {
            fixture.store.inject(operation, Fault::Error(ErrorClass::Infrastructure));
            fixture.store.inject(operation, Fault::ConnectionLost);
        }
        for n in 0..20 {
            fixture.publish(&format!("k{n}"), "ok");
            fixture.publish(&format!("k{n}"), "ok");
        }
        within(&format!("draining the queue after trouble with {operation:?}"), fixture.queue.drained()).await;
        let summary = running.stop().await.unwrap();
        assert_eq!(summary.dead_lettered, 0, "{operation:?}");
        assert_eq!(fixture.counted().len(), 21, "{operation:?}");
        assert!(fixture.counted().values().all(|count| *count == 1), "{operation:?}");
    }
}

/// A5, A6, D6: a lost answer to a commit is resolved by claiming again, for one message and for a batch of 100.
#[tokio::test(flavor = "multi_thread")]
async fn a5_a6_d6_a_lost_answer_to_a_commit_is_resolved_by_claiming_again() {
    for fault in [Fault::AnswerLost, Fault::ConnectionLost] {
        for warm_up in [0, 100] {
            let fixture = Fixture::new();
            (0..warm_up).for_each(|n| drop(fixture.publish(&format!("warm-{n}"), "ok")));
            let running = Running::new(fixture.worker());
            within("the warm-up", fixture.queue.drained()).await;
            fixture.store.inject(Operation::Commit, fault);
            (0..100).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
            within("draining the queue", fixture.queue.drained()).await;
            let summary = running.stop().await.unwrap();
            assert_eq!(fixture.counted().len() as u64, 100 + warm_up);
            assert!(fixture.counted().values().all(|count| *count == 1));
            assert!(summary.unknown_resolved >= 1, "{fault:?} {summary:?}");
            assert_eq!(summary.processed, 100 + warm_up, "our own record is the message itself: {fault:?}");
        }
    }
}

/// A50: of a unit whose commit's answer was lost, what was committed before and copies are duplicates, as in any other unit.
#[tokio::test(flavor = "multi_thread")]
async fn a50_a_lost_answer_makes_no_duplicate_processed() {
    let fixture = Fixture::new();
    // Batches begin small.
    (0..100).for_each(|n| drop(fixture.publish(&format!("warm-{n}"), "ok")));
    let running = Running::new(fixture.worker());
    within("the warm-up", fixture.queue.drained()).await;
    fixture.publish("gate", "block");
    fixture.script.blocked().await;
    for (key, payload) in [("warm-0", "ok"), ("new", "block"), ("new", "block"), ("new", "block")] {
        fixture.publish(key, payload);
    }
    running.until("all in hand", |running| running.view.load().messages == 5).await;
    fixture.script.unblock();
    fixture.script.blocked().await;
    fixture.store.inject(Operation::Commit, Fault::AnswerLost);
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates, summary.unknown_resolved), (102, 3, 1));
    assert!(fixture.counted().len() == 102 && fixture.counted().values().all(|count| *count == 1));
}

/// A7: a commit that hangs is unknown after its time-out, and the connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a7_a_commit_that_hangs_is_resolved_after_its_timeout() {
    let fixture = Fixture::new();
    let consumer = fixture.consumer().commit_timeout(Duration::from_millis(30)).build().unwrap();
    fixture.store.inject(Operation::Commit, Fault::Hang);
    fixture.publish("1", "ok");
    let summary = drain(&fixture, fixture.worker_of(consumer)).await;
    assert_eq!((summary.processed, summary.unknown_resolved), (1, 1));
    assert_eq!(fixture.counted(), [("1".to_owned(), 1)].into());
}

/// A database that stops answering without a word is left after the answer time-out.
#[tokio::test(flavor = "multi_thread")]
async fn j4_a_database_that_never_answers_is_left() {
    for operation in [Operation::Open, Operation::Begin, Operation::Claim, Operation::Read] {
        let fixture = Fixture::new();
        let consumer = fixture
            .consumer()
            .answer_timeout(Duration::from_millis(30))
            .busy_timeout(Duration::from_millis(30))
            .build()
            .unwrap();
        let running = started(&fixture, fixture.worker_of(consumer)).await;
        fixture.store.inject(operation, Fault::Hang);
        fixture.publish("1", "ok");
        within(&format!("draining the queue after {operation:?} hung"), fixture.queue.drained()).await;
        running.stop().await.unwrap();
        assert_eq!(fixture.counted().get("1"), Some(&1));
    }
}

/// B6: rows that a trigger swallows end the consumer with the cure, and lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn b6_a_table_that_swallows_its_rows_ends_the_worker_with_the_cure() {
    let fixture = Fixture::new();
    let running = started(&fixture, fixture.worker()).await;
    fixture.store.swallow_records(true);
    let origin = fixture.publish("2", "ok");
    let error = running.ended().await.unwrap_err();
    let text = idem_core::internal::chain(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    assert!(text.contains("trigger") && text.contains("row security"), "{text}");
    assert_eq!(fixture.queue.history(&origin).acknowledged, 0, "the message goes back");
}

/// A27: a table that is gone during a deploy and back later; the redelivery runs.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_table_that_is_gone_for_a_while_loses_nothing() {
    let fixture = Fixture::new();
    let running = started(&fixture, fixture.worker()).await;
    fixture.store.hide_records(true);
    fixture.publish("1", "ok");
    running.until("the pause", |running| running.view.pause().is_some()).await;
    fixture.store.hide_records(false);
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (2, 0));
}

/// A2, A3, F2, F4, F5, G1, E1: with any fault of the broker in settlements, every effect is there once.
#[tokio::test(flavor = "multi_thread")]
async fn a3_a_broker_that_loses_settlements_causes_no_second_effect() {
    let one_in = |faults: Faults| (faults, QueueOptions::default());
    let cases = [
        one_in(Faults { acks_lost: Rate::OneIn(4), ..Faults::default() }),
        one_in(Faults { settles_lost: Rate::OneIn(4), ..Faults::default() }),
        one_in(Faults { answers_lost: Rate::OneIn(4), ..Faults::default() }),
        one_in(Faults { receipts_stale: Rate::OneIn(4), ..Faults::default() }),
        one_in(Faults { resurrected: Rate::OneIn(4), ..Faults::default() }),
        one_in(Faults { reordered: Rate::OneIn(2), ..Faults::default() }),
        one_in(Faults { receives_failed: Rate::OneIn(4), ..Faults::default() }),
        (Faults { acks_lost: Rate::OneIn(4), ..Faults::default() }, QueueOptions::default().order(Order::ByKey)),
    ];
    for (faults, options) in cases {
        let fixture = Fixture::with(options);
        fixture.queue.misbehave(faults);
        for n in 0..200 {
            fixture.publish_ordered(
                &format!("o{}", n % 7),
                &format!("k{n}"),
                if n % 50 == 7 { "fail once" } else { "ok" },
            );
        }
        let summary = drain(&fixture, fixture.worker().batch(16)).await;
        assert_eq!(fixture.counted().len(), 200, "{faults:?}");
        assert!(fixture.counted().values().all(|count| *count == 1), "{faults:?}");
        assert_eq!((summary.processed, summary.dead_lettered), (200, 0), "{faults:?}");
    }
}

/// E1, E8, E10, G1: an assignment that ends, drained or lost, loses nothing and doubles nothing.
#[tokio::test(flavor = "multi_thread")]
async fn e1_an_assignment_that_ends_loses_nothing_and_doubles_nothing() {
    for how in [Revoke::Drained, Revoke::Lost] {
        let fixture = Fixture::new();
        let running = Running::new(fixture.worker().batch(8));
        for round in 0..20 {
            (0..50).for_each(|n| drop(fixture.publish(&format!("k{round}-{n}"), "ok")));
            fixture.queue.revoke(how);
        }
        within("draining the queue", fixture.queue.drained()).await;
        running.stop().await.unwrap();
        assert_eq!(fixture.counted().len(), 1_000, "{how:?}");
        assert!(fixture.counted().values().all(|count| *count == 1), "{how:?}");
    }
}

/// A lane that finds the database down and then has its messages taken away still notices when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_without_messages_notices_that_the_database_is_back() {
    let fixture = Fixture::new();
    let running = started(&fixture, fixture.worker()).await;
    // Enough for the pause to last until a busy machine has seen it.
    (0..500).for_each(|_| fixture.store.inject(Operation::Begin, Fault::Error(ErrorClass::Infrastructure)));
    fixture.publish("1", "ok");
    running.until("the pause", |running| running.view.pause().is_some()).await;
    fixture.queue.revoke(Revoke::Lost);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().get("1"), Some(&1));
}

/// A25: a database that dies between the count of an attempt and its run charges no attempts, however often.
#[tokio::test(flavor = "multi_thread")]
async fn a25_an_attempt_that_never_ran_is_not_charged() {
    let fixture = Fixture::new();
    let running = Running::new(fixture.worker());
    running.until("the start", |_| fixture.queue.stats().consumers == 1).await;
    // The look for duplicates, which comes before the count, claims nothing.
    for _ in 0..6 {
        fixture.store.inject(Operation::Claim, Fault::Error(ErrorClass::Infrastructure));
    }
    fixture.publish("1", "ok");
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 0));
}

/// A27: an outage of the database for one message, on a connection that answers, charges that message nothing, however
/// often; a deploy that takes a table away for a while would otherwise set good messages aside.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_statement_that_cannot_be_served_charges_no_attempt() {
    let fixture = Fixture::new();
    let running = started(&fixture, fixture.worker()).await;
    // More often than there are attempts.
    (0..8).for_each(|_| fixture.store.inject(Operation::Statement, Fault::Error(ErrorClass::Infrastructure)));
    fixture.publish("1", "ok");
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered, summary.retries), (2, 0, 0));
    assert_eq!(fixture.script.runs_of("1"), 9, "it waited and ran again, and nothing gave up");
}

/// Its first run meets a table that is gone, and the server cannot be reached when its attempt is to be taken back.
#[derive(Clone)]
struct CutShort(MemoryStore, Arc<AtomicUsize>);

impl Handler<MemoryStore> for CutShort {
    async fn handle(&self, _: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            self.0.inject(Operation::Statement, Fault::Error(ErrorClass::Infrastructure));
            self.0.inject(Operation::Bookkeeping, Fault::ConnectionLost);
        }
        Ok(tx.connection().append("effects", "1", "x").await?)
    }
}

/// J85: an attempt that an outage cut short and that could not be taken back then is taken back once the message's assignment
/// has ended: whoever is handed the message next does not find it used up.
#[tokio::test(flavor = "multi_thread")]
async fn j85_what_an_outage_cut_short_is_not_charged_to_the_next_assignment() {
    for how in [Revoke::Drained, Revoke::Lost] {
        let fixture = Fixture::new();
        let consumer = DedupConsumer::builder(fixture.store.clone(), "ledger")
            .handler(CutShort(fixture.store.clone(), Arc::default()))
            .effects(Effects::InTransaction)
            .build()
            .unwrap();
        let hour = Duration::from_secs(3_600);
        let worker = Worker::builder(consumer, fixture.queue.source()).retry(RetryPolicy::new(1, hour, hour));
        let running = Running::new(worker.control_every(Duration::from_secs(5)).cleanup(None));
        fixture.publish("1", "x");
        running.until("the message to wait", |running| !running.view.waits().is_empty()).await;
        fixture.queue.revoke(how);
        within("draining the queue", fixture.queue.drained()).await;
        let summary = running.stop().await.unwrap();
        assert_eq!((summary.processed, summary.dead_lettered), (1, 0), "{how:?}");
    }
}

/// Takes the whole server down with the message of key `poison`: its connection is lost, and nothing of the server answers
/// for a while. Writes the others' keys.
#[derive(Clone)]
struct TakesTheServerDown {
    store: MemoryStore,
    runs: Arc<AtomicUsize>,
}

impl Handler<MemoryStore> for TakesTheServerDown {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        if key == "poison" {
            self.runs.fetch_add(1, Ordering::Relaxed);
            self.store.inject(Operation::Statement, Fault::ConnectionLost);
            for operation in [Operation::Open, Operation::Bookkeeping, Operation::Bookkeeping, Operation::Bookkeeping] {
                self.store.inject(operation, Fault::Error(ErrorClass::Infrastructure));
            }
        }
        Ok(tx.connection().append("effects", &key, "x").await?)
    }
}

/// D42: a message whose statement takes the whole server down ends as a dead letter, although the server cannot be asked for
/// the cause; and it is not forgotten where waiting messages go back to a broker meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn d42_a_message_that_takes_the_server_down_ends() {
    for give_back_after in [Duration::from_secs(3_600), Duration::from_millis(1)] {
        let fixture = Fixture::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let consumer = DedupConsumer::builder(fixture.store.clone(), "ledger")
            .handler(TakesTheServerDown { store: fixture.store.clone(), runs: Arc::clone(&runs) })
            .effects(Effects::InTransaction)
            .lanes(1)
            .build()
            .unwrap();
        (0..20).for_each(|n| drop(fixture.publish(&format!("a{n}"), "x")));
        fixture.publish("poison", "x");
        (0..20).for_each(|n| drop(fixture.publish(&format!("b{n}"), "x")));
        // Hardly any other request reaches the server meanwhile, so the faults meet the lane.
        let worker = Worker::builder(consumer, fixture.queue.source())
            .retry(RetryPolicy::new(3, Duration::from_millis(1), Duration::from_millis(20)))
            .give_back_after(give_back_after)
            .control_every(Duration::from_secs(5))
            .cleanup(None);
        let running = Running::new(worker);
        running
            .until("the poison's end", |_| {
                let runs = runs.load(Ordering::Relaxed);
                assert!(runs < 20, "it has run {runs} times, with 3 attempts");
                fixture.queue.stats().is_drained()
            })
            .await;
        let summary = running.stop().await.unwrap();
        assert_eq!((summary.processed, summary.dead_lettered), (40, 1));
        assert!(fixture.counted().values().all(|count| *count == 1));
        assert_eq!(fixture.dead_letters().await[0].reason, Reason::AttemptsExhausted);
        // Two that charge nothing, and three attempts.
        assert_eq!(runs.load(Ordering::Relaxed), 5);
    }
}
