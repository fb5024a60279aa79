//! Large messages: those in this process are bounded by bytes, and a subscription that does not end is left (J56).

use std::time::Duration;

use idem_amqp::{AmqpOptions, DeliveryLimit};
use idem_core::{
    Source, SourceError,
    source::{Delivery, Received},
};
use lapin::BasicProperties;

use crate::{
    broker::{Kind, Queue, eventually, host, url},
    deaf::Deaf,
    member::{Member, join, within},
};

const LARGE: usize = 8 << 20;

/// How many messages fit into 64 MiB, and into twice as much.
const FIT: u64 = 8;
const KEPT: u64 = 16;

/// Publishes messages of this many bytes, each of which begins with its number.
async fn publish(queue: &Queue, numbers: std::ops::Range<u16>, bytes: usize) {
    for number in numbers {
        let mut payload = vec![0; bytes];
        payload[..2].copy_from_slice(&number.to_be_bytes());
        queue.put(&payload, BasicProperties::default()).await;
    }
}

fn number<H>(delivery: &Delivery<H>) -> u16 {
    let payload = delivery.message.payload().unwrap();
    u16::from_be_bytes([payload[0], payload[1]])
}

/// How many messages the broker has handed out, a few seconds ago.
async fn unacknowledged(queue: &Queue) -> u64 {
    queue.described().await["messages_unacknowledged"].as_u64().unwrap_or(0)
}

/// Takes all of these, one at a time and in this order, and acknowledges each. Answers how many were marked as redelivered.
async fn consume(member: &Member, numbers: std::ops::Range<u16>) -> usize {
    let again = consume_on_one_channel(member, numbers).await;
    again.expect("the channel was lost")
}

/// The same; `None` where the channel was lost.
async fn consume_on_one_channel(member: &Member, numbers: std::ops::Range<u16>) -> Option<usize> {
    let mut again = 0;
    for expected in numbers {
        let one = match member.receive(1).await {
            Ok(Received::Deliveries(one)) => one,
            Ok(Received::Revoked(_)) | Err(SourceError::Unavailable { .. }) => return None,
            other => panic!("instead of a message came {other:?}"),
        };
        assert_eq!(number(&one[0]), expected);
        again += usize::from(one[0].redelivered);
        member.acknowledge(one).await;
    }
    Some(again)
}

#[tokio::test(flavor = "multi_thread")]
async fn j56_of_a_queue_of_large_messages_as_many_are_in_hand_as_fit() {
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, 0..60, LARGE).await;
    let member = join(&queue.options()).await;
    // One more, of the subscription with which the channel began.
    eventually("what is in hand", async || unacknowledged(&queue).await == FIT + 1).await;
    queue.until_prefetch(FIT).await;
    for sixth in 0..6 {
        assert_eq!(consume(&member, sixth * 10..sixth * 10 + 10).await, 0);
        assert!(unacknowledged(&queue).await <= FIT + 1);
    }
    assert!(within("is_idle", member.source.is_idle()).await);
}

/// All of the prefetch has been earned by small messages when large ones come, and the broker has sent many of them before it
/// learns of the smaller prefetch. Those beyond twice the bound go back, and come again in their place.
///
/// A broker that takes too long for an answer loses the channel, and the next one knows how large the messages are: then there
/// is nothing to see, and it is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn j56_large_messages_behind_small_ones_make_the_prefetch_smaller() {
    for _ in 0..3 {
        if are_many_in_hand_and_some_go_back().await {
            return;
        }
    }
    panic!("in none of three rounds was as much in hand as should be, unless the channel was lost each time");
}

async fn are_many_in_hand_and_some_go_back() -> bool {
    const SMALL: u16 = 20;
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, 0..SMALL, 100).await;
    publish(&queue, SMALL..60, LARGE).await;
    let member = join(&queue.options()).await;
    queue.until_prefetch(FIT).await;
    let most = u64::from(SMALL) + KEPT + FIT;
    let are_many = async || (u64::from(SMALL) + FIT..=most).contains(&unacknowledged(&queue).await);
    if tokio::time::timeout(Duration::from_secs(40), eventually("what is in hand", are_many)).await.is_err() {
        return false;
    }
    let Some(again) = consume_on_one_channel(&member, 0..60).await else { return false };
    assert!(again > 0, "nothing went back: the broker was not quick enough for this test to show anything");
    assert!(within("is_idle", member.source.is_idle()).await);
    true
}

/// A subscription whose end is not confirmed is left with its channel, and the socket is not kept for an answer that does not
/// come.
#[tokio::test(flavor = "multi_thread")]
async fn j56_a_cancel_without_an_answer_ends_the_channel() {
    let mut deaf = Deaf::to(&host(&url())).await;
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, 0..1, 100).await;
    let options = AmqpOptions::new(url().replace(&host(&url()), &deaf.address), &queue.name);
    let member = join(&options.delivery_limit(DeliveryLimit::Unlimited)).await;
    // The first message is held back until a larger prefetch has begun.
    member.lost().await;
    // Five seconds for the answer, one for the goodbye, and the rest for a busy machine.
    let ended = within("the end of the socket", deaf.ended_after()).await;
    assert!(ended.as_secs() < 15, "the socket was kept for {ended:?}");
    consume(&member, 0..1).await;
}
