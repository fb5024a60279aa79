//! When a message is settled, and what bounds what is in flight.

use idem_testkit::{
    Fault, Operation,
    memory::{Order, QueueOptions, Revoke},
};

use super::scene::{Running, Scene, within};

/// A4: nothing is acknowledged before its commit.
#[tokio::test(flavor = "multi_thread")]
async fn a4_nothing_is_acknowledged_before_its_commit() {
    let scene = Scene::new();
    let origin = scene.publish("1", "block");
    let running = Running::new(scene.worker());
    scene.script.blocked().await;
    assert_eq!(scene.queue.history(&origin).acknowledged, 0);
    assert!(scene.effects().is_empty());
    scene.script.unblock();
    within("draining the queue", scene.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(scene.queue.history(&origin).acknowledged, 1);
}

/// J7: what is in flight is bounded by count and by bytes.
#[tokio::test(flavor = "multi_thread")]
async fn j7_what_is_in_flight_is_bounded() {
    let scene = Scene::new();
    scene.publish("first", "block");
    (0..1_000).for_each(|n| drop(scene.publish(&format!("k{n}"), "ok")));
    let running = Running::new(scene.worker().batch(10).in_flight(50));
    scene.script.blocked().await;
    let stats = within("the bound", scene.queue.until(|stats| stats.in_flight >= 50)).await;
    // One receive may be under way beyond the bound that the messages in hand have used up.
    assert!(stats.in_flight <= 100, "{} in flight", stats.in_flight);
    scene.script.unblock();
    within("draining the queue", scene.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().processed, 1_001);
}

/// bug 7 of libraries.md: a backlog of duplicates alone is settled, and costs no handler.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_duplicates_is_settled_without_the_handler() {
    let scene = Scene::new();
    scene.publish("1", "ok");
    (0..500).for_each(|_| drop(scene.publish("1", "ok")));
    let running = Running::new(scene.worker());
    within("draining the queue", scene.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.duplicates), (1, 500));
    assert_eq!(scene.script.runs().len(), 1);
}

/// D5: only what is done is settled: behind an unfinished message, a source that stores positions moves no further, and
/// a consumer that dies there loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn d5_a_position_never_moves_past_an_unfinished_message() {
    let scene = Scene::with(QueueOptions::default().order(Order::ByKey).positions(true));
    let consumer = scene.consumer().lanes(4).build().unwrap();
    let running = Running::new(scene.worker_of(consumer).batch(1));
    // Each lane runs its first message while no other does, so they get that over with.
    (0..100).for_each(|n| drop(scene.publish_ordered(&format!("before{n}"), &format!("a{n}"), "ok")));
    within("what comes before", scene.queue.drained()).await;
    scene.publish_ordered("stuck", "b", "block");
    (0..20).for_each(|n| drop(scene.publish_ordered(&format!("after{n}"), &format!("c{n}"), "ok")));
    scene.script.blocked().await;
    within("some that come after", scene.queue.until(|stats| stats.acknowledged >= 105)).await;
    assert_eq!(scene.queue.unsettled().len(), 21, "the position stands before the unfinished message");
    scene.queue.revoke(Revoke::Lost);
    scene.script.unblock();
    scene.script.unblock();
    within("draining the queue", scene.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(scene.counted().len(), 121);
    assert!(scene.counted().values().all(|count| *count == 1));
}

/// D8, F1: a lease that passes while a batch is at work brings a second consumer in, and the effects come once.
#[tokio::test(flavor = "multi_thread")]
async fn d8_a_lease_that_passes_under_a_batch_causes_no_second_effect() {
    let scene = Scene::new();
    scene.publish("slow", "block");
    (0..20).for_each(|n| drop(scene.publish(&format!("k{n}"), "ok")));
    let first = Running::new(scene.worker());
    scene.script.blocked().await;
    let second = Running::new(scene.worker());
    scene.queue.expire_leases();
    scene.script.unblock();
    scene.script.unblock();
    within("draining the queue", scene.queue.drained()).await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    assert_eq!(scene.counted().len(), 21);
    assert!(scene.counted().values().all(|count| *count == 1));
}

/// D9: with two databases of which one is down, only what the other has committed is settled.
#[tokio::test(flavor = "multi_thread")]
async fn d9_one_database_down_settles_nothing_of_its_own() {
    let (down, up) = (Scene::new(), Scene::new());
    let (first, second) = (Running::new(down.worker()), Running::new(up.worker()));
    for scene in [&down, &up] {
        scene.publish("first", "ok");
        within("the first message", scene.queue.drained()).await;
    }
    // More than it can try while the other queue is drained.
    (0..100_000).for_each(|_| down.store.inject(Operation::Begin, Fault::ConnectionLost));
    for scene in [&down, &up] {
        (0..50).for_each(|n| drop(scene.publish(&format!("k{n}"), "ok")));
    }
    within("draining the other queue", up.queue.drained()).await;
    assert_eq!(up.counted().len(), 51);
    assert_eq!((down.counted().len(), down.queue.stats().acknowledged), (1, 1));
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    assert_eq!(down.queue.stats().ready + down.queue.stats().delayed, 50, "everything went back");
}
