//! Cases: a message arrives as it was published. A message that the broker cannot carry is refused when it is published, and
//! never changed.

use idem_core::{Bytes, Message, Source, message::Headers, source::Delivery};

use super::{
    steps::{Steps as _, left, put},
    subject::SourceUnderTest,
};
use idem_testkit::source_driver::SourceDriver;

/// Publishes one message and takes it; `None` where the broker refuses it, as it must where `carries` is off.
async fn echo<T: SourceUnderTest>(
    subject: &T,
    message: Message,
    carries: bool,
) -> Option<Delivery<<T::Source as Source>::Handle>> {
    if !carries {
        let refused = subject.publish(message).await;
        assert!(refused.is_err(), "a message was taken that the broker, as declared, cannot carry");
        left(subject, 0).await;
        return None;
    }
    put(subject, message).await;
    let reader = SourceDriver::open(subject).await;
    reader.take(1).await.pop()
}

fn same_headers<H>(delivery: &Delivery<H>, published: &Headers) {
    let names: Vec<&str> = published.iter().map(|(name, _)| name).collect();
    let ours = |(name, _): &(&str, Option<&[u8]>)| names.contains(name);
    let arrived: Vec<_> = delivery.message.headers().iter().filter(ours).collect();
    assert_eq!(arrived, published.iter().collect::<Vec<_>>());
}

/// Headers with different names arrive, each with its value. Names that the broker adds are its own affair.
pub async fn headers_are_kept_in_order<T: SourceUnderTest>(subject: &T) {
    let message = Message::new("x").with_header("b", "1").with_header("a", "2").with_header("c", "zürich");
    let headers = message.headers().clone();
    let delivery = echo(subject, message, true).await.unwrap();
    for (name, value) in headers.iter() {
        assert_eq!(delivery.message.headers().all(name).collect::<Vec<_>>(), [value], "header {name}");
    }
    if subject.features().repeated_headers {
        same_headers(&delivery, &headers);
    }
}

/// An ordered multimap. A repeated key must be seen as one, or two readers disagree about it (`KeyError::Repeated`).
pub async fn a_repeated_header_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let mut headers = Headers::default();
    for (name, value) in [("trace", "1"), ("other", "2"), ("trace", "3"), ("trace", "1")] {
        headers.push(name, Some(Bytes::from_static(value.as_bytes())));
    }
    let message = Message::new("x").with_headers(headers.clone());
    if let Some(delivery) = echo(subject, message, subject.features().repeated_headers).await {
        same_headers(&delivery, &headers);
        assert_eq!(delivery.message.headers().all("trace").count(), 3);
    }
}

/// Kafka's headers may be without a value, which differs from an empty one.
pub async fn a_header_without_a_value_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let mut headers = Headers::default();
    headers.push("absent", None);
    let message = Message::new("x").with_headers(headers);
    if let Some(delivery) = echo(subject, message, subject.features().null_headers).await {
        assert_eq!(delivery.message.headers().all("absent").collect::<Vec<_>>(), [None]);
    }
}

/// A header's bytes are handed on as they are; whether they are text is the key source's question.
pub async fn a_header_value_that_is_not_utf8_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let message = Message::new("x").with_header("raw", Bytes::from_static(b"\xff\x00\xfe"));
    if let Some(delivery) = echo(subject, message, subject.features().binary_headers).await {
        assert_eq!(delivery.message.headers().all("raw").collect::<Vec<_>>(), [Some(&b"\xff\x00\xfe"[..])]);
    }
}

/// E11: no payload and an empty one have different hashes.
pub async fn a_tombstone_is_kept_apart_from_an_empty_payload_or_refused<T: SourceUnderTest>(subject: &T) {
    let message = Message::tombstone().with_record_key("customer-1").with_header("idempotencykey", "order-1");
    if let Some(delivery) = echo(subject, message, subject.features().tombstones).await {
        assert_eq!(delivery.message.payload(), None);
        assert_eq!(delivery.message.headers().text("idempotencykey"), Some("order-1"));
    }
}

