//! Dead letters to a queue (G8, G9).

use std::{future::poll_fn, task::Poll};

use idem_amqp::AmqpPublisher;
use idem_core::{
    Bytes, Message, SourceError,
    dead_letter::{DeadLetter, Publisher},
    message::Headers,
};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::BasicGetOptions,
    types::{AMQPValue, DecimalValue, FieldTable, LongString},
};

use crate::{
    broker::{Kind, Queue, url},
    member::{join, within},
    own_server::{MESSAGE_MAX, OwnServer},
    raw,
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
    let held = join(&queue.options()).await.take_over_revocations(1).await;
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

/// The broker also confirms a message that no queue takes, after it has returned it.
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

/// G33: a dead letter that is larger than the broker takes does not fit, which the worker can do something about; it was a
/// refusal, and published again for ever. The next one is taken.
#[tokio::test(flavor = "multi_thread")]
async fn g33_a_dead_letter_that_is_too_large_does_not_fit() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    let publisher = publisher(&queue, &queue.name);
    let large = dead_letter(Message::new(vec![b'x'; MESSAGE_MAX + 1]));
    for _ in 0..2 {
        let error = within("publishing", publisher.publish(&large)).await.unwrap_err();
        assert!(matches!(error, SourceError::DoesNotFit { .. }), "{error:?}");
        assert!(error.to_string().contains("max_message_size") && error.to_string().contains(&queue.name), "{error}");
    }
    within("publishing", publisher.publish(&dead_letter(Message::new("{}")))).await.unwrap();
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
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(1).await;
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

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

/// Takes one message off a queue, with its properties as the broker has them.
async fn fetched(queue: &Queue) -> (Vec<u8>, BasicProperties) {
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let taken = BasicGetOptions { no_ack: true };
    let message = channel.basic_get(queue.name.as_str().into(), taken).await.unwrap().unwrap();
    (message.delivery.data, message.delivery.properties)
}

fn without_idems(message: &Message) -> Vec<(&str, Option<&[u8]>)> {
    message.headers().iter().filter(|(name, _)| !name.starts_with("idem-") && *name != "idempotencykey").collect()
}

/// G19: a published dead letter is the producer's message, with the types of its headers. Moved back, it is the same
/// message.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_dead_letter_keeps_all_of_the_message_and_comes_back_as_it() {
    let (queue, dead) = (Queue::new(Kind::Quorum).await, Queue::new(Kind::Classic).await);
    let headers = table(&[
        ("idempotencykey", text("order-1")),
        ("n", AMQPValue::LongInt(5)),
        ("flag", AMQPValue::Boolean(true)),
        ("big", AMQPValue::LongLongInt(1 << 40)),
        ("at", AMQPValue::Timestamp(1_600_000_000)),
        ("price", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("tbl", AMQPValue::FieldTable(table(&[("a", AMQPValue::FieldArray(vec![AMQPValue::Void].into()))]))),
        ("content-type", text("a header of that name")),
    ]);
    let sent = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("identity".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_message_id("m-1".into())
        .with_type("purchase.made".into())
        .with_timestamp(1_700_000_000)
        .with_app_id("shop".into())
        .with_priority(3)
        .with_user_id("guest".into())
        .with_expiration("600000".into())
        .with_delivery_mode(2)
        .with_headers(headers.clone());
    queue.put(b"{}", sent.clone()).await;
    let member = join(&queue.options()).await;
    let first = member.take_over_revocations(1).await;
    let (before, letter) = (first[0].message.clone(), dead_letter(first[0].message.clone()));
    within("publishing", publisher(&dead, &dead.name).publish(&letter)).await.unwrap();
    member.acknowledge(first).await;

    let (payload, published) = fetched(&dead).await;
    let facts = ["idem-reason", "idem-error", "idem-attempts", "idem-consumer", "idem-origin"];
    let mut expected = headers;
    for name in facts {
        expected.insert(name.into(), published.headers().as_ref().unwrap().inner()[name].clone());
    }
    expected.insert("idem-user-id".into(), text("guest"));
    expected.insert("idem-expiration".into(), text("600000"));
    assert_eq!((published.user_id(), published.expiration()), (&None, &None), "the broker acts on these");
    assert_eq!(published.headers(), &Some(expected));
    let plain = |properties: BasicProperties| properties.with_headers(FieldTable::default());
    let as_sent = plain(published.clone()).with_user_id("guest".into()).with_expiration("600000".into());
    assert_eq!(as_sent, plain(sent));

    // As a shovel does it.
    queue.put(&payload, published).await;
    let second = member.take_over_revocations(1).await;
    let after = &second[0].message;
    assert_eq!(
        (after.payload(), after.id(), after.message_type()),
        (before.payload(), before.id(), before.message_type())
    );
    assert_eq!((after.sent_at(), after.headers().text("idempotencykey")), (before.sent_at(), Some("order-1")));
    assert_eq!(without_idems(after), without_idems(&before));
    member.acknowledge(second).await;
}

/// G19: so does a message that idem's own type describes completely, or that was read from a row.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_plain_message_keeps_its_properties_too() {
    let (queue, dead) = (Queue::new(Kind::Classic).await, Queue::new(Kind::Classic).await);
    let sent = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_correlation_id("c".into())
        .with_message_id("m-1".into())
        .with_type("purchase.made".into())
        .with_timestamp(1_700_000_000)
        .with_delivery_mode(2)
        .with_headers(table(&[("trace", text("1")), ("absent", AMQPValue::Void)]));
    queue.put(b"{}", sent.clone()).await;
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(1).await;
    let letter = dead_letter(held[0].message.clone());
    within("publishing", publisher(&dead, &dead.name).publish(&letter)).await.unwrap();
    member.acknowledge(held).await;
    let (_, published) = fetched(&dead).await;
    let names: Vec<_> = published.headers().as_ref().unwrap().inner().keys().map(|name| name.to_string()).collect();
    assert!(!names.contains(&"content-type".to_owned()), "{names:?}");
    let plain = |properties: BasicProperties| properties.with_headers(FieldTable::default());
    assert_eq!(plain(published), plain(sent));
}

/// G19: headers that fill a frame leave no room for idem's own. The largest give way, and the dead letter is published.
#[tokio::test(flavor = "multi_thread")]
async fn g19_headers_that_fill_a_frame_give_way() {
    let (queue, dead) = (Queue::new(Kind::Classic).await, Queue::new(Kind::Classic).await);
    raw::publish("", queue.name.as_bytes(), raw::headers(&raw::nested(26_000)), b"{}").await;
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(1).await;
    let letter = dead_letter(held[0].message.clone());
    within("publishing", publisher(&dead, &dead.name).publish(&letter)).await.unwrap();
    let (payload, published) = fetched(&dead).await;
    let headers = published.headers().as_ref().unwrap().inner();
    assert_eq!((payload.as_slice(), &headers["idem-left-out"]), (&b"{}"[..], &text("idem-unreadable")));
    assert!(headers.contains_key("idem-reason") && !headers.contains_key("idem-unreadable"));
    member.acknowledge(held).await;
}
