use std::collections::HashSet;

use bytes::Bytes;

use super::*;
use crate::{
    message::headers::Headers,
    names::{ConsumerName, IdempotencyKey, Origin, ScopeId},
};

fn letter(message: Message, key: Option<&str>, hash: Option<PayloadHash>, reason: Reason) -> DeadLetter {
    DeadLetter {
        consumer: ConsumerName::new("ledger").unwrap(),
        scope: ScopeId(1),
        message,
        key: key.map(|key| IdempotencyKey::new(key).unwrap()),
        hash: hash.map(|hash| (hash, HashRuleId(3))),
        reason,
        attempts: 1,
        error: String::new(),
        fingerprint: Fingerprint::of(&FailureKind::new(reason, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

fn hex(identity: DeadLetterIdentity) -> String {
    identity.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from(origin: &str, payload: &'static str) -> Message {
    Message::new(payload).with_origin(Origin::new(origin))
}

/// Stores keep identities, so they may never change. Computed with Python's `hashlib`.
#[test]
fn identities_match_their_golden_vectors() {
    let paid = letter(from("orders/0/7", "paid"), Some("order-1"), Some(PayloadHash::of(b"paid")), Reason::Permanent);
    let unhashed = letter(from("orders/0/7", "<paid/>"), Some("order-1"), None, Reason::Malformed);
    let mut headers = Headers::default();
    headers.push("trace", Some(Bytes::from_static(b"1")));
    headers.push("none", None);
    let without_key = from("orders/0/7", "{}").with_headers(headers).with_record_key("customer-1").with_type("Paid");
    let tombstone = Message::tombstone().with_origin(Origin::new("orders/0/7")).with_id("orders/0/7@1700000000000");
    let golden = [
        (paid, "0a80bc36cb3101200b4f9d4c52a5a6431add8533c84d79f87d01f165c5369e55"),
        (unhashed, "8855af887b036e70c13673c8be4d122f310450e77819b1c58a6807069e398baa"),
        (
            letter(without_key, None, None, Reason::MissingKey),
            "0dd76214a64b8718717e39adb2da2ee9e3e7af36396f0ba3e282bb7df819de65",
        ),
        (
            letter(tombstone, None, None, Reason::MissingKey),
            "78467a9c690757fddace9168282678084c2165b5c0b8349a0eef8980857a80f0",
        ),
    ];
    for (dead_letter, expected) in golden {
        assert_eq!(hex(dead_letter.identity()), expected);
    }
}

/// A copy with a key may come from anywhere and have other headers; whatever else differs is another dead letter.
#[test]
fn with_a_key_equal_content_is_one_identity_wherever_it_comes_from() {
    let of = |origin, key, hash: &[u8], reason| {
        letter(from(origin, "p"), Some(key), Some(PayloadHash::of(hash)), reason).identity()
    };
    let first = of("q/1", "order-1", b"p", Reason::Permanent);
    assert_eq!(first, of("q/2", "order-1", b"p", Reason::Permanent));
    let traced = from("q/1", "p").with_header("trace", "2").with_type("other");
    assert_eq!(first, letter(traced, Some("order-1"), Some(PayloadHash::of(b"p")), Reason::Permanent).identity());
    let unhashed = letter(from("q/1", "p"), Some("order-1"), None, Reason::Permanent);
    assert_eq!(unhashed.payload_hash(), (PayloadHash::of(b"p"), None));
    let others = [
        of("q/1", "order-2", b"p", Reason::Permanent),
        of("q/1", "order-1", b"q", Reason::Permanent),
        of("q/1", "order-1", b"p", Reason::Conflict),
        unhashed.identity(),
        letter(from("q/1", "p"), None, None, Reason::Permanent).identity(),
    ];
    assert_eq!(others.iter().chain([&first]).collect::<HashSet<_>>().len(), 6);
}

/// Without a key, only the very same message at the very same place is a copy.
#[test]
fn without_a_key_whatever_differs_is_another_dead_letter() {
    let of = |message: Message| letter(message, None, None, Reason::MissingKey).identity();
    let plain = || from("q/1", "p");
    let same = letter(plain(), None, None, Reason::Malformed);
    assert_eq!(of(plain()), same.identity(), "the reason is that of the last run");
    let others = [
        plain(),
        from("q/2", "p"),
        from("q/1", "q"),
        Message::new("").with_origin(Origin::new("q/1")),
        Message::tombstone().with_origin(Origin::new("q/1")),
        plain().with_header("a", "b"),
        plain().with_header("ab", ""),
        plain().with_record_key("p"),
        plain().with_record_key(""),
        plain().with_type("p"),
        plain().with_id("q/1@1"),
        plain().with_id("q/1@2"),
    ];
    let count = others.len();
    assert_eq!(others.map(of).into_iter().collect::<HashSet<_>>().len(), count);
    assert_eq!(of(plain()), of(plain().with_id("7")), "an id that says nothing of the place changes nothing");
}

/// Rows keep fingerprints, and operators have them in scripts. Computed with Python's `hashlib`.
#[test]
fn fingerprints_match_their_golden_vectors() {
    let plain = FailureKind::new(Reason::Permanent, ErrorClass::Permanent);
    let routed = FailureKind {
        code: Some("40P01"),
        handler: Some("ledger"),
        message_type: Some("PurchaseRecorded"),
        ..FailureKind::new(Reason::AttemptsExhausted, ErrorClass::Transient)
    };
    let golden = [
        (plain, "f1-2557bade9fb556f8"),
        (FailureKind { code: Some("23514"), ..plain }, "f1-8610f4b59159e689"),
        (routed, "f1-01b83641b1e50155"),
    ];
    for (failure, expected) in golden {
        let fingerprint = Fingerprint::of(&failure);
        assert_eq!(fingerprint.to_string(), expected);
        assert_eq!(Fingerprint::parse(expected), Some(fingerprint));
    }
    for text in ["", "f1-", "f2-0123456789abcdef", "f1-0123456789ABCDEF", "f1-+123456789abcdef", "f1-0123456789abcdef0"]
    {
        assert_eq!(Fingerprint::parse(text), None, "{text}");
    }
}

/// Each fact counts, and none is taken for another.
#[test]
fn failures_that_differ_in_a_fact_have_other_fingerprints() {
    let plain = FailureKind::new(Reason::Permanent, ErrorClass::Permanent);
    let some = Some("x");
    let kinds = [
        plain,
        FailureKind::new(Reason::Conflict, ErrorClass::Permanent),
        FailureKind::new(Reason::Permanent, ErrorClass::Transient),
        FailureKind { code: some, ..plain },
        FailureKind { handler: some, ..plain },
        FailureKind { message_type: some, ..plain },
        FailureKind { message_type: Some(""), ..plain },
    ];
    let count = kinds.len();
    assert_eq!(kinds.iter().map(Fingerprint::of).collect::<HashSet<_>>().len(), count);
}
