//! Assignments that end while the worker is busy with something else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{Handler, HandlerError, Message, Source, Tx, config::RetryPolicy};
use idem_testkit::{
    MemoryStore,
    memory::{Order, QueueOptions, Revoke},
};

use super::fixture::{Fixture, Running, Script, message, within};

/// E10: a broker that takes an assignment back is answered although there is no room for a message, and although what
/// fills the room waits for its next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_revocation_is_answered_while_there_is_no_room() {
    let fixture = Fixture::new();
    let (waits, next) = (fixture.publish("1", "fail"), fixture.publish("2", "ok"));
    let hour = Duration::from_secs(3_600);
    let worker = fixture.worker().batch(1).in_flight(1).retry(RetryPolicy::new(5, hour, hour));
    let running = Running::new(worker);
    running.until("the first message to wait", |running| running.view.summary().retries == 1).await;
    assert_eq!(fixture.queue.history(&next).deliveries, 0, "there is room for one message");
    fixture.script.mend();
    fixture.queue.revoke(Revoke::Drained);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.queue.history(&waits).deliveries, 2);
    assert_eq!(fixture.counted(), [("1".to_owned(), 1), ("2".to_owned(), 1)].into());
}

/// A lane that is blocked, messages behind what blocks it, and others that another lane settles meanwhile; then `end`.
/// The messages before a settled one are finished, those after all of them are not begun.
async fn parting(end: impl AsyncFnOnce(&Fixture, Running) -> Option<Running>) {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey).positions(true));
    // Past the messages that run one at a time over all lanes after a start.
    (0..20).for_each(|n| drop(fixture.publish_ordered(&format!("warm-{n}"), &format!("warm-{n}"), "ok")));
    let running = Running::new(fixture.worker_of(fixture.consumer().lanes(2).build().unwrap()).batch(1));
    running.until("the start", |running| running.view.summary().processed == 20).await;
    fixture.publish_ordered("a", "a0", "block");
    fixture.script.blocked().await;
    fixture.publish_ordered("a", "a1", "ok");
    // Some of so many keys are another lane's.
    (0..16).for_each(|n| drop(fixture.publish_ordered(&format!("b{n}"), &format!("b{n}"), "ok")));
    running.until("the other lane", |running| running.view.summary().processed > 20).await;
    fixture.publish_ordered("a", "a2", "ok");
    let running = end(&fixture, running).await;
    if running.is_none() {
        assert_eq!((fixture.script.runs_of("a1"), fixture.script.runs_of("a2")), (1, 0));
    }
    let running = running.unwrap_or_else(|| Running::new(fixture.worker()));
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().duplicates, 0, "nothing that was settled came back");
    assert_eq!(fixture.counted().len(), 39);
}

/// E10: where the broker keeps positions, a clean stop leaves no settled message behind one that is not.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_stop_finishes_what_would_bring_settled_messages_back() {
    parting(async |fixture, running| {
        running.cancel();
        fixture.script.unblock();
        running.ended().await.unwrap();
        None
    })
    .await;
}

/// E10: the same for an assignment that ends while it is still held.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_drained_assignment_finishes_what_would_bring_settled_messages_back() {
    parting(async |fixture, running| {
        fixture.queue.revoke(Revoke::Drained);
        fixture.script.unblock();
        Some(running)
    })
    .await;
}

/// E1: a received message that waits for its share of memory is dropped with its assignment. A copy of it would be a
/// zombie: the broker delivers it again, to the assignment's new holder.
#[tokio::test(flavor = "multi_thread")]
async fn e1_what_waits_in_intake_is_dropped_with_its_assignment() {
    let fixture = Fixture::new();
    // Each takes most of the memory there is, so one is in flight and the other waits.
    let large = |key: &str, payload: &str| message(key, payload).with_header("x", vec![0; 1_200]);
    fixture.queue.publish(large("1", "block")).unwrap();
    let second = fixture.queue.publish(large("2", "ok")).unwrap();
    let consumer =
        fixture.consumer().payload_bytes_max(1_000).handler_deadline(Duration::from_secs(600)).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).batch(1).in_flight_bytes(2_000));
    fixture.script.blocked().await;
    within("the second", fixture.queue.until(|stats| stats.in_flight == 2)).await;
    fixture.queue.revoke(Revoke::Lost);
    // Intake has seen the revocation once it takes in a message again.
    within("the next delivery", fixture.queue.until(|stats| stats.redelivered > 0)).await;
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!(fixture.counted(), [("1".to_owned(), 1), ("2".to_owned(), 1)].into());
    assert_eq!(summary.duplicates, 1, "only the one that ran when its assignment was lost came twice");
    assert_eq!(fixture.queue.history(&second).deliveries, 2);
}

/// Notes how many handlers of messages that were delivered before run at the same time.
struct Overlaps(Script, Arc<[AtomicUsize; 2]>);

impl Handler<MemoryStore> for Overlaps {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let Self(script, counts) = self;
        if message.payload().is_some_and(|payload| &payload[..] == b"again") {
            let now = counts[0].fetch_add(1, Ordering::SeqCst) + 1;
            counts[1].fetch_max(now, Ordering::SeqCst);
            // Long enough for another lane to begin.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            counts[0].fetch_sub(1, Ordering::SeqCst);
        }
        script.handle(message, tx).await
    }
}

/// D4: a message that was delivered before may be the one that ended a process, so it runs alone in this one: no neighbour
/// is charged if it does so again.
#[tokio::test(flavor = "multi_thread")]
async fn d4_messages_that_were_delivered_before_run_one_at_a_time_in_the_process() {
    let fixture = Fixture::new();
    (0..16).for_each(|n| drop(fixture.publish(&format!("again-{n}"), "again")));
    // Another consumer has them, and goes away later.
    let other = fixture.queue.source();
    other.attach().await.unwrap();
    drop(other.receive(16).await.unwrap());
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let handler = Overlaps(fixture.script.clone(), Arc::clone(&counts));
    let consumer = fixture.consumer().handler(handler).lanes(4).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).batch(1));
    // Past the messages that run one at a time over all lanes after a start.
    (0..200).for_each(|n| drop(fixture.publish(&format!("warm-{n}"), "ok")));
    running.until("the start", |running| running.view.summary().processed == 200).await;
    drop(other);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 216);
    assert_eq!(counts[1].load(Ordering::SeqCst), 1);
}
