use proptest::prelude::*;

use super::*;
use crate::{
    message::{Message, headers::Headers},
    names::check_text,
};

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).expect("a valid key")
}

fn field() -> JsonMember {
    JsonMember::field(KEY_FIELD)
}

fn with_null_header(name: &str) -> Message {
    let mut headers = Headers::default();
    headers.push(name, None);
    Message::new("").with_headers(headers)
}

fn found(source: &dyn KeySource, message: &Message) -> Result<Option<String>, KeyError> {
    source.key(message).map(|key| key.map(|key| key.as_str().to_owned()))
}

fn some(text: &str) -> Result<Option<String>, KeyError> {
    Ok(Some(text.to_owned()))
}

/// S1: the key's header is read byte for byte, once.
#[test]
fn s1_a_header_that_is_repeated_not_utf8_null_or_empty_is_malformed() {
    let header = Header::new(KEY_FIELD);
    let message = Message::new("{}");
    assert_eq!(found(&header, &message), Ok(None));
    assert_eq!(found(&header, &message.clone().with_header("IdempotencyKey", "k")), Ok(None), "names are exact");
    assert_eq!(found(&header, &message.clone().with_header(KEY_FIELD, "k-1")), some("k-1"));
    let twice = message.clone().with_header(KEY_FIELD, "k").with_header(KEY_FIELD, "k");
    assert_eq!(found(&header, &twice), Err(KeyError::Repeated { place: "header:idempotencykey".to_owned() }));
    let broken = message.clone().with_header(KEY_FIELD, &b"k\xff"[..]);
    assert_eq!(found(&header, &broken), Err(KeyError::NotUtf8));
    assert_eq!(found(&header, &message.with_header(KEY_FIELD, "")), Err(KeyError::Empty));
    assert_eq!(found(&header, &with_null_header(KEY_FIELD)), Err(KeyError::Empty), "a null value is no missing header");
}

