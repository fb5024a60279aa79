//! When a message is settled, and the bounds of messages in flight.

use idem_testkit::{
    Fault, Operation,
    memory::{Order, QueueOptions, Revoke},
};

use super::fixture::{Fixture, Running, within};

/// A4: nothing is acknowledged before its commit.
#[tokio::test(flavor = "multi_thread")]
async fn a4_nothing_is_acknowledged_before_its_commit() {
    let fixture = Fixture::new();
    let origin = fixture.publish("1", "block");
    let running = Running::new(fixture.worker());
    fixture.script.blocked().await;
    assert_eq!(fixture.queue.history(&origin).acknowledged, 0);
    assert!(fixture.effects().is_empty());
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.queue.history(&origin).acknowledged, 1);
}

/// J7: messages in flight are bounded by count and by bytes.
#[tokio::test(flavor = "multi_thread")]
async fn j7_what_is_in_flight_is_bounded() {
    let fixture = Fixture::new();
    fixture.publish("first", "block");
    (0..1_000).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let running = Running::new(fixture.worker().batch(10).in_flight(50));
    fixture.script.blocked().await;
    let stats = within("the bound", fixture.queue.until(|stats| stats.in_flight >= 50)).await;
    // One receive may be under way beyond the bound that the messages in hand have used up.
    assert!(stats.in_flight <= 100, "{} in flight", stats.in_flight);
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().processed, 1_001);
}

/// bug 7 of libraries.md: a backlog of duplicates alone is settled, and costs no handler.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_duplicates_is_settled_without_the_handler() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    (0..500).for_each(|_| drop(fixture.publish("1", "ok")));
    let running = Running::new(fixture.worker());
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates), (1, 500));
    assert_eq!(fixture.script.runs().len(), 1);
}

/// D5: only what is done is settled: behind an unfinished message, a source that stores positions moves no further, and
/// a consumer that dies there loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn d5_a_position_never_moves_past_an_unfinished_message() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey).positions(true));
    let consumer = fixture.consumer().lanes(4).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).batch(1));
    // Each lane runs its first message while no other does, so they get that over with.
    (0..100).for_each(|n| drop(fixture.publish_ordered(&format!("before{n}"), &format!("a{n}"), "ok")));
    within("what comes before", fixture.queue.drained()).await;
    fixture.publish_ordered("stuck", "b", "block");
    (0..20).for_each(|n| drop(fixture.publish_ordered(&format!("after{n}"), &format!("c{n}"), "ok")));
    fixture.script.blocked().await;
    within("some that come after", fixture.queue.until(|stats| stats.acknowledged >= 105)).await;
    assert_eq!(fixture.queue.unsettled().len(), 21, "the position stands before the unfinished message");
    fixture.queue.revoke(Revoke::Lost);
    fixture.script.unblock();
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 121);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// D8, F1: a lease that passes while a batch is at work brings a second consumer in, and the effects come once.
#[tokio::test(flavor = "multi_thread")]
async fn d8_a_lease_that_passes_under_a_batch_causes_no_second_effect() {
    let fixture = Fixture::new();
    fixture.publish("slow", "block");
    (0..20).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let first = Running::new(fixture.worker());
    fixture.script.blocked().await;
    let second = Running::new(fixture.worker());
    fixture.queue.expire_leases();
    fixture.script.unblock();
    fixture.script.unblock();
    within("draining the queue", fixture.queue.drained()).await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 21);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// D9: with two databases of which one is down, only what the other has committed is settled.
#[tokio::test(flavor = "multi_thread")]
async fn d9_one_database_down_settles_nothing_of_its_own() {
    let (down, up) = (Fixture::new(), Fixture::new());
    let (first, second) = (Running::new(down.worker()), Running::new(up.worker()));
    for fixture in [&down, &up] {
        fixture.publish("first", "ok");
        within("the first message", fixture.queue.drained()).await;
    }
    // More than it can try while the other queue is drained.
    (0..100_000).for_each(|_| down.store.inject(Operation::Begin, Fault::ConnectionLost));
    for fixture in [&down, &up] {
        (0..50).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    }
    within("draining the other queue", up.queue.drained()).await;
    assert_eq!(up.counted().len(), 51);
    assert_eq!((down.counted().len(), down.queue.stats().acknowledged), (1, 1));
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    assert_eq!(down.queue.stats().ready + down.queue.stats().delayed, 50, "everything went back");
}
