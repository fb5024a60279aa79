use idem_core::key::{CloudEvent, KeySource, MessageId};
use lapin::types::{DecimalValue, FieldArray, LongString, ShortString};

use crate::properties::{carried, is_all_told};

use super::*;

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn with(headers: &[(&str, AMQPValue)]) -> (Message, u32) {
    message("exchange", "key", &BasicProperties::default().with_headers(table(headers)), b"{}".to_vec())
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

#[test]
fn single_values_are_headers_and_others_stand_there_without_their_value() {
    let (message, _) = with(&[
        ("a", text("zürich")),
        ("b", AMQPValue::LongString(LongString::from(vec![0xff, 0]))),
        ("c", AMQPValue::ByteArray(vec![1, 2].into())),
        ("d", AMQPValue::LongLongInt(-7)),
        ("e", AMQPValue::Boolean(true)),
        ("f", AMQPValue::Timestamp(1_700_000_000)),
        ("g", AMQPValue::Void),
        ("h", AMQPValue::ShortString(ShortString::from("short"))),
        ("x-death", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(FieldTable::default())]))),
        ("y", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
    ]);
    let headers: Vec<_> = message.headers().iter().collect();
    let expected: [(&str, Option<&[u8]>); 9] = [
        ("a", Some("zürich".as_bytes())),
        ("b", Some(&[0xff, 0])),
        ("c", Some(&[1, 2])),
        ("d", Some(b"-7")),
        ("e", Some(b"true")),
        ("f", Some(b"1700000000")),
        ("g", None),
        ("h", Some(b"short")),
        ("y", None),
    ];
    assert_eq!(headers, expected);
}

