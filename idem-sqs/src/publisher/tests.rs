use idem_core::{
    Bytes, ConsumerName, ErrorClass, IdempotencyKey, Message,
    dead_letter::{DeadLetterId, FailureKind, Fingerprint, Reason},
    message::{Headers, OrderingKey, Origin},
    store::ScopeId,
};

use super::*;

fn dead_letter(message: Message) -> DeadLetter {
    DeadLetter {
        consumer: ConsumerName::new("ledger").unwrap(),
        scope: ScopeId(1),
        message: message.with_origin(Origin::new("orders/1")),
        key: Some(IdempotencyKey::new("order-1").unwrap()),
        hash: None,
        reason: Reason::Conflict,
        attempts: 2,
        error: "it was used before\u{1b}".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Conflict, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

fn names(attributes: &[(String, Value)]) -> Vec<&str> {
    attributes.iter().map(|(name, _)| &**name).collect()
}

const FACTS: [&str; 6] =
    ["idem-reason", "idem-error", "idem-attempts", "idem-consumer", "idem-origin", "idempotencykey"];

fn with_attributes(names: &[&str]) -> DeadLetter {
    let mut headers = Headers::default();
    for name in names {
        let value = if *name == "empty" { "" } else { "1" };
        headers.push(name, Some(Bytes::from_static(value.as_bytes())));
    }
    dead_letter(Message::new("{}").with_headers(headers))
}

/// F12: facts never push out the producer's attributes.
#[test]
fn f12_the_messages_own_attributes_come_first_and_then_why_it_was_set_aside() {
    let sent = attributes(&with_attributes(&["a", "b", "a", "no name", "empty", "c", "d"]), 10_000).unwrap();
    assert_eq!(names(&sent), [&["a", "b", "c", "d"], &FACTS[..]].concat(), "as much as there is room for");
    let error = &sent.iter().find(|(name, _)| name == "idem-error").unwrap().1;
    assert_eq!(error.string_value(), Some("it was used before?"), "no character that SQS refuses");
    let nine = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for count in 5..=9 {
        let sent = attributes(&with_attributes(&nine[..count]), 10_000).unwrap();
        assert_eq!(names(&sent), [&nine[..count], &["idem"]].concat());
        let facts: serde_json::Value = serde_json::from_str(sent[count].1.string_value().unwrap()).unwrap();
        assert_eq!(
            facts,
            serde_json::json!({
                "reason": "conflict", "error": "it was used before?", "attempts": "2", "consumer": "ledger",
                "origin": "orders/1", "idempotencykey": "order-1"
            })
        );
    }
    let ten = [&nine[..], &["j"]].concat();
    assert_eq!(names(&attributes(&with_attributes(&ten), 10_000).unwrap()), ten);
    // The same where it is bytes that there is no room for.
    assert_eq!(names(&attributes(&with_attributes(&["a"]), 40).unwrap()), ["a", "idem-reason"]);
    assert_eq!(names(&attributes(&with_attributes(&["a"]), 8).unwrap()), ["a"]);
    assert_eq!(attributes(&with_attributes(&["a"]), 7), None);
    assert_eq!(attributes(&with_attributes(&[]), 0), Some(Vec::new()));
}

/// F12: a key that is malformed is the producer's attribute like every other, be it bytes.
#[test]
fn f12_a_malformed_key_goes_along() {
    let own = Message::new("{}").with_header(KEY_FIELD, &b"\xff\x00"[..]);
    let letter = DeadLetter { key: None, reason: Reason::Malformed, ..dead_letter(own) };
    let sent = attributes(&letter, 10_000).unwrap();
    assert_eq!(names(&sent), [&["idempotencykey"], &FACTS[..5]].concat());
    assert_eq!(sent[0].1.binary_value(), Some(&Blob::new(&b"\xff\x00"[..])));
}

#[test]
fn f12_a_copy_without_its_payload_has_the_facts_first() {
    let letter = with_attributes(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
    let copy = DeadLetter { payload_omitted: Some(DeadLetterId(7)), ..letter };
    let sent = attributes(&copy, 10_000).unwrap();
    let facts = [&FACTS[..5], &["idem-payload-omitted", "idempotencykey"]].concat();
    assert_eq!(names(&sent), [&facts[..], &["a", "b", "c"]].concat());
    assert_eq!(sent[5].1.string_value(), Some("7"));
}

#[test]
fn f13_an_attribute_is_sent_with_the_type_it_came_with() {
    let message = Message::new("{}").with_header("raw", Bytes::from_static(b"\xff")).with_header("n", "17");
    let message = message.with_header("blob", "text").with_header("plain", "1");
    let message = message.with_broker_properties(r#"{"n":"Number.int","blob":"Binary.png"}"#.as_bytes().to_vec());
    let sent = attributes(&dead_letter(message), 10_000).unwrap();
    let of = |name: &str| &sent.iter().find(|(sent, _)| sent == name).unwrap().1;
    assert_eq!((of("raw").data_type(), of("raw").binary_value().unwrap().as_ref()), ("Binary", &b"\xff"[..]));
    assert_eq!((of("n").data_type(), of("n").string_value()), ("Number.int", Some("17")));
    assert_eq!((of("blob").data_type(), of("blob").binary_value().unwrap().as_ref()), ("Binary.png", &b"text"[..]));
    assert_eq!((of("plain").data_type(), of("plain").string_value()), ("String", Some("1")));
}

#[test]
fn a_copy_of_a_dead_letter_is_a_repetition_and_its_next_failure_is_none() {
    let letter = dead_letter(Message::new("{}").with_ordering_key(OrderingKey::new("customer-1")));
    let again = DeadLetter { attempts: 3, ..letter.clone() };
    assert_eq!(deduplication_id(&letter), deduplication_id(&letter.clone()));
    assert_ne!(deduplication_id(&letter), deduplication_id(&again));
    assert_eq!(group(&letter), "customer-1");
    assert_eq!(group(&dead_letter(Message::new("{}"))), "idem-dead-letters");
}

/// F14, S10: whatever headers a message has, its dead letter has attributes that SQS takes: at most ten, each once, with a
/// legal name and text, within the room there is. The seed is printed where it fails.
#[test]
fn f14_headers_of_any_shape_become_attributes_that_sqs_takes() {
    let seed = idem_testkit::seed();
    let (mut random, mut fitted) = (fastrand::Rng::with_seed(seed), 0);
    for _ in 0..2_000 {
        let mut headers = Headers::default();
        for _ in 0..random.usize(0..20) {
            let name = match random.u8(0..4) {
                0 => FACTS[random.usize(..6)].to_owned(),
                1 => (0..random.usize(0..5)).map(|_| random.char(..)).collect(),
                _ => (0..random.usize(1..4)).map(|_| random.alphanumeric()).collect(),
            };
            let value = match random.u8(0..3) {
                0 => None,
                1 => Some(Bytes::from((0..random.usize(0..9)).map(|_| random.char(..)).collect::<String>())),
                _ => Some((0..random.usize(0..50)).map(|_| random.u8(..)).collect()),
            };
            headers.push(&name, value);
        }
        let room = random.usize(0..400);
        let Some(attributes) = attributes(&dead_letter(Message::new("{}").with_headers(headers)), room) else {
            continue;
        };
        fitted += 1;
        let names = names(&attributes);
        assert!(names.len() <= 10 && names.iter().all(|name| is_name(name)), "seed {seed}: {names:?}");
        assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), names.len(), "seed {seed}");
        let mut size = 0;
        for (name, value) in &attributes {
            let (text, bytes) = (value.string_value().unwrap_or_default(), value.binary_value());
            size += name.len() + "String".len() + bytes.map_or(text.len(), |blob| blob.as_ref().len());
            assert_eq!(sendable(text), text, "seed {seed}");
        }
        assert!(size <= room, "seed {seed}: {size} bytes in a room of {room}");
    }
    assert!(fitted > 200, "seed {seed}: {fitted} of 2,000 had any attributes");
}
