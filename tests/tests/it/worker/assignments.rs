//! Assignments that end while the worker is busy with something else.

use std::time::Duration;

use idem_core::RetryPolicy;
use idem_testkit::memory::Revoke;

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
