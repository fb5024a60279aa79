use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

/// Stands for something private: it may appear in no text that the engine writes.
const CANARY: &str = "canary-7f3a";

fn identified(message: Message, tenant: &str, consumer: &str, key: Option<&str>) -> Message {
    let tenant = if tenant.is_empty() { Tenant::default() } else { Tenant::new(tenant).expect("a tenant") };
    message.with_identity(Identity {
        tenant,
        derives_as: ConsumerName::new(consumer).expect("a name"),
        key: key.map(|key| IdempotencyKey::new(key).expect("a key")),
    })
}

/// Handed to providers, so these may never change. Computed with Python's `hashlib` and `uuid`.
#[test]
fn derived_keys_match_their_golden_vectors() {
    let derived =
        |tenant, consumer, key, label| identified(Message::new("{}"), tenant, consumer, key).derived_key(label);
    let golden = [
        (derived("", "ledger", Some("order-1"), "charge"), "0c5cd8cd-d6f6-8242-8f5d-1e74041d501b"),
        (derived("acme", "ledger", Some("order-1"), "charge"), "734f0ea8-da37-8275-a094-e31d38f65cd7"),
        (derived("", "ledger", Some("order-1"), "mail"), "7aebb381-a517-874e-9242-69c333228148"),
        (derived("", "ledger", Some("ordér-🧾"), "charge"), "599c04f1-7f79-817e-9a38-34fe9df5da6d"),
    ];
    for (id, expected) in golden {
        assert_eq!(id.to_string(), expected);
        assert_eq!((id.get_version_num(), id.get_variant()), (8, uuid::Variant::RFC4122));
    }
    let unprotected = Message::new("").with_origin(Origin::new("orders/0/17"));
    let unprotected = identified(unprotected, "", "ledger", None).derived_key("charge");
    assert_eq!(unprotected.to_string(), "9c9696a9-373a-899c-b367-0479a1f8b53a", "the origin takes the key's place");
}

/// S2: ids that idem derives itself, under labels that begin with `idem:`, never equal those of a handler's label, so
/// that no handler can take the id of an event that idem is about to send.
#[test]
fn s2_a_label_of_a_handler_never_gives_an_id_of_idems_own() {
    let derived = |label: &str| identified(Message::new(""), "", "ledger", Some("order-1")).derived_key(label);
    let parts: [&[u8]; 5] = [b"idem:derived-key:v1", b"", b"ledger", b"order-1", b"idem:event:1"];
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize()[..16]);
    let of_idem = uuid::Builder::from_custom_bytes(id).into_uuid();
    assert_ne!(derived("idem:event:1"), of_idem);
    assert_ne!(derived("idem:event:1"), derived("idem:event:2"));
    assert_eq!(
        derived("idem:event:1").to_string(),
        "dec2fbb8-03a4-8084-9b7c-0025245ea24c",
        "handed to providers, so it may never change"
    );
}

/// The id is the same on every attempt: nothing that a redelivery changes goes into it.
#[test]
fn a_derived_key_depends_on_nothing_that_a_redelivery_changes() {
    let derived = |message| identified(message, "t", "c", Some("k")).derived_key("l");
    let first = derived(Message::new("a").with_origin(Origin::new("queue/1")));
    let again = Message::new("b").with_origin(Origin::new("queue/2")).with_id("2").with_header("x", "y");
    assert_eq!(first, derived(again.with_sent_at(SystemTime::UNIX_EPOCH)));
}

/// S4: `Debug` prints sizes and a prefix of the hash, never a payload or a header's value.
#[test]
fn s4_debug_shows_neither_payload_nor_header_values() {
    let message = Message::new(CANARY)
        .with_header("authorization", CANARY)
        .with_record_key(CANARY)
        .with_ordering_key(OrderingKey::new(CANARY))
        .with_header("empty", "");
    for text in [format!("{message:?}"), format!("{message:#?}"), format!("{:?}", message.headers())] {
        assert!(!text.contains(CANARY), "{text}");
        let bytes: Vec<String> = CANARY.bytes().map(|byte| byte.to_string()).collect();
        assert!(!text.contains(&bytes.join(", ")), "not as a list of bytes either: {text}");
    }
    let text = format!("{message:?}");
    assert!(text.contains("11 bytes, sha256 ") && text.contains("authorization"), "{text}");
    assert!(format!("{:?}", Message::tombstone()).contains("none"));
    assert_eq!(format!("{:?}", message.ordering_key()), "Some(OrderingKey(11 bytes))");
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "only its decoding counts")]
enum Kind {
    Sale,
    Refund { cents: u64 },
}

/// A type whose own decoder quotes what it was given, as many do, in the disguise of serde's texts.
#[derive(Debug)]
struct Chatty;

