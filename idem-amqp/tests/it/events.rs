//! Events to a queue.

use std::time::Duration;

use idem_amqp::AmqpPublisher;
use idem_core::{
    Bytes, Message,
    key::{KeySource, default_key_source},
    message::OrderingKey,
    outbox::{CloudEvents, EventError, EventPublisher, OutgoingEvent},
};
use idem_testkit::outgoing_event;
use lapin::types::{AMQPValue, LongString};
use tokio::time::Instant;

use crate::{
    broker::{Kind, Queue},
    member::{join, within},
    own_server::{MESSAGE_MAX, OwnServer},
};

fn publisher(queue: &Queue, to: &str) -> AmqpPublisher {
    AmqpPublisher::new(&queue.options(), to).unwrap()
}

async fn publish(publisher: &AmqpPublisher, events: &[OutgoingEvent]) -> Vec<Result<(), EventError>> {
    let events: Vec<_> = events.iter().collect();
    within("publishing", publisher.publish_events(&events)).await
}

fn key_of(message: &Message) -> String {
    default_key_source().key(message).unwrap().unwrap().as_str().to_owned()
}

/// O26: the event is read back, under the key by which a consumer that runs idem knows it.
#[tokio::test(flavor = "multi_thread")]
async fn o26_an_event_is_read_back_by_its_key() {
    let queue = Queue::new(Kind::Quorum).await;
    let mut event = outgoing_event("event-1", "{\"cents\":1}");
    for (name, value) in [("region", "eu"), ("CC", "elsewhere"), ("correlation-id", "c-1")] {
        event.headers.push(name, Some(value.into()));
    }
    let binary = publisher(&queue, &queue.name);
    let structured = publisher(&queue, &queue.name).cloud_events(CloudEvents::structured());
    for publisher in [binary, structured] {
        assert!(publish(&publisher, std::slice::from_ref(&event)).await[0].is_ok());
    }
    let held = join(&queue.options()).await.take_over_revocations(2).await;
    let (binary, structured) = (&held[0].message, &held[1].message);
    for message in [binary, structured] {
        assert_eq!((key_of(message).as_str(), message.id()), ("event-1", Some("event-1")));
        assert_eq!((message.message_type(), message.sent_at()), (Some("Told"), Some(event.created_at)));
        assert_eq!(message.headers().text("idemcause"), Some("order-1"));
        assert_eq!(message.headers().text("CC"), None);
    }
    assert_eq!(binary.payload().unwrap(), "{\"cents\":1}");
    for (name, value) in [
        ("cloudEvents_specversion", "1.0"),
        ("cloudEvents_id", "event-1"),
        ("cloudEvents_source", "/idem/ledger"),
        ("cloudEvents_type", "Told"),
        ("cloudEvents_idempotencykey", "event-1"),
        ("cloudEvents_correlationid", "order-1"),
        ("content-type", "application/json"),
        ("correlation-id", "c-1"),
        ("region", "eu"),
    ] {
        assert_eq!(binary.headers().text(name), Some(value), "{name}");
    }
    assert_eq!(structured.headers().text("content-type"), Some("application/cloudevents+json"));
    let body: serde_json::Value = structured.json().unwrap();
    assert_eq!((&body["idempotencykey"], &body["data"]["cents"]), (&"event-1".into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_key_arrive_in_order() {
    let queue = Queue::new(Kind::Classic).await;
    let events: Vec<OutgoingEvent> = (0..200)
        .map(|number| {
            let mut event = outgoing_event(&format!("event-{number}"), number.to_string());
            event.ordering_key = Some(OrderingKey::new("account-7"));
            event
        })
        .collect();
    assert!(publish(&publisher(&queue, &queue.name), &events).await.iter().all(Result::is_ok));
    let held = join(&queue.options()).await.take_over_revocations(200).await;
    let payloads: Vec<_> = held.iter().map(|delivery| delivery.message.payload().unwrap().clone()).collect();
    assert_eq!(payloads, (0..200).map(|number| Bytes::from(number.to_string())).collect::<Vec<_>>());
}

/// O8: the broker closes the channel over one that is too large, with all that are under way on it; each gets its own
/// result.
#[tokio::test(flavor = "multi_thread")]
async fn o8_an_event_that_is_too_large_is_told_from_the_others() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    let mut events: Vec<_> = (0..20).map(|number| outgoing_event(&format!("event-{number}"), "{}")).collect();
    events[7].payload = vec![b'x'; MESSAGE_MAX + 1].into();
    let publisher = publisher(&queue, &queue.name);
    let answers = publish(&publisher, &events).await;
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Ok(()) => assert_ne!(number, 7),
            Err(EventError::DoesNotFit { problem }) => {
                assert!(number == 7 && problem.contains("max_message_size"), "{number}: {problem}");
            }
            other => panic!("event {number}: {other:?}"),
        }
    }
    assert!(publish(&publisher, &[outgoing_event("event-20", "{}")]).await[0].is_ok());
}