#[test]
fn a_json_member_is_a_string_is_absent_or_is_malformed() {
    let json = |payload: &'static str| found(&field(), &Message::new(payload));
    let place = || "json:/idempotencykey".to_owned();
    assert_eq!(json(r#"{"a":1,"idempotencykey":"k-1"}"#), some("k-1"));
    assert_eq!(json(r#"{"idempotencykey":"\u006b-1"}"#), some("k-1"), "escapes are read");
    assert_eq!(json(r#"{"a":1}"#), Ok(None));
    assert_eq!(json(r#"{"idempotencykey":null}"#), Ok(None));
    assert_eq!(json(r#"{"idempotencykey":""}"#), Err(KeyError::Empty));
    assert_eq!(json(r#"{"idempotencykey":"a\u0000b"}"#), Err(KeyError::ControlCharacter));
    for value in ["7", "1.5", "true", "[]", "[\"k\"]", "{}", "{\"k\":\"k\"}"] {
        let message = Message::new(format!(r#"{{"idempotencykey":{value}}}"#));
        assert_eq!(found(&field(), &message), Err(KeyError::NotText { place: place() }), "{value}");
    }
    for payload in ["", "7", "\"k\"", "null", "[\"k\"]", "{", r#"{"idempotencykey":"k"} x"#, "plain text"] {
        assert_eq!(json(payload), Err(KeyError::NotJson { place: place() }), "{payload}");
    }
    assert_eq!(found(&field(), &Message::tombstone()), Ok(None), "E11: a tombstone has no members");
}

/// S10: a member that repeats at the key's level is refused, because readers may disagree about which one counts.
#[test]
fn s10_a_repeated_member_is_refused_with_its_place() {
    let message = Message::new(r#"{"idempotencykey":"a","idempotencykey":"a"}"#);
    let repeated = Err(KeyError::Repeated { place: "json:/idempotencykey".to_owned() });
    assert_eq!(found(&field(), &message), repeated);
    assert_eq!(found(&*default_key_source(), &message), repeated);
}

#[test]
fn a_member_is_found_by_pointer_also_under_arrays_and_escapes() {
    let payload = r#"{"order":{"ids":["a","b"],"a/b":"slash","m~n":"tilde"},"idempotencykey":"no"}"#;
    let at = |pointer| found(&JsonMember::at(pointer).expect("a pointer"), &Message::new(payload));
    assert_eq!(at("/order/ids/1"), some("b"));
    assert_eq!(at("/order/ids/2"), Ok(None));
    assert_eq!(at("/order/a~1b"), some("slash"));
    assert_eq!(at("/order/m~0n"), some("tilde"));
    assert_eq!(at("/order/none"), Ok(None));
    assert_eq!(found(&JsonMember::field("a/b~c"), &Message::new(r#"{"a/b~c":"k"}"#)), some("k"));
    assert_eq!(JsonMember::field("a/b~c").rule(), "json:/a~1b~0c");
    for malformed in ["", "order", "/a~", "/a~2b"] {
        assert!(JsonMember::at(malformed).is_none(), "{malformed:?}");
    }
}

/// Header and body both carry the key: they must agree, and each alone suffices.
#[test]
fn s1_header_and_body_that_disagree_are_malformed() {
    let source = default_key_source();
    let body = r#"{"idempotencykey":"a"}"#;
    assert_eq!(found(&*source, &Message::new(body)), some("a"));
    assert_eq!(found(&*source, &Message::new(body).with_header(KEY_FIELD, "a")), some("a"));
    assert_eq!(found(&*source, &Message::new("{}").with_header(KEY_FIELD, "a")), some("a"));
    let disagree = found(&*source, &Message::new(body).with_header(KEY_FIELD, "b"));
    let (first, second) = ("header:idempotencykey".to_owned(), "json:/idempotencykey".to_owned());
    assert_eq!(disagree, Err(KeyError::Disagree { first, second }));
    assert_eq!(found(&*source, &Message::new("{}")), Ok(None));
}

/// A key in a header needs no JSON; a payload that is none and carries no other key is malformed, not merely keyless.
#[test]
fn agree_and_first_of_pass_over_a_payload_that_is_no_json() {
    let source = default_key_source();
    assert_eq!(found(&*source, &Message::new(&b"\x00\xffavro"[..]).with_header(KEY_FIELD, "k")), some("k"));
    let event = Message::new(&b"\x00\xffavro"[..]).with_header("ce_source", "/s").with_header("ce_id", "1");
    assert_eq!(found(&*source, &event), some("2:/s:1"));
    let place = || "json:/idempotencykey".to_owned();
    assert_eq!(found(&*source, &Message::new(&b"\xff"[..])), Err(KeyError::NotJson { place: place() }));
    // A malformed key is never passed over for another source's.
    let wrong = Message::new(r#"{"idempotencykey":7}"#).with_header("ce_source", "/s").with_header("ce_id", "1");
    assert_eq!(found(&*source, &wrong), Err(KeyError::NotText { place: place() }));
    let chain = FirstOf(vec![Arc::new(Header::new("a")), Arc::new(Header::new("b"))]);
    let both = Message::new("").with_header("b", "2").with_header("a", "1");
    assert_eq!(found(&chain, &both), some("1"), "the first source wins, not the first header");
    assert_eq!(found(&chain, &Message::new("").with_header("b", "2")), some("2"));
    let empty = Message::new("").with_header("a", "").with_header("b", "2");
    assert_eq!(found(&chain, &empty), Err(KeyError::Empty));
}

#[test]
fn a_cloudevent_in_binary_mode_is_read_with_every_prefix() {
    for prefix in ["ce_", "ce-", "cloudEvents_", "cloudEvents:"] {
        let message = Message::new("not json")
            .with_header(&format!("{prefix}source"), "/shop")
            .with_header(&format!("{prefix}id"), "7");
        assert_eq!(found(&CloudEvent, &message), some("5:/shop:7"), "{prefix}");
        let named = message.clone().with_header(&format!("{prefix}idempotencykey"), "k");
        assert_eq!(found(&CloudEvent, &named), some("k"), "{prefix}: the extension goes first");
        let repeated = message.clone().with_header(&format!("{prefix}id"), "8");
        assert_eq!(found(&CloudEvent, &repeated), Err(KeyError::Repeated { place: "cloudevents:id".to_owned() }));
        let broken = message.with_header(&format!("{prefix}idempotencykey"), &b"\xc3"[..]);
        assert_eq!(found(&CloudEvent, &broken), Err(KeyError::NotUtf8));
    }
}

/// O26: one event has one key, whichever binding it came by.
#[test]
fn o26_values_over_http_are_read_decoded() {
    for (sent, key) in [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("%22%25%22%2541", "\"%\"%41"),
        ("100%", "100%"),
        ("%zz%4", "%zz%4"),
        ("%+4%ff", "%+4%ff"),
    ] {
        let message = |prefix: &str| Message::new("").with_header(&format!("{prefix}idempotencykey"), sent);
        assert_eq!(found(&CloudEvent, &message("ce-")), some(key), "{sent}");
        assert_eq!(found(&CloudEvent, &message("ce_")), some(sent), "{sent}: the other bindings encode nothing");
    }
    let control = Message::new("").with_header("ce-idempotencykey", "a%0Ab");
    assert_eq!(found(&CloudEvent, &control), Err(KeyError::ControlCharacter));
}

#[test]
fn a_cloudevent_in_structured_mode_is_read_where_the_content_type_says_so() {
    let payload = r#"{"specversion":"1.0","source":"/shop","id":"7","data":{"id":"x","id":"y"}}"#;
    for name in ["content-type", "content_type", "Content-Type"] {
        let message = Message::new(payload).with_header(name, "application/cloudevents+json; charset=UTF-8");
        assert_eq!(found(&CloudEvent, &message), some("5:/shop:7"), "{name}");
    }
    assert_eq!(found(&CloudEvent, &Message::new(payload)), Ok(None));
    assert_eq!(found(&CloudEvent, &Message::new(payload).with_header("content-type", "application/json")), Ok(None));
    let structured = |payload: &'static str| {
        found(&CloudEvent, &Message::new(payload).with_header("content-type", "application/cloudevents+json"))
    };
    assert_eq!(
        structured(r#"{"source":"/shop","id":7}"#),
        Err(KeyError::NotText { place: "cloudevents:id".to_owned() })
    );
    assert_eq!(structured("<xml/>"), Err(KeyError::NotJson { place: "cloudevents:idempotencykey".to_owned() }));
    assert_eq!(structured(r#"{"idempotencykey":"k","source":"/shop","id":"7"}"#), some("k"));
}

/// Half of a key is no key: `source` alone would make every event of a producer one message.
#[test]
fn a_cloudevent_without_source_or_without_id_has_no_key() {
    assert_eq!(found(&CloudEvent, &Message::new("").with_header("ce_source", "/shop")), Ok(None));
    assert_eq!(found(&CloudEvent, &Message::new("").with_header("ce_id", "7")), Ok(None));
    let empty = Message::new("").with_header("ce_source", "").with_header("ce_id", "7");
    assert_eq!(found(&CloudEvent, &empty), Err(KeyError::Empty));
}

/// S2, B11: the length of the first part keeps two pairs apart that concatenate to the same text.
#[test]
fn s2_joined_keys_are_length_prefixed_and_hashed_when_long() {
    let source = Join(Arc::new(Header::new("a")), Arc::new(Header::new("b")));
    let joined = |a: &str, b: &str| {
        found(&source, &Message::new("").with_header("a", a.to_owned()).with_header("b", b.to_owned()))
    };
    assert_eq!(joined("a", "bc"), some("1:a:bc"));
    assert_ne!(joined("a", "bc"), joined("ab", "c"));
    // 200:…:… exceeds 255 bytes; the digest was computed with Python's hashlib.
    let long = joined(&"s".repeat(200), &"i".repeat(100));
    assert_eq!(long, some("sha256:27bbf5e8317b1f5ef11bce26a255f4c4582ea1c175a330edeaaef566ab0ad9b1"));
    let bytes = |ids| joined(&"s".repeat(200), &"i".repeat(ids)).map(|key| key.map(|key| key.len()));
    assert_eq!((bytes(50), bytes(51)), (Ok(Some(255)), Ok(Some(71))), "as long as it fits it stays readable");
    assert_eq!(found(&source, &Message::new("").with_header("a", "x")), Ok(None));
    assert_eq!(source.rule(), "join(header:a,header:b)");
    let event = Message::new("").with_header("ce_source", "s".repeat(300)).with_header("ce_id", "a\u{7}");
    assert_eq!(found(&CloudEvent, &event), Err(KeyError::ControlCharacter), "hashing hides no control character");
    let event = Message::new("").with_header("ce_source", "s".repeat(300)).with_header("ce_id", "i");
    let expected = "sha256:1f6a334060ea2e8c796ecb889d33eb2d4181a3c79e2009629da6cde86533755a";
    assert_eq!(found(&CloudEvent, &event), some(expected));
}

#[test]
fn the_brokers_key_and_id_are_keys_only_where_asked_for() {
    let message = Message::new("{}").with_record_key("record").with_id("id-1");
    assert_eq!(found(&*default_key_source(), &message), Ok(None), "transport ids are no default");
    assert_eq!(found(&RecordKey, &message), some("record"));
    assert_eq!(found(&MessageId, &message), some("id-1"));
    assert_eq!(found(&RecordKey, &Message::new("").with_record_key(&b"\xff"[..])), Err(KeyError::NotUtf8));
    assert_eq!(found(&RecordKey, &Message::new("").with_record_key("")), Err(KeyError::Empty));
    assert_eq!(found(&MessageId, &Message::new("").with_id("a\nb")), Err(KeyError::ControlCharacter));
    let custom =
        key_fn("upper/1", |message| message.id().map(|id| IdempotencyKey::new(&id.to_uppercase())).transpose());
    assert_eq!(found(&custom, &message), some("ID-1"));
    assert_eq!(custom.rule(), "fn:upper/1");
}

/// A consumer is bound to its rule's text, so the texts are fixed.
#[test]
fn rules_that_find_other_keys_have_other_texts() {
    let both = Join(Arc::new(RecordKey), Arc::new(MessageId));
    let chain = FirstOf(vec![Arc::new(RecordKey), Arc::new(MessageId)]);
    let agree = Agree(vec![Arc::new(RecordKey), Arc::new(MessageId)]);
    assert_eq!(both.rule(), "join(record-key,message-id)");
    assert_eq!(chain.rule(), "record-key|message-id");
    assert_eq!(agree.rule(), "record-key&message-id");
    assert_eq!(default_key_source().rule(), "header:idempotencykey&json:/idempotencykey|cloudevents");
    let policies = [KeyPolicy::Token, KeyPolicy::Uuid, KeyPolicy::UuidStrict].map(KeyPolicy::rule);
    assert_eq!(policies, ["token", "uuid", "uuid-strict"]);
}

const V7: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Under the UUID policy a key is one UUID however its letters are written.
#[test]
fn case_variants_of_a_uuid_are_one_key() {
    for policy in [KeyPolicy::Uuid, KeyPolicy::UuidStrict] {
        assert_eq!(policy.apply(key(V7)), Ok(key(V7)));
        assert_eq!(policy.apply(key(&V7.to_uppercase())), Ok(key(V7)));
    }
    assert_eq!(KeyPolicy::Token.apply(key(&V7.to_uppercase())), Ok(key(&V7.to_uppercase())));
}

/// S1: an unset id would make every message a duplicate of the first.
#[test]
fn s1_nil_max_and_other_notations_are_refused() {
    let refused = [
        "00000000-0000-0000-0000-000000000000".to_owned(),
        "ffffffff-ffff-ffff-ffff-ffffffffffff".to_owned(),
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF".to_owned(),
        format!("{{{V7}}}"),
        format!("urn:uuid:{V7}"),
        V7.replace('-', ""),
        format!(" {V7}"),
        V7.replace('8', "g"),
        V7[..35].to_owned(),
        "order-1".to_owned(),
        "é".repeat(18),
        "01890a5dac-96-774b-bcce-b302099a8057".to_owned(),
    ];
    for text in refused {
        for policy in [KeyPolicy::Uuid, KeyPolicy::UuidStrict] {
            assert_eq!(policy.apply(key(&text)), Err(KeyError::NotUuid), "{policy:?} {text}");
        }
        assert!(KeyPolicy::Token.apply(key(&text)).is_ok());
    }
}

/// A text that only looks like a UUID (a sample with version b and variant c) passes unless version and variant
/// count.
#[test]
fn version_and_variant_count_only_under_the_strict_policy() {
    let sample = "11111111-aaaa-bbbb-cccc-000000000001";
    assert_eq!(KeyPolicy::Uuid.apply(key(sample)), Ok(key(sample)));
    assert_eq!(KeyPolicy::UuidStrict.apply(key(sample)), Err(KeyError::NotUuid));
    for version in "0123456789abcdef".chars() {
        let text = format!("01890a5d-ac96-{version}74b-bcce-b302099a8057");
        assert_eq!(KeyPolicy::UuidStrict.apply(key(&text)).is_ok(), ('1'..='8').contains(&version), "{text}");
    }
    for variant in "0123456789abcdef".chars() {
        let text = format!("01890a5d-ac96-774b-{variant}cce-b302099a8057");
        assert_eq!(KeyPolicy::UuidStrict.apply(key(&text)).is_ok(), "89ab".contains(variant), "{text}");
    }
}

/// Every source, at once.
fn every_source() -> Vec<Arc<dyn KeySource>> {
    let join: Arc<dyn KeySource> = Arc::new(Join(Arc::new(Header::new("a")), Arc::new(RecordKey)));
    let nested = JsonMember::at("/a/0/b").expect("a pointer");
    vec![
        default_key_source(),
        Arc::new(Header::new("a")),
        Arc::new(field()),
        Arc::new(nested),
        Arc::new(RecordKey),
        Arc::new(MessageId),
        Arc::new(CloudEvent),
        Arc::new(Agree(vec![Arc::new(Header::new("a")), Arc::new(RecordKey)])),
        Arc::new(FirstOf(vec![Arc::new(RecordKey), Arc::clone(&join)])),
        join,
    ]
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        "[\\[\\]{}\":,0-9a-z\\\\ ]{0,40}".prop_map(String::into_bytes),
        "\\PC{0,12}".prop_map(|text| serde_json::json!({ "idempotencykey": text, "source": "s", "id": text })
            .to_string()
            .into()),
        any::<String>().prop_map(|text| serde_json::json!({ "a": [{ "b": text }] }).to_string().into()),
    ]
}

proptest! {
    /// S1: whatever a broker delivers, no source panics, and none yields a key that a store could not hold.
    #[test]
    fn s1_any_bytes_yield_a_valid_key_an_error_or_nothing(
        payload in payloads(),
        name in prop_oneof![Just("a"), Just(KEY_FIELD), Just("ce_id"), Just("ce_idempotencykey"), Just("content-type")],
        value in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            any::<String>().prop_map(String::into_bytes),
            Just(b"application/cloudevents+json".to_vec()),
        ],
        record in proptest::collection::vec(any::<u8>(), 0..300),
        id in any::<String>(),
    ) {
        let message = Message::new(payload)
            .with_header(name, value.clone())
            .with_header("ce_source", value)
            .with_record_key(record)
            .with_id(&id);
        for source in every_source() {
            if let Ok(Some(key)) = source.key(&message) {
                prop_assert_eq!(check_text(key.as_str()), Ok(()));
                prop_assert!(!key.to_string().chars().any(char::is_control));
                for policy in [KeyPolicy::Uuid, KeyPolicy::UuidStrict] {
                    if let Ok(id) = policy.apply(key.clone()) {
                        prop_assert_eq!(id.as_str(), key.as_str().to_lowercase());
                    }
                }
            }
        }
    }

    /// S2, B11: two pairs of parts share a joined key only when they are equal.
    #[test]
    fn s2_joining_is_injective(a in "[a-c:0-9]{1,8}", b in "[a-c:0-9]{1,8}", c in "[a-c:0-9]{1,8}", d in "[a-c:0-9]{1,8}") {
        prop_assert_eq!(join(&a, &b) == join(&c, &d), (&a, &b) == (&c, &d));
        // The same text cut at two places.
        let text = format!("{a}{b}");
        for cut in 1..text.len() {
            let same = cut == a.len();
            prop_assert_eq!(join(&text[..cut], &text[cut..]) == join(&a, &b), same);
        }
    }

    /// A long pair is replaced by its digest, which still tells the pairs apart.
    #[test]
    fn joining_long_parts_tells_them_apart(a in "[ab]{200,220}", b in "[ab]{60,80}", cut in 1_usize..100) {
        let text = format!("{a}{b}");
        prop_assume!(cut != a.len());
        let joined = join(&a, &b).expect("a valid key");
        prop_assert!(joined.as_str().starts_with("sha256:") && joined.as_str().len() == 71);
        prop_assert_ne!(joined, join(&text[..cut], &text[cut..]).expect("a valid key"));
    }
}

/// A34: a message that is too large is found under its key where that stands outside of the payload, and never under
/// another one.
#[test]
fn a34_the_key_of_a_message_that_is_too_large_stands_outside_of_its_payload() {
    use OutsidePayload::{Key, NoKey, Unknown};
    let found = |source: &dyn KeySource, message: &Message| match source.outside_payload(message) {
        Key(key) => {
            assert_eq!(source.key(message), Ok(Some(key.clone())), "it is the key");
            key.to_string()
        }
        NoKey => "none".to_owned(),
        Unknown => "unknown".to_owned(),
    };
    let plain = Message::new(r#"{"idempotencykey":"inside"}"#).with_id("its-id");
    let told = plain.clone().with_header(KEY_FIELD, "inside");
    let cloud = plain.clone().with_header("ce_source", "shop").with_header("ce_id", "7");
    let chain = default_key_source();
    assert_eq!([&plain, &told, &cloud].map(|message| found(&chain, message)), ["unknown", "inside", "unknown"]);
    let header: Arc<dyn KeySource> = Arc::new(Header::new(KEY_FIELD));
    let inside: Arc<dyn KeySource> = Arc::new(JsonMember::field(KEY_FIELD));
    assert_eq!([&plain, &told].map(|message| found(&header, message)), ["none", "inside"]);
    assert_eq!((found(&MessageId, &plain), found(&RecordKey, &plain)), ("its-id".to_owned(), "none".to_owned()));
    let first = FirstOf(vec![Arc::clone(&inside), Arc::clone(&header)]);
    assert_eq!(found(&first, &told), "unknown", "the payload comes first");
    let first = FirstOf(vec![Arc::clone(&header), Arc::new(MessageId)]);
    assert_eq!([&plain, &told].map(|message| found(&first, message)), ["its-id", "inside"]);
    let joined = Join(Arc::clone(&header), Arc::new(MessageId));
    assert_eq!([&plain, &told].map(|message| found(&joined, message)), ["none", "6:inside:its-id"]);
    assert_eq!(found(&Join(header, inside), &told), "unknown");
    let structured = cloud.clone().with_header("content-type", "application/cloudevents+json");
    assert_eq!([&cloud, &structured].map(|message| found(&CloudEvent, message)), ["4:shop:7", "unknown"]);
    let function = key_fn("anything", |_| IdempotencyKey::new("made").map(Some));
    assert_eq!(found(&function, &plain), "unknown", "a function may read the payload");
}

#[test]
fn a_type_is_a_key_where_there_is_one() {
    assert_eq!(found(&MessageType, &Message::new("").with_type("order-paid")), some("order-paid"));
    assert_eq!(found(&MessageType, &Message::new("")), Ok(None));
}
