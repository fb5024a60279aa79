//! Dead letters to a queue (G8, G9).

use std::{future::poll_fn, task::Poll};

use idem_amqp::AmqpPublisher;
use idem_core::{Bytes, DeadLetter, Headers, Message, Publisher, SourceError};
use lapin::types::{AMQPValue, LongString};

use crate::{
    broker::{Kind, Queue},
    member::{Member, within},
};

pub(crate) fn dead_letter(message: Message) -> DeadLetter {
    idem_testkit::dead_letter(message, "shop/purchases/1#0")
}

pub(crate) fn publisher(queue: &Queue, to: &str) -> AmqpPublisher {
    AmqpPublisher::new(&queue.options(), to).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_carries_its_message_and_why_it_was_set_aside() {
    let queue = Queue::new(Kind::Classic).await;
    let mut headers = Headers::default();
    for (name, value) in [("trace", Some("1")), ("idempotencykey", Some("forged")), ("absent", None)] {
        headers.push(name, value.map(|value| Bytes::from_static(value.as_bytes())));
    }
    let message = Message::new("{}").with_headers(headers).with_id("m-1");
    within("publishing", publisher(&queue, &queue.name).publish(&dead_letter(message))).await.unwrap();
    let held = Member::join(&queue.options()).await.take(1).await;
    let letter = &held[0].message;
    assert_eq!((letter.payload().unwrap().as_ref(), letter.id()), (&b"{}"[..], Some("m-1")));
    let headers: Vec<_> = letter.headers().iter().map(|(name, value)| (name, value.map(<[u8]>::to_vec))).collect();
    let text = |name, value: &str| (name, Some(value.as_bytes().to_vec()));
    let expected = [
        ("absent", None),
        text("idem-attempts", "2"),
        text("idem-consumer", "ledger"),
        text("idem-error", "it was used before"),
        text("idem-origin", "shop/purchases/1#0"),
        text("idem-reason", "conflict"),
        text("idempotencykey", "order-1"),
        text("trace", "1"),
    ];
    assert_eq!(headers, expected);
}

/// The broker confirms also what no queue takes, after it has returned it.
#[tokio::test(flavor = "multi_thread")]
async fn g8_what_no_queue_takes_is_not_published() {
    let queue = Queue::new(Kind::Classic).await;
    let letter = dead_letter(Message::new("{}"));
    let nowhere = publisher(&queue, "idem-no-such-queue");
    for _ in 0..2 {
        let refused = within("publishing", nowhere.publish(&letter)).await.unwrap_err();
        assert!(matches!(refused, SourceError::Refused { .. }), "{refused:?}");
        assert!(refused.to_string().contains("idem-no-such-queue"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_what_the_queue_refuses_is_not_published() {
    let full = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString(LongString::from("reject-publish"))),
    ];
    let queue = Queue::with(Kind::Classic, &full).await;
    let publisher = publisher(&queue, &queue.name);
    let letter = dead_letter(Message::new("{}"));
    within("publishing", publisher.publish(&letter)).await.unwrap();
    let refused = within("publishing", publisher.publish(&letter)).await.unwrap_err();
    assert!(matches!(refused, SourceError::Unavailable { .. }), "{refused:?}");
    let member = Member::join(&queue.options()).await;
    let held = member.take(1).await;
    member.acknowledge(held).await;
    within("publishing", publisher.publish(&letter)).await.unwrap();
}

/// Nothing counts as published before it is confirmed, and a connection that broke meanwhile is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn g9_a_dead_letter_counts_as_published_only_once_it_is_confirmed() {
    let queue = Queue::new(Kind::Classic).await;
    let publisher = publisher(&queue, &queue.name);
    let letter = dead_letter(Message::new("{}"));
    within("publishing", publisher.publish(&letter)).await.unwrap();
    queue.proxy.freeze();
    let mut publishing = publisher.publish(&letter);
    let waits = poll_fn(|context| Poll::Ready(publishing.as_mut().poll(context).is_pending())).await;
    assert!(waits, "confirmed by nobody");
    let late = tokio::time::timeout(std::time::Duration::from_millis(500), &mut publishing).await;
    assert!(late.is_err(), "confirmed by nobody: {late:?}");
    queue.proxy.cut().await;
    queue.proxy.thaw();
    let lost = within("the answer", publishing).await.unwrap_err();
    assert!(matches!(lost, SourceError::Unavailable { .. }), "{lost:?}");
    within("publishing", publisher.publish(&letter)).await.unwrap();
}
