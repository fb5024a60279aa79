//! Dead letters to a topic (E15, E17, E18).

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes, Message, SourceError,
    dead_letter::{DeadLetter, Publisher},
    hash::PayloadHash,
    key::{KeySource, default_key_source},
    message::Headers,
};
use idem_kafka::{KafkaOptions, KafkaPublisher, Reset};
use rdkafka::{
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::{
    cluster::{BROKERS, Topic, fast},
    member::{join, within},
};

pub(crate) fn dead_letter(message: Message) -> DeadLetter {
    idem_testkit::dead_letter(message, "purchases/0/7")
}

fn publisher(brokers: &str, topic: &str) -> KafkaPublisher {
    KafkaPublisher::new(&KafkaOptions::new(brokers, "purchases", "ledger"), topic).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_carries_its_message_and_why_it_was_set_aside() {
    let topic = Topic::new(1).await;
    let mut headers = Headers::default();
    for (name, value) in [("trace", Some("1")), ("idempotencykey", Some("forged")), ("trace", None)] {
        headers.push(name, value.map(|value| Bytes::from_static(value.as_bytes())));
    }
    let message = Message::new("{}").with_headers(headers).with_record_key("customer-1");
    let publisher = publisher(&BROKERS, &topic.name);
    within("publishing", publisher.publish(&dead_letter(message))).await.unwrap();
    within("publishing", publisher.publish(&dead_letter(Message::tombstone()))).await.unwrap();
    let held = join(topic.options()).await.take(2).await;
    let (letter, tombstone) = (&held[0].message, &held[1].message);
    assert_eq!(letter.payload().unwrap(), "{}");
    assert_eq!(letter.record_key().unwrap(), "customer-1");
    let headers: Vec<_> = letter.headers().iter().map(|(name, value)| (name, value.map(<[u8]>::to_vec))).collect();
    let text = |name, value: &str| (name, Some(value.as_bytes().to_vec()));
    let expected = [
        text("trace", "1"),
        ("trace", None),
        text("idem-reason", "conflict"),
        text("idem-error", "it was used before"),
        text("idem-attempts", "2"),
        text("idem-consumer", "ledger"),
        text("idem-origin", "purchases/0/7"),
        text("idempotencykey", "order-1"),
    ];
    assert_eq!(headers, expected);
    assert_eq!((tombstone.payload(), tombstone.record_key()), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_what_the_topic_refuses_is_not_published() {
    let small = Topic::with(1, &[("max.message.bytes", "1000")]).await;
    let letter = dead_letter(Message::new(noise(2_000)));
    let refused = within("publishing", publisher(&BROKERS, &small.name).publish(&letter)).await.unwrap_err();
    assert!(matches!(refused, SourceError::DoesNotFit { .. }) && refused.to_string().contains("max.message.bytes"));
    let nowhere = publisher(&BROKERS, "idem-no-such-topic");
    let refused = within("publishing", nowhere.publish(&letter)).await.unwrap_err();
    assert!(matches!(refused, SourceError::Refused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("idem-no-such-topic"), "{refused}");
}

/// The broker answers late and with errors that pass: it counts as published once it is, and it is there once.
#[tokio::test(flavor = "multi_thread")]
async fn e15_a_dead_letter_counts_as_published_only_once_it_is_confirmed() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("dead", 1, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let publisher = publisher(&brokers, "dead");
    let letter = dead_letter(Message::new("{}"));
    within("publishing", publisher.publish(&letter)).await.unwrap();
    cluster.broker_down(1).unwrap();
    let mut publishing = publisher.publish(&letter);
    // Polled while the broker is away: it waits, so the dead letter has not been confirmed.
    let polled = poll_fn(|context| Poll::Ready(publishing.as_mut().poll(context).is_pending())).await;
    assert!(polled, "confirmed by nobody");
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut publishing).await.is_err(), "confirmed by nobody");
    let passing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    cluster.request_errors(RDKafkaApiKey::Produce, &[passing, passing]);
    cluster.broker_up(1).unwrap();
    within("publishing", publishing).await.unwrap();
    let member = join(fast(KafkaOptions::new(&brokers, "dead", "ledger")).reset(Reset::Earliest)).await;
    let held = member.take(2).await;
    member.acknowledge(held).await;
    member.idle().await;
}

/// Bytes that cannot be compressed.
fn noise(bytes: usize) -> Vec<u8> {
    (0_u64..).flat_map(|n| *PayloadHash::of(&n.to_be_bytes()).as_bytes()).take(bytes).collect()
}

/// B-M4: a record that was consumed compressed is larger than any limit says, and is published all the same. The broker
/// decides which are too large, and a refusal concerns no other dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn e17_a_dead_letter_fits_where_its_message_did() {
    let topic = Topic::with(1, &[("max.message.bytes", "1048588")]).await;
    let member = join(topic.options()).await;
    let options = KafkaOptions::new(&*BROKERS, "purchases", "ledger");
    let publisher = KafkaPublisher::new(&options, &topic.name).unwrap();
    let large = format!(r#"{{"items":"{}"}}"#, "0123456789".repeat(140_000));
    within("publishing", publisher.publish(&dead_letter(Message::new(large.clone())))).await.unwrap();
    let refused =
        within("publishing", publisher.publish(&dead_letter(Message::new(noise(1 << 20))))).await.unwrap_err();
    assert!(matches!(refused, SourceError::DoesNotFit { .. }), "{refused:?}");
    within("publishing", publisher.publish(&dead_letter(Message::new("{}")))).await.unwrap();
    let held = member.take(2).await;
    assert_eq!(
        (held[0].message.payload().unwrap(), held[1].message.payload().unwrap()),
        (&Bytes::from(large.clone()), &Bytes::from("{}"))
    );
    let plain = KafkaPublisher::new(&options.set("compression.type", "none"), &topic.name).unwrap();
    let refused = within("publishing", plain.publish(&dead_letter(Message::new(large)))).await.unwrap_err();
    assert!(matches!(refused, SourceError::DoesNotFit { .. }), "the setting reached the publisher: {refused:?}");
    assert_eq!(member.attached.message_bytes_max, Some(1_048_588 - 61), "so 1 MiB as a limit warns of nothing");
}

/// A producer with idempotence that has met a fatal error refuses everything from then on, so another takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn e17_a_producer_that_failed_for_good_is_replaced() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("dead", 1, 1).unwrap();
    let publisher = publisher(&cluster.bootstrap_servers(), "dead");
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[denied]);
    let letter = dead_letter(Message::new("{}"));
    assert!(within("publishing", publisher.publish(&letter)).await.is_err());
    within("publishing", publisher.publish(&letter)).await.unwrap();
}

/// The properties by which a consumer knows a message.
fn seen(message: &Message) -> (Option<String>, Option<PayloadHash>, Option<Bytes>, Option<Bytes>) {
    let key = default_key_source().key(message).unwrap().map(|key| key.as_str().to_owned());
    let payload = message.payload().cloned();
    (
        key,
        payload.as_ref().map(|payload| PayloadHash::of(payload)),
        payload,
        message.record_key().map(|key| Bytes::copy_from_slice(key)),
    )
}

/// Headers but for idem's own.
fn own(message: &Message) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in message.headers().iter().filter(|(name, _)| !name.starts_with("idem-")) {
        headers.push(name, value.map(Bytes::copy_from_slice));
    }
    headers
}

