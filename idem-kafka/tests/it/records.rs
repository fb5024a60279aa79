//! Records as messages (D7, E11, E14, J10).

use idem_core::{Message, OrderingKey};
use idem_kafka::{KafkaOptions, LaneBy, Reset};

use crate::{
    cluster::{BROKERS, Topic, fast},
    member::{Member, payloads},
    wire,
};

#[tokio::test(flavor = "multi_thread")]
async fn e11_a_tombstone_and_an_empty_payload_are_two_messages() {
    let topic = Topic::new(1).await;
    topic.publish(Message::tombstone().with_record_key("a")).await.unwrap();
    topic.publish(Message::new("").with_record_key("a")).await.unwrap();
    let held = Member::join(topic.options()).await.take(2).await;
    assert_eq!((held[0].message.payload(), held[1].message.payload().map(|payload| payload.len())), (None, Some(0)));
}

async fn ordering_keys(lane_by: LaneBy) -> Vec<OrderingKey> {
    let topic = Topic::new(1).await;
    for key in [Some("a"), Some("b"), Some("a"), None, None, Some("")] {
        let message = Message::new("x");
        let message = if let Some(key) = key { message.with_record_key(key) } else { message };
        topic.publish(message).await.unwrap();
    }
    topic.add_partition().await;
    topic.put(1, "without a key").await;
    let held = Member::join(topic.options().lane_by(lane_by)).await.take(7).await;
    let (elsewhere, mut here): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|delivery| delivery.message.payload().unwrap() != "x");
    here.extend(elsewhere);
    here.into_iter().map(|delivery| delivery.message.ordering_key().unwrap().clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_e14_lanes_by_key_order_a_key_within_its_partition() {
    let keys = ordering_keys(LaneBy::Key).await;
    let [a, b, a_again, none, none_again, empty, elsewhere] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!((a, none), (a_again, none_again));
    let mut different = vec![a, b, none, empty, elsewhere];
    different.dedup();
    different.sort_by_key(|key| key.as_bytes());
    different.dedup();
    assert_eq!(different.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_e14_lanes_by_partition_order_the_whole_partition() {
    let keys = ordering_keys(LaneBy::Partition).await;
    assert!(keys[..6].iter().all(|key| *key == keys[0]));
    assert_ne!(keys[6], keys[0]);
}

/// A name that is not UTF-8 must not take the consumer with it: every successor would die of the same record.
#[tokio::test(flavor = "multi_thread")]
async fn j10_a_header_whose_name_is_not_utf8_stops_nobody() {
    let topic = Topic::new(1).await;
    tokio::task::block_in_place(|| wire::produce_with_a_broken_header(&topic.name, ("idempotencykey", "order-1")));
    topic.put(0, "next").await;
    let member = Member::join(topic.options()).await;
    let held = member.take(2).await;
    assert_eq!(payloads(&held), ["x", "next"]);
    assert_eq!(held[0].message.headers().len(), 2);
    assert_eq!(held[0].message.headers().text("idempotencykey"), Some("order-1"));
    member.acknowledge(held).await;
    member.idle().await;
}

/// A40: where no key stands, the origin takes its place in what a provider is handed as its idempotency key. A topic that is
/// created again has the same origins for other records, and the provider must not take the second charge for the first.
#[tokio::test(flavor = "multi_thread")]
async fn a40_a_record_of_a_topic_that_was_created_again_has_another_derived_key() {
    let topic = Topic::new(1).await;
    let mut charges = Vec::new();
    for (life, payload) in ["first", "second"].into_iter().enumerate() {
        if life > 0 {
            topic.delete().await;
            topic.create(1, &[]).await;
        }
        topic.put(0, payload).await;
        let mut of_life = Vec::new();
        // Another group is delivered the same record again.
        for group in ["one", "two"] {
            let group = format!("{}-{group}-{life}", topic.group);
            let options = fast(KafkaOptions::new(&*BROKERS, &topic.name, &group)).reset(Reset::Earliest);
            let held = Member::join(options).await.take(1).await;
            assert_eq!(payloads(&held), [payload]);
            assert_eq!(held[0].message.origin().as_str(), format!("{}/0/0", topic.name));
            of_life.push(held[0].message.derived_key("charge"));
        }
        assert_eq!(of_life[0], of_life[1], "the same on every delivery");
        charges.push(of_life[0]);
    }
    assert_ne!(charges[0], charges[1]);
}
