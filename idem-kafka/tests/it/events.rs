//! Events to a topic.

use std::time::Duration;

use idem_core::{
    Bytes, Message,
    key::{JsonMember, KeySource, default_key_source},
    message::OrderingKey,
    outbox::{CloudEvents, DestinationLimits, EventError, EventPublisher, OutgoingEvent},
};
use idem_kafka::{KafkaOptions, KafkaPublisher, Reset};
use idem_testkit::outgoing_event;
use rdkafka::mocking::MockCluster;
use tokio::time::Instant;

use crate::{
    cluster::{BROKERS, Topic, fast},
    member::{join, within},
};

fn publisher(brokers: &str, topic: &str) -> KafkaPublisher {
    KafkaPublisher::new(&KafkaOptions::new(brokers, "purchases", "ledger"), topic).unwrap()
}

async fn publish(publisher: &KafkaPublisher, events: &[OutgoingEvent]) -> Vec<Result<(), EventError>> {
    let events: Vec<_> = events.iter().collect();
    within("publishing", publisher.publish_events(&events)).await
}

fn key_of(message: &Message) -> String {
    default_key_source().key(message).unwrap().unwrap().as_str().to_owned()
}

/// O26: the event is read back, under the key by which a consumer that runs idem knows it.
#[tokio::test(flavor = "multi_thread")]
async fn o26_an_event_is_read_back_by_its_key() {
    let topic = Topic::new(1).await;
    let mut event = outgoing_event("event-1", "{\"cents\":1}");
    event.ordering_key = Some(OrderingKey::new("account-7"));
    let binary = publisher(&BROKERS, &topic.name);
    let structured = publisher(&BROKERS, &topic.name).cloud_events(CloudEvents::structured());
    for publisher in [binary, structured] {
        assert!(publish(&publisher, std::slice::from_ref(&event)).await[0].is_ok());
    }
    let held = join(topic.options()).await.take(2).await;
    let (binary, structured) = (&held[0].message, &held[1].message);
    for message in [binary, structured] {
        assert_eq!(key_of(message), "event-1");
        assert_eq!(message.record_key().unwrap(), "account-7");
        assert_eq!(message.headers().text("idemcause"), Some("order-1"));
    }
    assert_eq!(binary.payload().unwrap(), "{\"cents\":1}");
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", "event-1"),
        ("ce_source", "/idem/ledger"),
        ("ce_type", "Told"),
        ("ce_idempotencykey", "event-1"),
        ("ce_correlationid", "order-1"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(binary.headers().text(name), Some(value), "{name}");
    }
    assert_eq!(structured.headers().text("content-type"), Some("application/cloudevents+json"));
    let in_payload = JsonMember::field("idempotencykey").key(structured).unwrap().unwrap();
    assert_eq!(in_payload.as_str(), "event-1");
    let body = std::str::from_utf8(structured.payload().unwrap()).unwrap();
    assert!(body.contains("\"data\":{\"cents\":1}"), "{body}");
}

/// Those of one ordering key are in the topic in the order in which they were given.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_key_arrive_in_order() {
    let topic = Topic::new(3).await;
    let events: Vec<OutgoingEvent> = (0..600)
        .map(|number| {
            let mut event = outgoing_event(&format!("event-{number}"), number.to_string());
            event.ordering_key = Some(OrderingKey::new(format!("account-{}", number % 5)));
            event
        })
        .collect();
    let publisher = publisher(&BROKERS, &topic.name);
    assert!(publish(&publisher, &events).await.iter().all(Result::is_ok));
    let held = join(topic.options()).await.take(600).await;
    let mut last = [None; 5];
    for delivery in &held {
        let number: usize = std::str::from_utf8(delivery.message.payload().unwrap()).unwrap().parse().unwrap();
        assert!(last[number % 5].replace(number) < Some(number), "{number}");
    }
}

/// O80: keys lie where a Java client puts them. The partitions are those in which a Java producer wrote these keys.
#[tokio::test(flavor = "multi_thread")]
async fn o80_a_key_is_in_the_partition_of_a_java_client() {
    let topic = Topic::new(3).await;
    let by_java = [
        ("00000", 1),
        ("00001", 2),
        ("00002", 0),
        ("00003", 2),
        ("00009", 1),
        ("Küche\\7", 2),
        ("a b", 1),
        ("日本", 0),
    ];
    let events: Vec<OutgoingEvent> = by_java
        .iter()
        .map(|(key, partition)| {
            let mut event = outgoing_event(key, partition.to_string());
            event.ordering_key = Some(OrderingKey::new(*key));
            event
        })
        .collect();
    assert!(publish(&publisher(&BROKERS, &topic.name), &events).await.iter().all(Result::is_ok));
    for delivery in join(topic.options()).await.take(by_java.len()).await {
        let (key, wanted) = (key_of(&delivery.message), delivery.message.payload().unwrap());
        let partition = delivery.message.origin().as_str().rsplit('/').nth(1).unwrap();
        assert_eq!(partition.as_bytes(), wanted, "{key}");
    }
}

