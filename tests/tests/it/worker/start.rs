//! The refusals of a worker at its start, and the outages that it waits out.

use std::time::Duration;

use idem_core::{DedupConsumer, Effects, ErrorClass, Retention, Worker, internal::chain, worker::WorkerError};
use idem_testkit::{Fault, Operation, memory::QueueOptions};

use super::{
    captured::Captured,
    fixture::{self, Fixture, Running},
};

fn text(error: &WorkerError) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A name that is bound to another queue is refused, with both values.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_bound_to_another_queue_is_refused() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    super::fixture::drain(&fixture, fixture.worker()).await;
    let other = fixture.broker.create("other", QueueOptions::default()).unwrap();
    let consumer = fixture.consumer().build().unwrap();
    let error = Running::new(Worker::builder(consumer, other.source())).ended().await.unwrap_err();
    let text = text(&error);
    assert!(text.contains("memory/orders") && text.contains("memory/other") && text.contains("rebind"), "{text}");
}

/// The same where the consumer was started before it was given to a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_started_before_is_bound_by_its_worker_too() {
    let fixture = Fixture::new();
    let consumer = fixture.consumer().build().unwrap();
    consumer.start().await.unwrap();
    fixture.publish("1", "ok");
    super::fixture::drain(&fixture, fixture.worker_of(consumer)).await;
    let other = fixture.broker.create("other", QueueOptions::default()).unwrap();
    let consumer = fixture.consumer().build().unwrap();
    consumer.start().await.unwrap();
    let error = Running::new(Worker::builder(consumer, other.source())).ended().await.unwrap_err();
    assert!(text(&error).contains("memory/orders"), "{}", text(&error));
}

/// F8, G6: a broker that gives up before we do is refused.
#[tokio::test(flavor = "multi_thread")]
async fn f8_a_delivery_limit_below_our_attempts_is_refused() {
    let fixture = Fixture::with(QueueOptions::default().delivery_limit(3));
    let error = Running::new(fixture.worker()).ended().await.unwrap_err();
    let text = text(&error);
    assert!(text.contains("3 deliveries") && text.contains("3 attempts"), "{text}");
}

/// An unknown queue ends at once, and is named.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_queue_is_refused_by_name() {
    let fixture = Fixture::new();
    let consumer = fixture.consumer().build().unwrap();
    let error = Running::new(Worker::builder(consumer, fixture.broker.source("nowhere"))).ended().await.unwrap_err();
    assert!(matches!(error, WorkerError::Source(_)) && text(&error).contains("nowhere"), "{}", text(&error));
}

/// A database that cannot be reached is waited for, and then given up with its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_reached_is_waited_for() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    (0..3).for_each(|_| fixture.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Infrastructure)));
    super::fixture::drain(&fixture, fixture.worker()).await;
    let fixture = Fixture::new();
    (0..1_000).for_each(|_| fixture.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Infrastructure)));
    let error = Running::new(fixture.worker().startup_timeout(Duration::from_millis(50))).ended().await.unwrap_err();
    assert!(matches!(error, WorkerError::Unreachable { what: "the database", .. }), "{error:?}");
}

/// J13: what `build()` refuses, with field, value and rule.
#[tokio::test]
async fn j13_wrong_settings_are_refused_with_field_value_and_rule() {
    let fixture = Fixture::new();
    let consumer = || DedupConsumer::builder(fixture.store.clone(), "ledger").handler(fixture.script.clone());
    let refused = |error: idem_core::ConfigError| (error.field, error.value);
    assert_eq!(consumer().build().map_err(refused).unwrap_err(), ("effects", "not set".to_owned()));
    let outside = consumer().effects(Effects::Outside).build().map_err(refused).unwrap_err();
    assert_eq!(outside, ("handler_deadline", "not set".to_owned()));
    let short = fixture.consumer().retention(Retention::For(Duration::ZERO)).build().map_err(refused).unwrap_err();
    assert_eq!(short, ("retention", "0s".to_owned()));
    assert_eq!(fixture.consumer().lanes(0).build().map_err(refused).unwrap_err(), ("lanes", "0".to_owned()));
    let batch = fixture.worker().batch(0).build().map_err(refused).unwrap_err();
    assert_eq!(batch, ("batch", "0".to_owned()));
    let embedded = DedupConsumer::builder(idem_testkit::MemoryStore::embedded(), "ledger")
        .handler(fixture.script.clone())
        .effects(Effects::InTransaction)
        .lanes(2)
        .build();
    assert_eq!(embedded.map_err(refused).unwrap_err(), ("lanes", "2".to_owned()));
}

/// A49: a name that no start binds to a handler can be another program's too, whose messages would be skipped as duplicates.
#[tokio::test]
async fn a49_a_loop_of_ones_own_without_a_handlers_name_is_warned_of() {
    for (name, warned) in [(None, true), (Some("ledger-handler"), false)] {
        let (captured, _guard) = Captured::log(tracing::Level::WARN);
        let fixture = Fixture::new();
        let consumer = match name {
            Some(name) => fixture.consumer().handler_name(name),
            None => fixture.consumer(),
        };
        let consumer = consumer.build().unwrap();
        for _ in 0..2 {
            consumer.process(vec![fixture::message("1", "ok")]).await.unwrap();
        }
        let told = captured.lines().iter().filter(|line| line.contains("bound to no handler")).count();
        assert_eq!(told, usize::from(warned), "{:?}", captured.lines());
    }
}
