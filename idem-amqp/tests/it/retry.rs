//! Messages that wait in a retry queue.

use std::time::Duration;

use idem_core::{Message, Source, SourceError, source::Settled};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString},
};
use tokio::time::Instant;

use crate::{
    broker::{Kind, Queue, management_url},
    member::{assert_all_settled, join, refusal, sorted, within},
};

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// A queue of this kind, and one whose messages come back to it.
async fn pair(kind: Kind) -> (Queue, Queue) {
    let queue = Queue::new(kind).await;
    let retry = back_to(&queue.name, kind, &[]).await;
    (queue, retry)
}

async fn back_to(queue: &str, kind: Kind, more: &[(&str, AMQPValue)]) -> Queue {
    let back = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(queue))];
    Queue::with(kind, &[&back, more].concat()).await
}

async fn comes_back_later(kind: Kind) {
    let (queue, retry) = pair(kind).await;
    let mut headers = FieldTable::default();
    headers.insert("idempotencykey".into(), text("order-1"));
    let properties = BasicProperties::default().with_headers(headers).with_message_id("m-1".into());
    // It comes back through another exchange than it came from.
    queue.put_through("amq.direct", &format!("{}-purchases", queue.name), b"{}", properties).await;
    let member = join(&queue.options().retry_queue(&retry.name)).await;
    let mut held = member.take_over_revocations(1).await;
    let first = held[0].message.clone();
    for _ in 0..2 {
        let (released, after) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(member.try_release(held, after).await, [Settled::Settled]);
        held = member.take_over_revocations(1).await;
        assert!(released.elapsed() >= after, "it was back before its time");
        assert_eq!((&held[0].message, held[0].redelivered), (&first, false));
        assert_eq!(held[0].message.origin(), first.origin());
    }
    member.acknowledge(held).await;
    assert_all_settled(member, &queue).await;
    assert_eq!(retry.declared().await.message_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_back_from_the_retry_queue_as_it_was() {
    comes_back_later(Kind::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_back_from_the_retry_queue_as_it_was_on_quorum_queues() {
    comes_back_later(Kind::Quorum).await;
}

/// Nothing is acknowledged that the retry queue does not have.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_retry_queue_does_not_take_is_given_back_at_once() {
    let queue = Queue::new(Kind::Classic).await;
    let full = [("x-max-length", AMQPValue::LongInt(0)), ("x-overflow", text("reject-publish"))];
    let retry = back_to(&queue.name, Kind::Classic, &full).await;
    queue.publish(Message::new("a")).await.unwrap();
    let member = join(&queue.options().retry_queue(&retry.name)).await;
    let mut held = member.take_over_revocations(1).await;
    for gone in [false, true] {
        if gone {
            retry.delete().await;
        }
        assert_eq!(member.try_release(held, Duration::from_secs(3600)).await, [Settled::Settled]);
        held = member.take_over_revocations(1).await;
        assert_eq!((sorted(&held), held[0].redelivered), (vec!["a".to_owned()], true));
    }
    member.acknowledge(held).await;
    assert_all_settled(member, &queue).await;
}

/// At a stop others are to have it at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_released_without_a_delay_is_not_put_off() {
    let (queue, retry) = pair(Kind::Classic).await;
    queue.publish(Message::new("a")).await.unwrap();
    let member = join(&queue.options().retry_queue(&retry.name)).await;
    let held = member.take_over_revocations(1).await;
    assert_eq!(member.try_release(held, Duration::ZERO).await, [Settled::Settled]);
    let again = member.take_over_revocations(1).await;
    assert!(again[0].redelivered);
    member.acknowledge(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_queue_that_loses_messages_or_is_not_there_is_refused() {
    let queue = Queue::new(Kind::Classic).await;
    let plain = Queue::new(Kind::Classic).await;
    let elsewhere = back_to("elsewhere", Kind::Classic, &[]).await;
    let passing = back_to(&queue.name, Kind::Classic, &[]).await;
    let managed = |retry: &str| queue.options().management_url(management_url()).retry_queue(retry);
    for (options, words) in [
        (queue.options().retry_queue("idem-no-such-retry-queue"), "\"idem-no-such-retry-queue\" does not exist"),
        (queue.options().require_queue("idem-no-such-queue"), "\"idem-no-such-queue\" does not exist"),
        (managed(&plain.name), "does not come back"),
        (managed(&elsewhere.name), "does not come back"),
        (managed(&passing.name), "x-expires"),
    ] {
        let error = refusal(&options).await;
        assert!(matches!(error, SourceError::Refused { .. }) && error.to_string().contains(words), "{error:?}");
    }
    let source = queue.options().retry_queue(&plain.name).build().unwrap();
    let unknown = within("attaching", source.attach()).await.unwrap();
    assert!(unknown.warnings.iter().any(|warning| warning.contains(&plain.name)), "{unknown:?}");
}
