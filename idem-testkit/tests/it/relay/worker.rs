//! The relay in a worker.

use std::time::Duration;

use idem_core::{
    Store as _, Tenant, Worker,
    store::{Bookkeeping as _, ControlState},
    worker::WorkerBuilder,
};
use idem_testkit::{
    MemoryStore,
    memory::{Broker, MemorySource, QueueOptions},
    message,
};
use tokio::time::{Instant, sleep};

use super::fixture::{Fixture, Topic};

fn worker(fixture: &Fixture, broker: &Broker, topic: &Topic) -> WorkerBuilder<MemoryStore, MemorySource> {
    Worker::builder(fixture.consumer.clone(), broker.source("in"))
        .relay(|relay| relay.to("a", topic.clone()).named("worker"))
}

fn broker() -> Broker {
    let broker = Broker::new();
    broker.create("in", QueueOptions::default()).unwrap();
    broker
}

fn send(broker: &Broker, number: u32) {
    let body = number.to_string();
    let payload = serde_json::to_vec(&("a", "", &body)).unwrap();
    broker.queue("in").unwrap().publish(message(&format!("key-{number}"), payload)).unwrap();
}

/// A run that is to end when idle sends what its consumer has committed, and counts it.
#[tokio::test(start_paused = true)]
async fn until_idle_waits_for_events_and_counts_them() {
    let (fixture, broker, topic) = (Fixture::new(), broker(), Topic::new());
    topic.away(true);
    (0..30).for_each(|number| send(&broker, number));
    let mended = topic.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(60)).await;
        mended.away(false);
    });
    let begun = Instant::now();
    let worker = worker(&fixture, &broker, &topic).until_idle(Duration::from_secs(5)).build().unwrap();
    let view = worker.view();
    let summary = worker.run(std::future::pending()).await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!((summary.processed, summary.published), (30, 30));
    assert_eq!(view.summary().published, 30);
    assert_eq!((topic.set().len(), fixture.store.events().len()), (30, 0));
}

/// A commit wakes the relay: an event does not wait for the next look at the outbox.
#[tokio::test(start_paused = true)]
async fn a_commit_of_the_worker_wakes_its_relay() {
    let (fixture, broker, topic) = (Fixture::new(), broker(), Topic::new());
    let stop = idem_core::CancellationToken::new();
    let run = tokio::spawn(worker(&fixture, &broker, &topic).build().unwrap().run(stop.clone().cancelled_owned()));
    // The relay looks once a second by now.
    sleep(Duration::from_secs(20)).await;
    for number in 0..5 {
        send(&broker, number);
        let sent = Instant::now();
        while topic.arrived().len() <= number as usize {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(sent.elapsed() < Duration::from_millis(100), "{:?}", sent.elapsed());
        sleep(Duration::from_secs(3)).await;
    }
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// A consumer that is paused or halted takes nothing in, and its worker's relay goes on: what others have committed is sent.
#[tokio::test(start_paused = true)]
async fn a_relay_goes_on_while_its_workers_consumer_is_paused_or_halted() {
    let (fixture, broker, topic) = (Fixture::new(), broker(), Topic::new());
    let stop = idem_core::CancellationToken::new();
    let worker = worker(&fixture, &broker, &topic).build().unwrap();
    let view = worker.view();
    let run = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    sleep(Duration::from_secs(1)).await;
    let books = fixture.store.bookkeeping();
    let scope = books.scope(fixture.consumer.name(), &Tenant::default()).await.unwrap();
    for (number, state) in [(0, ControlState::Paused), (1, ControlState::Halted)] {
        books.set_control(scope, state, "ada", "a migration").await.unwrap();
        while view.pause().is_none() {
            sleep(Duration::from_millis(100)).await;
        }
        fixture.commit_many("a", number..number + 1).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(topic.arrived().len(), number as usize + 1, "{state:?}");
    }
    stop.cancel();
    let _ = run.await.unwrap();
}

/// A stop sends what was committed before it, also where that is much, and does not wait for a destination that is away.
#[tokio::test(start_paused = true)]
async fn a_drain_sends_what_was_committed_and_waits_for_no_outage() {
    let (fixture, broker, topic) = (Fixture::new(), broker(), Topic::new());
    let stop = idem_core::CancellationToken::new();
    let run = tokio::spawn(worker(&fixture, &broker, &topic).build().unwrap().run(stop.clone().cancelled_owned()));
    sleep(Duration::from_secs(1)).await;
    fixture.commit_many("a", 0..2_000).await;
    stop.cancel();
    run.await.unwrap().unwrap();
    assert_eq!((topic.arrived().len(), fixture.store.events().len()), (2_000, 0));

    topic.away(true);
    let stop = idem_core::CancellationToken::new();
    let consumer = Fixture { store: fixture.store.clone(), ..Fixture::new() };
    let run = tokio::spawn(worker(&consumer, &broker, &topic).build().unwrap().run(stop.clone().cancelled_owned()));
    sleep(Duration::from_secs(1)).await;
    stop.cancel();
    let begun = Instant::now();
    run.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_worker_refuses_a_relay_that_breaks_a_rule() {
    let (fixture, broker) = (Fixture::new(), broker());
    let worker = Worker::builder(fixture.consumer.clone(), broker.source("in")).relay(|relay| relay);
    assert!(worker.build().unwrap_err().to_string().contains("a relay has one at least"));
}
