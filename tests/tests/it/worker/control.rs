//! What operators set, running workers obey.

use idem_core::{Bookkeeping, ConsumerName, ControlState, Pause, Tenant};

use super::scene::{Running, Scene, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_consumer_takes_nothing_in_until_it_is_resumed() {
    let scene = Scene::new();
    scene.publish("1", "ok");
    let running = Running::new(scene.worker());
    within("the first message", scene.queue.drained()).await;
    let scope = scene.store.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    scene.store.set_control(scope, ControlState::Paused, "ann", "looking at something").await.unwrap();
    running.until("the pause", |running| running.view.pause().is_some()).await;
    let Some(Pause::Control(ControlState::Paused, why)) = running.view.pause() else { panic!("no pause") };
    assert_eq!(why, "ann: looking at something");
    scene.store.set_control(scope, ControlState::Running, "ann", "done").await.unwrap();
    scene.publish("2", "ok");
    within("draining the queue", scene.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(scene.counted().len(), 2);
}

/// A pause that was set before the start is obeyed before anything is received.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_paused_starts_paused() {
    let scene = Scene::new();
    scene.consumer().build().unwrap().start().await.unwrap();
    let scope = scene.store.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    scene.store.set_control(scope, ControlState::Paused, "ann", "a deploy").await.unwrap();
    scene.publish("1", "ok");
    let running = Running::new(scene.worker());
    running.until("the pause", |running| running.view.pause().is_some()).await;
    running.stop().await.unwrap();
    assert_eq!((scene.queue.stats().delivered, scene.effects().len()), (0, 0));
}