/// O8: the broker refuses a batch as a whole, but only the event that is too large by itself is at fault. The others of its call
/// are confirmed, and are in the topic once.
#[tokio::test(flavor = "multi_thread")]
async fn o8_an_event_that_is_too_large_is_told_from_the_others() {
    let small = Topic::with(1, &[("max.message.bytes", "1500")]).await;
    let uncompressed = KafkaOptions::new(&*BROKERS, "purchases", "ledger").set("compression.type", "none");
    let publisher = KafkaPublisher::new(&uncompressed, &small.name).unwrap();
    let of_bytes = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
    let mut events: Vec<_> = (0..20).map(|number| outgoing_event(&format!("event-{number}"), of_bytes(200))).collect();
    events.insert(7, outgoing_event("too-large", of_bytes(5_000)));
    let mut answers = publish(&publisher, &events).await;
    let too_large = answers.remove(7);
    assert!(
        matches!(&too_large, Err(EventError::DoesNotFit { problem }) if problem.contains("max.message.bytes")),
        "{too_large:?}"
    );
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let next = publish(&publisher, &[outgoing_event("last", "{}")]).await;
    assert!(next[0].is_ok(), "{next:?}");
    let member = join(small.options()).await;
    let held = member.take(21).await;
    let mut keys: Vec<_> = held.iter().map(|delivery| key_of(&delivery.message)).collect();
    assert_eq!(keys.pop().unwrap(), "last", "nothing was sent twice");
    keys.sort();
    let mut sent: Vec<_> = (0..20).map(|number| format!("event-{number}")).collect();
    sent.sort();
    assert_eq!(keys, sent);
}

/// O107: what the library refuses before it asks any broker, workers that have no relay learn from the destination's row.
#[tokio::test(flavor = "multi_thread")]
async fn o107_a_relay_leaves_what_the_library_takes() {
    let topic = Topic::new(1).await;
    let options = KafkaOptions::new(&*BROKERS, "purchases", "ledger").set("message.max.bytes", "5000");
    let publisher = KafkaPublisher::new(&options, &topic.name).unwrap();
    assert_eq!(publisher.limits().await, Some(DestinationLimits::new("kafka").message_bytes_max(Some(5_000))));
    // It would become far smaller on its way.
    let answers = publish(&publisher, &[outgoing_event("too-large", "x".repeat(5_001))]).await;
    assert!(matches!(&answers[0], Err(EventError::DoesNotFit { .. })), "{answers:?}");
    let structured = publisher.cloud_events(CloudEvents::structured());
    assert!(structured.limits().await.is_some_and(|limits| limits.is_structured));
}

/// A topic that is not there concerns all of its events, and charges none.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_is_refused_in_time() {
    let begun = Instant::now();
    let nowhere = publisher(&BROKERS, "idem-no-such-topic");
    for answer in publish(&nowhere, &[outgoing_event("event-1", "{}"), outgoing_event("event-2", "{}")]).await {
        let Err(EventError::Refused { problem, .. }) = answer else { panic!("{answer:?}") };
        assert!(problem.contains("idem-no-such-topic"), "{problem}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// O9, O100: while the broker is away an event is given up in time, as an outage; when it is back the next try is confirmed, and
/// nothing is sent by itself meanwhile. An event before which no broker had answered was not sent.
#[tokio::test(flavor = "multi_thread")]
async fn o9_a_broker_that_is_away_is_an_outage_and_comes_back() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("events", 1, 1).unwrap();
    let publisher = publisher(&cluster.bootstrap_servers(), "events");
    assert!(publish(&publisher, &[outgoing_event("event-0", "0")]).await[0].is_ok());
    cluster.broker_down(1).unwrap();
    // A relay whose deadline passes drops the call, and the record that the library still has.
    let hanging = outgoing_event("event-2", "2");
    let dropped = tokio::time::timeout(Duration::from_millis(200), publisher.publish_events(&[&hanging])).await;
    assert!(dropped.is_err(), "{dropped:?}");
    publisher.purge().await;
    let begun = Instant::now();
    let away = publish(&publisher, &[outgoing_event("event-1", "1")]).await;
    assert!(matches!(away[0], Err(EventError::Later { may_be_sent: true, counted: false, .. })), "{away:?}");
    assert!((5..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let still_away = publish(&publisher, &[outgoing_event("event-4", "4")]).await;
    assert!(
        matches!(still_away[0], Err(EventError::Later { may_be_sent: false, counted: false, .. })),
        "{still_away:?}"
    );
    cluster.broker_up(1).unwrap();
    let back = publish(&publisher, &[outgoing_event("event-3", "3")]).await;
    assert!(back[0].is_ok(), "{back:?}");
    let options = KafkaOptions::new(cluster.bootstrap_servers(), "events", "ledger");
    let member = join(fast(options).reset(Reset::Earliest)).await;
    let held = member.take(2).await;
    assert_eq!(held.iter().map(|delivery| key_of(&delivery.message)).collect::<Vec<_>>(), ["event-0", "event-3"]);
    member.acknowledge(held).await;
    member.idle().await;
}

/// O69: a topic that is not there is seen before the first event, and nothing is sent or made by the look.
#[tokio::test(flavor = "multi_thread")]
async fn o69_a_topic_that_is_not_there_is_seen_without_an_event() {
    let topic = Topic::new(1).await;
    assert!(within("a look", publisher(&BROKERS, &topic.name).look()).await.is_ok());
    let nowhere = publisher(&BROKERS, &format!("{}-none", topic.name));
    for _ in 0..2 {
        let refused = within("a look", nowhere.look()).await;
        assert!(
            matches!(&refused, Err(EventError::Refused { problem, .. }) if problem.contains("-none")),
            "{refused:?}"
        );
    }
}