/// B-M8: a dead letter that an operator copies back is the message that it was, with idem's headers or without them.
#[tokio::test(flavor = "multi_thread")]
async fn e18_a_dead_letter_that_is_shovelled_back_is_the_same_message() {
    let (topic, dead) = (Topic::new(1).await, Topic::new(1).await);
    let mut headers = Headers::default();
    for (name, value) in [
        ("ce_type", Some(&b"purchase.made"[..])),
        ("idempotencykey", Some(b"order-1")),
        ("raw", Some(b"\xff\x00")),
        ("trace", Some(b"1")),
        ("trace", None),
        ("empty", Some(b"")),
    ] {
        headers.push(name, value.map(Bytes::from_static));
    }
    let record = || Message::new(r#"{"cents":1}"#).with_record_key("customer-1").with_headers(headers.clone());
    topic.publish(record()).await.unwrap();
    topic.publish(Message::tombstone().with_record_key("customer-1").with_headers(headers.clone())).await.unwrap();
    let (member, reader) = (join(topic.options()).await, join(dead.options()).await);
    let publisher = publisher(&BROKERS, &dead.name);
    for first in member.take(2).await {
        let first = first.message;
        let letter = DeadLetter { message: first.clone(), ..dead_letter(first.clone()) };
        within("publishing", publisher.publish(&letter)).await.unwrap();
        let published = reader.take(1).await.remove(0).message;
        let time = first.sent_at().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
        assert_eq!(published.headers().text("idem-timestamp"), Some(&*time));
        for headers in [published.headers().clone(), own(&published)] {
            let stripped = published.payload().map_or_else(Message::tombstone, |payload| Message::new(payload.clone()));
            let copy = stripped.with_headers(headers).with_record_key(published.record_key().unwrap().to_vec());
            topic.publish(copy).await.unwrap();
            let back = member.take(1).await.remove(0).message;
            assert_eq!(seen(&back), seen(&first));
            assert_eq!((back.message_type(), own(&back)), (first.message_type(), own(&first)));
        }
    }
}
