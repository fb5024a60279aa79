//! Dead letters to a topic (E15).

use std::{future::poll_fn, task::Poll, time::Duration};

use idem_core::{Bytes, DeadLetter, Headers, Message, Publisher, SourceError};
use idem_kafka::{KafkaOptions, KafkaPublisher, Reset};
use rdkafka::{
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::{
    cluster::{BROKERS, Topic, fast},
    member::{Member, within},
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
    let held = Member::join(topic.options()).await.take(2).await;
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
    let letter = dead_letter(Message::new(vec![b'x'; 2000]));
    let refused = within("publishing", publisher(&BROKERS, &small.name).publish(&letter)).await.unwrap_err();
    assert!(matches!(refused, SourceError::Refused { .. }) && refused.to_string().contains("max.message.bytes"));
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
    // Polled while the broker is away: whatever it waits for, it has not been confirmed.
    let polled = poll_fn(|context| Poll::Ready(publishing.as_mut().poll(context).is_pending())).await;
    assert!(polled, "confirmed by nobody");
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut publishing).await.is_err(), "confirmed by nobody");
    let passing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    cluster.request_errors(RDKafkaApiKey::Produce, &[passing, passing]);
    cluster.broker_up(1).unwrap();
    within("publishing", publishing).await.unwrap();
    let member = Member::join(fast(KafkaOptions::new(&brokers, "dead", "ledger")).reset(Reset::Earliest)).await;
    let held = member.take(2).await;
    member.acknowledge(held).await;
    member.idle().await;
}