/// The other half (E11).
pub async fn an_empty_payload_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    if let Some(delivery) = echo(subject, Message::new(""), subject.features().empty_payloads).await {
        assert_eq!(delivery.message.payload(), Some(&Bytes::new()));
    }
}

/// The smallest payload of all.
pub async fn a_payload_of_one_byte_is_kept<T: SourceUnderTest>(subject: &T) {
    let delivery = echo(subject, Message::new("1"), true).await.unwrap();
    assert_eq!(delivery.message.payload().unwrap(), "1");
}

/// The payload's hash is over its bytes, so not one may change. NUL is among them.
pub async fn a_payload_that_is_not_utf8_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let payload: Vec<u8> = (0..=255).rev().collect();
    if let Some(delivery) = echo(subject, Message::new(payload.clone()), subject.features().binary_payloads).await {
        assert_eq!(delivery.message.payload().unwrap(), &payload);
    }
}

/// The largest payload that idem takes by default.
pub async fn a_payload_of_one_mebibyte_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let payload: Vec<u8> = (0..1 << 20).map(|place: u32| b'a' + (place % 26) as u8).collect();
    let carries = subject.features().payloads_of_one_mebibyte;
    if let Some(delivery) = echo(subject, Message::new(payload.clone()), carries).await {
        assert!(delivery.message.payload().unwrap() == &payload, "1 MiB arrived as something else");
    }
}

/// A key source may take the record key.
pub async fn a_record_key_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let message = Message::new("x").with_record_key("customer-1");
    if let Some(delivery) = echo(subject, message, subject.features().record_keys).await {
        assert_eq!(delivery.message.record_key().unwrap(), "customer-1");
    }
}

/// A key source may take the message id.
pub async fn a_message_id_is_kept_or_refused<T: SourceUnderTest>(subject: &T) {
    let message = Message::new("x").with_id("3f2c");
    if let Some(delivery) = echo(subject, message, subject.features().message_ids).await {
        assert_eq!(delivery.message.id(), Some("3f2c"));
    }
}

/// S1: the default key source finds the header by its name, byte for byte.
pub async fn the_idempotency_key_is_found_where_the_producer_put_it<T: SourceUnderTest>(subject: &T) {
    let message = Message::new("{}").with_header(idem_core::key::KEY_FIELD, "Order-1 ");
    let delivery = echo(subject, message, true).await.unwrap();
    let key = idem_core::key::default_key_source().key(&delivery.message).expect("a good key").expect("a key");
    assert_eq!(key.as_str(), "Order-1 ", "neither trimmed nor folded");
}

/// A random id for each read would make every redelivery a new message.
pub async fn nothing_is_invented_for_a_plain_message<T: SourceUnderTest>(subject: &T) {
    let delivery = echo(subject, Message::new("{}"), true).await.unwrap();
    assert_eq!(delivery.message.record_key(), None);
    assert_eq!(delivery.message.message_type(), None);
    assert_eq!(delivery.message.key(), None, "only core identifies a message");
    assert_eq!(idem_core::key::default_key_source().key(&delivery.message).expect("no key is no error"), None);
}

/// A redelivery is byte for byte the same, or its hash would make it a conflict.
pub async fn content_is_the_same_on_redelivery<T: SourceUnderTest>(subject: &T) {
    put(subject, Message::new("{\"a\": 1}").with_header("idempotencykey", "order-1").with_header("b", "2")).await;
    let reader = SourceDriver::open(subject).await;
    let first = reader.take(1).await.pop().unwrap().message;
    let reader = reader.restart(subject).await;
    let again = reader.take(1).await.pop().unwrap().message;
    assert_eq!(
        (first.payload(), first.id(), first.message_type()),
        (again.payload(), again.id(), again.message_type())
    );
    assert_eq!(first.headers().all("b").collect::<Vec<_>>(), again.headers().all("b").collect::<Vec<_>>());
    assert_eq!(first.sent_at(), again.sent_at());
    assert_eq!(first.ordering_key(), again.ordering_key());
}
