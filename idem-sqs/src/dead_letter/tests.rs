use idem_core::{Bytes, ConsumerName, Headers, IdempotencyKey, Message, OrderingKey, Origin, Reason, ScopeId};

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
        keep_payload: true,
    }
}

fn names(attributes: &[(String, Value)]) -> Vec<&str> {
    attributes.iter().map(|(name, _)| &**name).collect()
}

const FACTS: [&str; 6] =
    ["idem-reason", "idem-error", "idem-attempts", "idem-consumer", "idem-origin", "idempotencykey"];

#[test]
fn the_reasons_come_first_and_the_messages_own_attributes_as_far_as_there_is_room() {
    let mut headers = Headers::default();
    for name in ["a", "b", "a", "no name", "empty", "c", "d", "e"] {
        let value = if name == "empty" { "" } else { "1" };
        headers.push(name, Some(Bytes::from_static(value.as_bytes())));
    }
    let letter = dead_letter(Message::new("{}").with_headers(headers));
    let sent = attributes(&letter, 10_000);
    assert_eq!(names(&sent), [&FACTS[..], &["a", "b", "c", "d"]].concat());
    assert_eq!(sent[1].1.string_value(), Some("it was used before?"), "no character that SQS refuses");
    assert!(attributes(&letter, 0).is_empty());
    assert_eq!(names(&attributes(&letter, 30)), ["idem-reason"]);
}

#[test]
fn what_is_no_text_is_sent_as_bytes() {
    let letter = dead_letter(Message::new("{}").with_header("raw", Bytes::from_static(b"\xff")));
    let sent = attributes(&letter, 10_000);
    assert_eq!(sent[6].1.binary_value().unwrap().as_ref(), b"\xff");
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
    let seed = std::env::var("IDEM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
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
        let attributes = attributes(&dead_letter(Message::new("{}").with_headers(headers)), room);
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
}