/// G20: a key that is a table or an array was as good as absent, and the payload's member counted instead.
#[test]
fn g20_a_key_that_is_no_single_value_is_malformed() {
    for value in [
        AMQPValue::FieldArray(FieldArray::default()),
        AMQPValue::FieldTable(FieldTable::default()),
        AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
    ] {
        let properties = BasicProperties::default().with_headers(table(&[("idempotencykey", value)]));
        let (message, _) = message("", "q", &properties, br#"{"idempotencykey":"p9"}"#.to_vec());
        assert!(idem_core::key::default_key_source().key(&message).is_err());
    }
}

/// It starts at 0, unlike Kafka's or SQS's, and is no part of the message.
#[test]
fn the_queues_own_count_is_the_attempt_and_no_header() {
    assert_eq!(with(&[]).1, 1);
    for value in [AMQPValue::LongLongInt(3), AMQPValue::LongInt(3), AMQPValue::ShortShortUInt(3)] {
        let (message, attempt) = with(&[("x-delivery-count", value), ("x-acquired-count", AMQPValue::LongInt(9))]);
        assert_eq!((attempt, message.headers().len()), (4, 0));
    }
    assert_eq!(with(&[("x-delivery-count", text("many"))]).1, 1);
    assert_eq!(with(&[("x-delivery-count", AMQPValue::LongLongInt(-1))]).1, 1);
}

/// RabbitMQ 4 no longer counts in it when a message is published again, and a producer may write any number.
#[test]
fn g13_what_x_death_counts_is_no_attempt() {
    let death = table(&[("count", AMQPValue::LongLongInt(1_000)), ("reason", text("rejected"))]);
    let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
    assert_eq!(with(&[("x-death", deaths)]).1, 1);
}

#[test]
fn properties_say_what_the_content_is() {
    let properties = BasicProperties::default()
        .with_content_type("application/cloudevents+json".into())
        .with_content_encoding("identity".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_message_id("m".into())
        .with_type("purchase".into())
        .with_timestamp(1_700_000_000);
    let (message, _) = message("", "purchases", &properties, br#"{"source":"s","id":"1"}"#.to_vec());
    let headers: Vec<_> = message.headers().iter().map(|(name, _)| name).collect();
    assert_eq!(headers, ["content-type", "content-encoding", "correlation-id", "reply-to"]);
    assert_eq!((message.id(), message.message_type()), (Some("m"), Some("purchase")));
    assert_eq!(message.sent_at(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
    assert_eq!(MessageId.key(&message).unwrap().unwrap().as_str(), "m");
    assert_eq!(CloudEvent.key(&message).unwrap().unwrap().as_str(), "1:s:1", "structured mode");
}

/// The binding of CloudEvents is one of AMQP 1.0; producers of 0-9-1 use its names for headers.
#[test]
fn cloud_events_in_binary_mode_are_found_under_both_spellings() {
    for prefix in ["cloudEvents:", "cloudEvents_"] {
        let name = |attribute| format!("{prefix}{attribute}");
        let (source, id, kind) = (name("source"), name("id"), name("type"));
        let (message, _) = with(&[(&source, text("s")), (&id, text("1")), (&kind, text("purchase"))]);
        assert_eq!(CloudEvent.key(&message).unwrap().unwrap().as_str(), "1:s:1");
        assert_eq!(message.message_type(), Some("purchase"));
        let own = name("idempotencykey");
        let (message, _) = with(&[(&source, text("s")), (&id, text("1")), (&own, text("order-1"))]);
        assert_eq!(CloudEvent.key(&message).unwrap().unwrap().as_str(), "order-1");
    }
}

/// Origins distinguish dead letters.
#[test]
fn an_origin_is_the_place_the_id_and_the_content() {
    let origin = |id: &str, header: &str, payload: &str| {
        let properties =
            BasicProperties::default().with_message_id(id.into()).with_headers(table(&[("k", text(header))]));
        message("shop", "purchases", &properties, payload.into()).0.origin().as_str().to_owned()
    };
    let one = origin("1", "a", "x");
    assert_eq!(one, origin("1", "a", "x"));
    assert!(one.starts_with("shop/purchases/1#"), "{one}");
    for other in [origin("2", "a", "x"), origin("1", "b", "x"), origin("1", "a", "y")] {
        assert_ne!(one, other);
    }
    let counted = with(&[("x-delivery-count", AMQPValue::LongLongInt(3))]).0;
    assert_eq!(counted.origin(), with(&[]).0.origin(), "the same on every delivery");
}

/// Any value of the protocol, nested as deep as is let in.
fn any_value(random: &mut fastrand::Rng, depth: usize) -> AMQPValue {
    let length = [0, 1, 7, 300][random.usize(..4)];
    let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
    match random.u8(..if depth == 0 { 17 } else { 19 }) {
        0 => AMQPValue::Boolean(random.bool()),
        1 => AMQPValue::ShortShortInt(random.i8(..)),
        2 => AMQPValue::ShortShortUInt(random.u8(..)),
        3 => AMQPValue::ShortInt(random.i16(..)),
        4 => AMQPValue::ShortUInt(random.u16(..)),
        5 => AMQPValue::LongInt(random.i32(..)),
        6 => AMQPValue::LongUInt(random.u32(..)),
        7 => AMQPValue::LongLongInt(random.i64(..)),
        8 => AMQPValue::Float(f32::from_bits(random.u32(..))),
        9 => AMQPValue::Double(f64::from_bits(random.u64(..))),
        10 => AMQPValue::DecimalValue(DecimalValue { scale: random.u8(..), value: random.u32(..) }),
        11 => AMQPValue::ShortString(any_text(random)),
        12 | 13 => AMQPValue::LongString(LongString::from(bytes)),
        14 => AMQPValue::Timestamp(random.u64(..)),
        15 => AMQPValue::ByteArray(bytes.into()),
        16 => AMQPValue::Void,
        17 => {
            AMQPValue::FieldArray((0..random.u8(..4)).map(|_| any_value(random, depth - 1)).collect::<Vec<_>>().into())
        }
        _ => AMQPValue::FieldTable(any_table(random, depth - 1)),
    }
}

/// Names that idem or the broker reads, and names without a meaning.
const NAMES: [&str; 12] = [
    "",
    "idempotencykey",
    "x-delivery-count",
    "x-acquired-count",
    "x-death",
    "content-type",
    "idem-exchange",
    "idem-reason",
    "cloudEvents:id",
    "traceparent",
    "a\u{202e}\n",
    "CC",
];

fn any_text(random: &mut fastrand::Rng) -> ShortString {
    let text = match random.u8(..3) {
        0 => NAMES[random.usize(..NAMES.len())].to_owned(),
        1 => "\u{fffd}".repeat(85),
        _ => (0..random.usize(..40)).map(|_| random.char(..)).collect(),
    };
    ShortString::try_new(text).unwrap()
}

fn any_table(random: &mut fastrand::Rng, depth: usize) -> FieldTable {
    let mut table = FieldTable::default();
    for _ in 0..random.usize(..8) {
        table.insert(any_text(random), any_value(random, depth));
    }
    table
}

/// S50: whatever a producer has written into properties and headers, the message comes out, with its payload and with all that
/// a text can say, and the rest is kept beside it.
#[test]
fn s50_properties_of_any_kind_make_a_message_that_is_whole() {
    let seed = idem_testkit::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..5_000 {
        let mut properties = BasicProperties::default().with_headers(any_table(&mut random, 6));
        let with: [fn(BasicProperties, ShortString) -> BasicProperties; 10] = [
            BasicProperties::with_content_type,
            BasicProperties::with_content_encoding,
            BasicProperties::with_correlation_id,
            BasicProperties::with_reply_to,
            BasicProperties::with_expiration,
            BasicProperties::with_message_id,
            BasicProperties::with_type,
            BasicProperties::with_user_id,
            BasicProperties::with_app_id,
            BasicProperties::with_cluster_id,
        ];
        for with in with {
            if random.bool() {
                properties = with(properties, any_text(&mut random));
            }
        }
        properties = properties.with_timestamp(random.u64(..)).with_priority(random.u8(..));
        let payload: Vec<u8> = (0..random.usize(..50)).map(|_| random.u8(..)).collect();
        let (exchange, key) = (any_text(&mut random), any_text(&mut random));
        let (message, attempt) = message(exchange.as_str(), key.as_str(), &properties, payload.clone());
        let what = || format!("seed {seed}, round {round}: {properties:?}");
        assert_eq!(message.payload().unwrap().as_ref(), payload, "{}", what());
        assert!(attempt >= 1, "{}", what());
        // Found, missing or malformed; never a panic.
        let _ = idem_core::key::default_key_source().key(&message);
        let headers: Vec<_> = message.headers().iter().collect();
        for (name, value) in properties.headers().as_ref().unwrap().inner() {
            let name = name.as_str();
            let is_hidden = is_the_brokers_own(name) || [EXCHANGE, ROUTING_KEY].contains(&name);
            let expected = bytes(value).flatten();
            assert!(is_hidden || headers.contains(&(name, expected.as_deref())), "{name}: {}", what());
        }
        // A dead letter is made of these.
        assert!(!is_all_told(&properties), "a priority is told nowhere else: {}", what());
        assert_eq!(carried(&properties).message_id(), properties.message_id(), "{}", what());
    }
}