/// A queue that is not there concerns all of its events, and charges none.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_queue_is_refused() {
    let queue = Queue::new(Kind::Classic).await;
    let nowhere = publisher(&queue, "idem-no-such-queue");
    for answer in publish(&nowhere, &[outgoing_event("event-1", "{}"), outgoing_event("event-2", "{}")]).await {
        let Err(EventError::Refused { problem, .. }) = answer else { panic!("{answer:?}") };
        assert!(problem.contains("idem-no-such-queue"), "{problem}");
    }
}

/// G8: a refusal by the queue is an outage: it is full for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn g8_an_event_that_a_full_queue_refuses_is_not_confirmed() {
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString(LongString::from("reject-publish"))),
    ];
    let queue = Queue::with(Kind::Classic, &full).await;
    let events: Vec<_> = (0..3).map(|number| outgoing_event(&format!("event-{number}"), "{}")).collect();
    let publisher = publisher(&queue, &queue.name);
    let answers = publish(&publisher, &events).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    assert!(matches!(answers[2], Err(EventError::Later { counted: false, .. })), "{answers:?}");
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(1).await;
    member.acknowledge(held).await;
    assert!(publish(&publisher, &events[2..]).await[0].is_ok());
}

/// O9, O100: while the broker does not answer, events are given up in time, as an outage; when it is back the next try is
/// confirmed. An event before which the broker had not answered was not sent.
#[tokio::test(flavor = "multi_thread")]
async fn o9_a_broker_that_is_away_is_an_outage_and_comes_back() {
    let queue = Queue::new(Kind::Classic).await;
    let publisher = publisher(&queue, &queue.name);
    let event = [outgoing_event("event-1", "{}")];
    assert!(publish(&publisher, &event).await[0].is_ok());
    queue.proxy.freeze();
    let begun = Instant::now();
    let away = publish(&publisher, &event).await;
    assert!(matches!(away[0], Err(EventError::Later { may_be_sent: false, counted: false, .. })), "{away:?}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    queue.proxy.cut().await;
    queue.proxy.thaw();
    assert!(publish(&publisher, &event).await[0].is_ok());
}

/// O69: a queue that is not there is seen before the first event, and nothing is sent or made by the look.
#[tokio::test(flavor = "multi_thread")]
async fn o69_a_queue_that_is_not_there_is_seen_without_an_event() {
    let queue = Queue::new(Kind::Classic).await;
    let there = publisher(&queue, &queue.name);
    assert!(within("a look", there.look()).await.is_ok());
    assert!(publish(&there, &[outgoing_event("event-1", "{}")]).await[0].is_ok());
    let nowhere = publisher(&queue, &format!("{}-none", queue.name));
    for _ in 0..2 {
        let refused = within("a look", nowhere.look()).await;
        assert!(
            matches!(&refused, Err(EventError::Refused { problem, .. }) if problem.contains("does not exist")),
            "{refused:?}"
        );
    }
}
