//! Records as messages (D7, E11, E14, J10).

use idem_core::{Message, OrderingKey};
use idem_kafka::LaneBy;

use crate::{
    cluster::Topic,
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