impl<'de> Deserialize<'de> for Chatty {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Err(serde::de::Error::custom(format!("cannot read {text}, expected {text}")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only its decoding counts")]
struct Purchase {
    cents: u64,
    kind: Option<Kind>,
    #[serde(default)]
    tags: BTreeMap<u8, bool>,
    pair: Option<(u8, u8)>,
    chatty: Option<Chatty>,
    small: Option<u8>,
    dead_letter: Option<char>,
}

/// S4: serde quotes the value that it could not read; the engine's error names the place and the expectation instead.
#[test]
fn s4_a_payload_that_cannot_be_decoded_is_never_quoted() {
    let c = CANARY;
    let payloads = [
        format!(r#"{{"cents":"{c}"}}"#),
        format!(r#"{{"cents":"x, expected {c}"}}"#),
        format!(r#"{{"cents":{{"{c}":1}}}}"#),
        format!(r#"{{"cents":["{c}"]}}"#),
        format!(r#"{{"cents":1,"kind":"{c}"}}"#),
        format!(r#"{{"cents":1,"kind":"{c}, expected {c} at line 1"}}"#),
        format!(r#"{{"cents":1,"kind":{{"{c}":{{}}}}}}"#),
        format!(r#"{{"cents":1,"kind":{{"refund":"{c}"}}}}"#),
        format!(r#"{{"cents":1,"{c}":1}}"#),
        format!(r#"{{"cents":1,"missing field {c}":1}}"#),
        format!(r#"{{"cents":1,"tags":{{"{c}":true}}}}"#),
        format!(r#"{{"cents":1,"tags":"{c}"}}"#),
        format!(r#"{{"cents":1,"pair":[1,2,"{c}"]}}"#),
        format!(r#"{{"cents":1,"pair":["{c}"]}}"#),
        format!(r#"{{"cents":1,"chatty":"{c}"}}"#),
        format!(r#"{{"cents":1,"letter":"{c}"}}"#),
        format!(r#"{{"cents":1}} {c}"#),
        format!(r#"{{"cents":{c}}}"#),
        format!(r#"{{"{c}"#),
        format!(r#"{{"cents":1,"{c}\x":1}}"#),
        format!("\"{c}\""),
        c.to_owned(),
        format!("[\"{c}\"]"),
        format!("{{\"cents\":\"\u{1}{c}\"}}"),
    ];
    for payload in payloads {
        let message = Message::new(payload.clone());
        let error = message.json::<Purchase>().expect_err(&payload);
        let text = format!("{error} {error:?}");
        assert!(!text.contains(c) && !text.contains("canary"), "{payload}: {text}");
        assert!(text.starts_with("the payload is malformed: "), "{text}");
        let chatty = Message::new(payload).json::<Vec<Chatty>>().expect_err("it is no list of anything");
        assert!(!chatty.to_string().contains("canary"), "{chatty}");
    }
}

/// The facts by which a developer finds the fault are kept: the place, and the program's expectation.
#[test]
fn a_decoding_error_tells_the_place_and_what_was_expected() {
    let told = |payload: &'static str| Message::new(payload).json::<Purchase>().expect_err("malformed").to_string();
    assert_eq!(told(r#"{"cents":"5"}"#), "the payload is malformed: expected u64 at line 1 column 12");
    assert_eq!(told("{}"), "the payload is malformed: missing field `cents` at line 1 column 2");
    let kinds = "the payload is malformed: expected `sale` or `refund` at line 1 column 24";
    assert_eq!(told(r#"{"cents":1,"kind":"gift"}"#), kinds);
    assert_eq!(told("{\n  \"cents\""), "the payload is malformed: eof error at line 2 column 9");
    assert_eq!(told(r#"{"cents" 1}"#), "the payload is malformed: syntax error at line 1 column 10");
    let tombstone = Message::tombstone().json::<Purchase>().expect_err("E11").to_string();
    assert_eq!(tombstone, "the payload is malformed: there is no payload (a tombstone)");
}

/// S10: no parser is handed JSON that is nested deeper than 64 levels.
#[test]
fn s10_a_payload_deeper_than_64_levels_is_malformed() {
    let nested = |depth: usize| Message::new(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert!(nested(64).json::<serde::de::IgnoredAny>().is_ok());
    for depth in [65, 200, 100_000] {
        let error = nested(depth).json::<serde::de::IgnoredAny>().expect_err("too deep");
        assert_eq!(error.to_string(), "the payload is malformed: it is nested deeper than 64 levels");
    }
}

/// Headers keep order, repetition and absence of values, as Kafka delivers them.
#[test]
fn headers_are_kept_as_delivered() {
    let mut headers = Headers::default();
    assert!(headers.is_empty());
    headers.push("a", Some(Bytes::from_static(b"1")));
    headers.push("b", None);
    headers.push("a", Some(Bytes::from_static(b"2")));
    headers.push("c", Some(Bytes::from_static(b"\xff")));
    headers.push("d", Some(Bytes::from_static(b"4")));
    assert_eq!(headers.len(), 5);
    assert_eq!(headers.all("a").collect::<Vec<_>>(), [Some(&b"1"[..]), Some(b"2")]);
    assert_eq!(headers.all("b").collect::<Vec<_>>(), [None]);
    assert_eq!(headers.all("A").count(), 0);
    let texts = ["a", "b", "c", "d", "e"].map(|name| headers.text(name));
    assert_eq!(texts, [None, None, None, Some("4"), None], "a text is unique, present and UTF-8");
    assert_eq!(headers.iter().map(|(name, _)| name).collect::<String>(), "abacd");
}

#[test]
fn the_type_is_the_one_that_was_set_else_that_of_a_cloudevent() {
    for name in ["ce_type", "ce-type", "cloudEvents_type", "cloudEvents:type"] {
        let message = Message::new("").with_header(name, "order.placed");
        assert_eq!(message.message_type(), Some("order.placed"), "{name}");
        assert_eq!(message.clone().with_type("other").message_type(), Some("other"));
        assert_eq!(message.with_header(name, "order.paid").message_type(), None, "a repeated one is none");
    }
}

/// J7: messages in flight are bounded by bytes, so none may count as nothing.
#[test]
fn j7_a_message_counts_its_payload_headers_keys_and_itself() {
    let empty = Message::tombstone().bytes();
    assert!(empty >= size_of::<Parts>());
    let message = Message::new(vec![0; 1000]).with_header("name", vec![0; 100]).with_record_key(vec![0; 10]);
    let place = size_of::<(Box<str>, Option<Bytes>)>();
    assert_eq!(message.bytes(), empty + 1000 + place + 4 + 100 + 10);
    // S17: headers without name and value are nothing on the wire.
    let mut headers = Headers::with_capacity(99_000);
    (0..99_000).for_each(|_| headers.push("", None));
    assert_eq!((headers.bytes(), Message::tombstone().with_headers(headers).bytes()), (0, empty + 99_000 * place));
    let named = Message::tombstone().with_id("id").with_type("type").with_origin(Origin::new("origin"));
    assert_eq!(named.with_ordering_key(OrderingKey::new("order")).bytes(), empty + 2 + 4 + 6 + 5);
}

#[test]
fn a_message_from_the_future_has_no_age() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    let sent = |at| Message::new("").with_sent_at(SystemTime::UNIX_EPOCH + Duration::from_secs(at)).age(|| now);
    assert_eq!((sent(40), sent(100), sent(101)), (Some(Duration::from_secs(60)), Some(Duration::ZERO), None));
    assert_eq!(Message::new("").age(|| now), None);
}

proptest! {
    /// S2: the parts are length-prefixed, so no two different quadruples share an id, wherever a text is cut.
    #[test]
    fn s2_derived_keys_differ_wherever_the_same_text_is_cut(text in "[ab]{4,10}", cuts in proptest::collection::hash_set((1_usize..3, 1_usize..3, 1_usize..3), 2..6)) {
        let cut: HashSet<(&str, &str, &str, &str)> = cuts
            .into_iter()
            .filter(|(a, b, c)| a + b + c < text.len())
            .map(|(a, b, c)| (&text[..a], &text[a..a + b], &text[a + b..a + b + c], &text[a + b + c..]))
            .collect();
        let ids: HashSet<Uuid> = cut
            .iter()
            .map(|(tenant, consumer, key, label)| identified(Message::new(""), tenant, consumer, Some(key)).derived_key(label))
            .collect();
        prop_assert_eq!(ids.len(), cut.len());
    }

    /// S4, S10: any payload decodes, or fails with a text that does not depend on its content beyond the place.
    #[test]
    fn s4_any_payload_decodes_or_is_told_without_quoting(payload in proptest::collection::vec(any::<u8>(), 0..60), word in "[A-Z]{8}") {
        let _ = Message::new(payload).json::<Purchase>();
        for json in [
            serde_json::json!({ "cents": word }),
            serde_json::json!({ "cents": 1, "kind": word }),
            serde_json::json!({ "cents": 1, word.as_str(): 1 }),
            serde_json::json!([word]),
        ] {
            let error = Message::new(json.to_string()).json::<Purchase>().expect_err("malformed").to_string();
            prop_assert!(!error.contains(word.as_str()), "{}", error);
        }
    }
}
