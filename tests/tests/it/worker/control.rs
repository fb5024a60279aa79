//! Running workers obey the controls that operators set.

use std::time::Duration;

use idem_core::{
    ConsumerName, Store as _, Tenant,
    config::RetryPolicy,
    consumer::Pause,
    store::{Bookkeeping, ControlState},
};
use idem_testkit::{Weather, memory::Rate};
use tokio::time::Instant;

use super::{
    captured::Captured,
    fixture::{Fixture, Running, within},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_consumer_takes_nothing_in_until_it_is_resumed() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    let running = Running::new(fixture.worker());
    within("the first message", fixture.queue.drained()).await;
    let scope =
        fixture.store.bookkeeping().scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    fixture.store.bookkeeping().set_control(scope, ControlState::Paused, "ann", "looking at something").await.unwrap();
    running.until("the pause", |running| running.view.pause().is_some()).await;
    let Some(Pause::Control(ControlState::Paused, why)) = running.view.pause() else { panic!("no pause") };
    assert_eq!(why, "ann: looking at something");
    fixture.store.bookkeeping().set_control(scope, ControlState::Running, "ann", "done").await.unwrap();
    fixture.publish("2", "ok");
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 2);
}

/// J58: a pause that was set before the start is obeyed before anything is received, and the log says so.
#[tokio::test]
async fn j58_a_consumer_that_is_paused_starts_paused_and_says_so() {
    let (captured, _guard) = Captured::log(tracing::Level::WARN);
    let fixture = Fixture::new();
    fixture.consumer().build().unwrap().start().await.unwrap();
    let scope =
        fixture.store.bookkeeping().scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    fixture.store.bookkeeping().set_control(scope, ControlState::Paused, "ann", "a deploy").await.unwrap();
    fixture.publish("1", "ok");
    let running = Running::new(fixture.worker());
    running.until("the pause", |running| running.view.pause().is_some()).await;
    running.stop().await.unwrap();
    assert_eq!((fixture.queue.stats().delivered, fixture.effects().len()), (0, 0));
    let lines = captured.lines();
    assert!(lines.iter().any(|line| line.contains("paused") && line.contains("ann: a deploy")), "{lines:?}");
}

async fn set(fixture: &Fixture, state: ControlState) {
    let scope =
        fixture.store.bookkeeping().scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    fixture.store.bookkeeping().set_control(scope, state, "ann", "a table is changed").await.unwrap();
}

async fn paused(fixture: &Fixture, running: &Running) {
    set(fixture, ControlState::Paused).await;
    running.until("the pause", |running| running.view.pause().is_some()).await;
}

/// B23: a receive that was waiting when the consumer was paused takes nothing in.
///
/// On one thread, so that a task that a message wakes has had its turn when this task has it again.
#[tokio::test]
async fn b23_a_receive_that_is_under_way_takes_nothing_in_once_the_consumer_is_paused() {
    let fixture = Fixture::new();
    fixture.publish("first", "ok");
    let running = Running::new(fixture.worker());
    within("the first message", fixture.queue.drained()).await;
    paused(&fixture, &running).await;
    (0..50).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((fixture.queue.stats().delivered, fixture.effects().len()), (1, 1));
    set(&fixture, ControlState::Running).await;
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 51);
}

/// B23: messages in hand when the consumer is paused are not begun. The unit under way is finished and settled.
#[tokio::test(flavor = "multi_thread")]
async fn b23_lanes_begin_nothing_while_the_consumer_is_paused() {
    let fixture = Fixture::new();
    fixture.publish("first", "block");
    (0..20).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let running = Running::new(fixture.worker());
    fixture.script.blocked().await;
    running.until("the rest in hand", |running| running.view.load().messages == 21).await;
    paused(&fixture, &running).await;
    fixture.script.unblock();
    running.until("the end of the unit under way", |running| running.view.load().messages <= 20).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.script.runs(), ["first"]);
    assert_eq!(fixture.counted(), [("first".to_owned(), 1)].into());
}

/// G15: messages that a paused worker has not begun go back to a broker that counts held ones, from the lanes too, and come
/// again when the consumer is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn g15_a_long_pause_gives_back_what_was_not_begun() {
    let fixture = Fixture::new();
    fixture.publish("first", "block");
    (0..20).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let running = Running::new(fixture.worker().in_flight(150).give_back_after(Duration::from_millis(20)));
    fixture.script.blocked().await;
    running.until("the rest in hand", |running| running.view.load().messages == 21).await;
    paused(&fixture, &running).await;
    fixture.script.unblock();
    within("giving back", fixture.queue.until(|stats| stats.in_flight == 0)).await;
    assert_eq!(fixture.script.runs(), ["first"]);
    set(&fixture, ControlState::Running).await;
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 21);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// G15: held messages go back too, whether they were held before or failed only then: they would stay in hand for as long as
/// the pause lasts, and the broker counts that.
#[tokio::test(flavor = "multi_thread")]
async fn g15_what_is_held_goes_back_in_a_long_pause() {
    let fixture = Fixture::new();
    fixture.publish("held", "fail");
    fixture.publish("running", "block, then fail");
    let hour = Duration::from_secs(3_600);
    let worker = fixture.worker().retry(RetryPolicy::new(3, hour, hour)).give_back_after(Duration::from_millis(20));
    let running = Running::new(worker);
    fixture.script.blocked().await;
    assert_eq!(fixture.script.runs(), ["held", "running"]);
    paused(&fixture, &running).await;
    fixture.script.unblock();
    within("giving back", fixture.queue.until(|stats| stats.in_flight == 0)).await;
    fixture.script.mend();
    set(&fixture, ControlState::Running).await;
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted(), [("held".to_owned(), 1), ("running".to_owned(), 1)].into());
}

/// G15: so does an outage of the database, which charges no attempts: with one attempt each, nothing is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn g15_a_long_outage_gives_back_what_was_not_begun_and_charges_nobody() {
    let fixture = Fixture::new();
    let retry = RetryPolicy::new(1, Duration::from_millis(1), Duration::from_millis(5));
    let running = Running::new(fixture.worker().retry(retry).give_back_after(Duration::from_millis(20)));
    running.until("the start", |_| fixture.queue.stats().consumers == 1).await;
    fixture.store.weather(Weather { connections_lost: Rate::Always, ..Weather::default() });
    (0..20).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    within("giving back", fixture.queue.until(|stats| stats.in_flight == 0 && stats.released > 0)).await;
    fixture.store.weather(Weather::default());
    within("draining the queue", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((fixture.counted().len(), summary.dead_lettered), (20, 0));
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// G15: a database that answers but cannot take a claim is not back. Its outage costs each message one delivery, not one
/// every few seconds, which a delivery limit would count.
#[tokio::test(flavor = "multi_thread")]
async fn g15_a_database_that_cannot_claim_is_not_called_back() {
    let fixture = Fixture::new();
    fixture.publish("first", "ok");
    let running = Running::new(fixture.worker().give_back_after(Duration::from_millis(20)));
    within("the first message", fixture.queue.drained()).await;
    fixture.store.hide_records(true);
    let origin = fixture.publish("second", "ok");
    within("giving back", fixture.queue.until(|stats| stats.in_flight == 0 && stats.released > 0)).await;
    // Ten times as long as it takes to look again and to give back.
    let since = Instant::now();
    running.until("a while", |_| since.elapsed() > Duration::from_millis(500)).await;
    assert_eq!(fixture.queue.history(&origin).deliveries, 1);
    assert!(running.view.pause().is_some());
    fixture.store.hide_records(false);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 2);
}
