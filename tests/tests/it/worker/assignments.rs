//! Assignments that end while the worker is busy with something else.

use std::time::Duration;

use idem_core::RetryPolicy;
use idem_testkit::memory::{Order, QueueOptions, Revoke};

use super::scene::{Running, Scene, within};

/// E10: a broker that takes an assignment back is answered although there is no room for a message, and although what
/// fills the room waits for its next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_revocation_is_answered_while_there_is_no_room() {
    let scene = Scene::new();
    let (waits, next) = (scene.publish("1", "fail"), scene.publish("2", "ok"));
    let hour = Duration::from_secs(3_600);
    let worker = scene.worker().batch(1).in_flight(1).retry(RetryPolicy { attempts: 5, first: hour, max: hour });
    let running = Running::new(worker);
    running.until("the first message to wait", |running| running.view.summary().retries == 1).await;
    assert_eq!(scene.queue.history(&next).deliveries, 0, "there is room for one message");
    scene.script.mend();
    scene.queue.revoke(Revoke::Drained);
    within("draining the queue", scene.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(scene.queue.history(&waits).deliveries, 2);
    assert_eq!(scene.counted(), [("1".to_owned(), 1), ("2".to_owned(), 1)].into());
}

/// A lane that is blocked, messages behind what blocks it, and others that another lane settles meanwhile; then `end`.
/// What stands before a settled message is finished, what comes after all of them is not begun.
async fn parting(end: impl AsyncFnOnce(&Scene, Running) -> Option<Running>) {
    let scene = Scene::with(QueueOptions::default().order(Order::ByKey).positions(true));
    // Past the messages that run one at a time over all lanes after a start.
    (0..20).for_each(|n| drop(scene.publish_ordered(&format!("warm-{n}"), &format!("warm-{n}"), "ok")));
    let running = Running::new(scene.worker_of(scene.consumer().lanes(2).build().unwrap()).batch(1));
    running.until("the start", |running| running.view.summary().processed == 20).await;
    scene.publish_ordered("a", "a0", "block");
    scene.script.blocked().await;
    scene.publish_ordered("a", "a1", "ok");
    // Some of so many keys are another lane's.
    (0..16).for_each(|n| drop(scene.publish_ordered(&format!("b{n}"), &format!("b{n}"), "ok")));
    running.until("the other lane", |running| running.view.summary().processed > 20).await;
    scene.publish_ordered("a", "a2", "ok");
    let running = end(&scene, running).await;
    if running.is_none() {
        assert_eq!((scene.script.runs_of("a1"), scene.script.runs_of("a2")), (1, 0));
    }
    let running = running.unwrap_or_else(|| Running::new(scene.worker()));
    within("draining the queue", scene.queue.drained()).await;
    assert_eq!(running.stop().await.unwrap().duplicates, 0, "nothing that was settled came back");
    assert_eq!(scene.counted().len(), 39);
}

/// E10: where the broker keeps positions, a clean stop leaves no settled message behind one that is not.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_stop_finishes_what_would_bring_settled_messages_back() {
    parting(async |scene, running| {
        running.cancel();
        scene.script.unblock();
        running.ended().await.unwrap();
        None
    })
    .await;
}

/// E10: the same for an assignment that ends while it is still held.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_drained_assignment_finishes_what_would_bring_settled_messages_back() {
    parting(async |scene, running| {
        scene.queue.revoke(Revoke::Drained);
        scene.script.unblock();
        Some(running)
    })
    .await;
}
