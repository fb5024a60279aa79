use idem_core::{
    Bytes, ConsumerName, ErrorClass, FailureKind, Fingerprint, Headers, IdempotencyKey, Message, OrderingKey, Origin,
    Reason, ScopeId,
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
