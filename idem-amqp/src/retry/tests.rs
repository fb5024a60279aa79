use lapin::types::FieldArray;

use super::*;
use crate::{message::message, properties::PERSISTENT};

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn content() -> Content {
    Content { exchange: "shop".into(), routing_key: "purchases".into(), payload: Bytes::from("{}") }
}

fn after(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// As the broker hands it over again: with a death of its own, and without the expiration.
#[test]
fn what_comes_back_is_the_same_message_however_often() {
    let first = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("identity".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_message_id("m".into())
        .with_type("purchase".into())
        .with_timestamp(1_700_000_000)
        .with_headers(table(&[("idempotencykey", text("order-1")), ("n", AMQPValue::LongInt(7))]));
    let (before, _) = message("shop", "purchases", &first, b"{}".to_vec());
    let mut sent = properties(&first, &content(), after(60));
    for _ in 0..2 {
        let mut headers = sent.headers().clone().unwrap();
        headers.insert("x-first-death-queue".into(), text("retry"));
        headers.insert("x-death".into(), AMQPValue::FieldArray(FieldArray::default()));
        let back = sent.with_headers(headers);
        let (again, _) = message("", "purchases-queue", &back, b"{}".to_vec());
        assert_eq!(again, before);
        assert_eq!(again.origin(), before.origin());
        let second = Content { exchange: String::new(), routing_key: "purchases-queue".into(), ..content() };
        sent = properties(&back, &second, after(60));
    }
}

#[test]
fn what_the_broker_would_refuse_drop_or_send_elsewhere_is_left_out() {
    let list = || AMQPValue::FieldArray(FieldArray::from(vec![text("other")]));
    let from =
        BasicProperties::default().with_user_id("somebody".into()).with_expiration("5".into()).with_headers(table(&[
            ("CC", list()),
            ("BCC", list()),
            ("x-death", list()),
            ("x-delivery-count", AMQPValue::LongInt(3)),
        ]));
    let sent = properties(&from, &content(), after(60));
    assert_eq!((sent.user_id(), sent.expiration().as_ref().map(|text| text.as_str())), (&None, Some("60000")));
    assert_eq!(*sent.delivery_mode(), Some(PERSISTENT));
    let names: Vec<_> = sent.headers().as_ref().unwrap().inner().keys().map(|name| name.as_str()).collect();
    assert_eq!(names, [EXCHANGE, ROUTING_KEY]);
}

#[test]
fn an_expiration_is_one_that_the_broker_takes() {
    let expiration = |after| properties(&BasicProperties::default(), &content(), after).expiration().clone().unwrap();
    assert_eq!(expiration(Duration::from_nanos(1)).as_str(), "1");
    assert_eq!(expiration(Duration::MAX).as_str(), "4294967295");
}
