//! What an attempt counts for, and when the count ends.

use std::time::Duration;

use idem_core::{Bookkeeping as _, ConsumerName, Effects, PayloadHash, RetryPolicy, Store as _, Tenant};

use super::scene::{Running, Scene, drain, within};

fn attempts(attempts: u32) -> RetryPolicy {
    RetryPolicy::new(attempts, Duration::from_millis(1), Duration::from_millis(5))
}

/// D28: a message that went well has no attempts behind it: its key may be used again once the record is gone, and runs.
#[tokio::test(flavor = "multi_thread")]
async fn d28_a_message_that_went_well_leaves_no_count() {
    for allowed in [1, 2, 5] {
        let scene = Scene::new();
        scene.publish("nightly", "ok");
        let consumer =
            || scene.consumer().effects(Effects::Outside).handler_deadline(Duration::from_secs(60)).build().unwrap();
        drain(&scene, scene.worker_of(consumer()).retry(attempts(allowed))).await;
        let books = scene.store.bookkeeping();
        let scope = books.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
        let key = idem_core::IdempotencyKey::new("nightly").unwrap();
        let next = books.count_attempt(scope, &key, PayloadHash::of(b"ok")).await.unwrap();
        assert!(next <= allowed, "attempt {next} of {allowed}");
    }
}

/// D29: a copy that comes while the last attempt runs is not set aside: it waits for the key, and is a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn d29_a_copy_of_a_running_last_attempt_is_not_set_aside() {
    let first = Scene::new();
    let second = Scene { store: first.store.clone(), script: first.script.clone(), ..Scene::new() };
    let worker = |scene: &Scene| {
        let consumer = scene
            .consumer()
            .effects(Effects::Outside)
            .handler_deadline(Duration::from_secs(60))
            .busy_timeout(Duration::from_millis(50));
        Running::new(scene.worker_of(consumer.build().unwrap()).retry(attempts(1)))
    };
    first.publish("charge", "block");
    let running = worker(&first);
    first.script.blocked().await;
    second.publish("charge", "block");
    let other = worker(&second);
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
