use proptest::prelude::*;
use std::collections::HashSet;

use super::*;

fn hash(rule: &dyn PayloadHasher, payload: &str) -> Result<PayloadHash, HashPayloadError> {
    rule.hash(&Message::new(payload.to_owned()))
}

fn only(pointers: &[&str]) -> JsonMembers {
    JsonMembers::only(pointers.iter().copied()).expect("pointers")
}

fn without(pointers: &[&str]) -> JsonMembers {
    JsonMembers::without(pointers.iter().copied()).expect("pointers")
}

/// The digests were computed with Python's `hashlib`.
#[test]
fn the_raw_hash_is_sha_256_of_the_bytes() {
    let golden = [
        ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (r#"{"cents":995}"#, "706aa0d30fc323d98c98e367a5e686abd49badfdc76c0a348998dc987452068f"),
        ("null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    ];
    for (payload, digest) in golden {
        assert_eq!(hash(&RawPayload, payload).map(|hash| hash.to_string()), Ok(digest.to_owned()));
    }
    assert_eq!(format!("{:?}", PayloadHash::of(b"")), "PayloadHash(e3b0c442…)");
    assert_eq!(PayloadHash::from_bytes(*PayloadHash::of(b"x").as_bytes()), PayloadHash::of(b"x"));
}

/// The digests were computed with Python's `hashlib` from the forms that the comments show.
#[test]
fn the_rules_have_golden_vectors() {
    // {"a":1,"b":{"x":1,"y":25e-1}}
    let digest = "a5921370e76f6f3ca8e064d241fa4002d837daa03642c4cea277f8845b85a5b9";
    let payload = r#"{"b":{"y":2.50,"x":1.0},"a":10e-1,"sent_at":7}"#;
    assert_eq!(hash(&without(&["/sent_at"]), payload).map(|hash| hash.to_string()), Ok(digest.to_owned()));
    // 2:/a=15e-1, 2:/b="x", each with a line feed
    let digest = "33929275e37e18442441e267f9f37c3d22819854159f3163ef43cb2ed44f1b31";
    let payload = r#"{"b":"x","a":1.5}"#;
    assert_eq!(hash(&only(&["/a", "/b"]), payload).map(|hash| hash.to_string()), Ok(digest.to_owned()));
    // The raw hash, then a byte 1 and the type, or nothing where there is no type.
    for (message_type, digest) in [
        (Some("OrderPlaced"), "27e1905918d065e167b239ae816c6d24c344e49f25f5ba783bf1cd6280af99a3"),
        (Some(""), "0280b1f42649c1b6038564b0c324d7a8fcb49809ff07d61670d1d4d05f5e6e5b"),
        (None, "8ef7af0acdf60af9922ccf16cf08fbde967e0828adb46171ca18c038f406945f"),
    ] {
        let message = Message::new("ok");
        let message = match message_type {
            Some(name) => message.with_type(name),
            None => message,
        };
        assert_eq!(WithType::new(RawPayload).hash(&message).map(|hash| hash.to_string()), Ok(digest.to_owned()));
    }
}

/// C12: with a type, each rule has another text, and one header cannot imitate another.
#[test]
fn c12_the_type_is_part_of_the_rules_text() {
    let by = |name: &str| WithType::by_header(name, RawPayload).rule();
    assert_eq!(WithType::new(RawPayload).rule(), "raw+type/1");
    assert_eq!(by("EventType"), "raw+type(9:EventType)/1");
    assert_eq!(WithType::new(only(&["/a"])).rule(), r#"json-only+type/1:["/a"]"#);
    let function = |name: &str| hash_fn(name, |_| Ok(Vec::new()));
    let rules = [
        by("a"),
        by("a)/1"),
        WithType::by_header("a", function("b")).rule(),
        WithType::new(function("(1:a):b")).rule(),
        function("b").rule(),
    ];
    assert_eq!(rules.iter().collect::<HashSet<_>>().len(), rules.len());
}

/// C13: a consumer that gets a router keeps every rule by which it may have recorded, typed or not.
#[test]
fn c13_rules_with_a_type_keep_those_without() {
    let texts = |rules: HashRules| rules.all().map(|rule| rule.rule()).collect::<Vec<_>>();
    let place = TypePlace::Message;
    assert_eq!(texts(HashRules::default().with_type(&place)), ["raw+type/1", "unhashed/1", "raw/1"]);
    let changed = HashRules::new(only(&["/id"])).and_formerly(RawPayload);
    let expected = [r#"json-only+type/1:["/id"]"#, "unhashed/1", "raw/1", r#"json-only/1:["/id"]"#, "raw+type/1"];
    assert_eq!(texts(changed.with_type(&place)), expected);
    let own = HashRules::new(WithType::new(RawPayload)).with_type(&place);
    assert_eq!(texts(own), ["raw+type/1", "unhashed/1"], "who hashes the type already is left alone");
    let gone = HashRules::new(RawPayload).and_formerly(WithType::new(only(&["/id"])));
    assert_eq!(texts(gone), ["raw/1", "unhashed/1", r#"json-only+type/1:["/id"]"#]);
}

/// E11: Kafka's tombstone, an empty payload and JSON's null are three things, under every rule.
#[test]
fn e11_a_tombstone_differs_from_an_empty_payload() {
    assert_eq!(RawPayload.hash(&Message::tombstone()), Ok(PayloadHash::NONE));
    assert_ne!(RawPayload.hash(&Message::new("")), Ok(PayloadHash::NONE));
    assert_eq!(only(&["/a"]).hash(&Message::tombstone()), Ok(PayloadHash::NONE));
    assert_ne!(hash(&without(&["/a"]), "null"), Ok(PayloadHash::NONE));
    assert!(hash(&only(&["/a"]), "").is_err());
}

/// B14: the raw rule tells spellings apart, the canonical ones do not.
#[test]
fn b14_members_in_another_order_differ_raw_and_agree_canonically() {
    let (one, other) = (r#"{"a":1,"b":{"x":1.0,"y":2}}"#, "{ \"b\": {\"y\":2,\"x\":1}, \"a\":1 }");
    assert_ne!(hash(&RawPayload, one), hash(&RawPayload, other));
    for rule in [only(&["/a", "/b"]), without(&["/none"])] {
        assert_eq!(hash(&rule, one), hash(&rule, other), "{rule:?}");
    }
}

#[test]
fn only_the_named_members_count() {
    let rule = only(&["/id", "/cents"]);
    let base = hash(&rule, r#"{"id":"a","cents":5,"sent_at":1}"#);
    assert!(base.is_ok());
    assert_eq!(base, hash(&rule, r#"{"sent_at":2,"cents":5,"id":"a","new":true}"#));
    assert_ne!(base, hash(&rule, r#"{"id":"a","cents":6,"sent_at":1}"#));
    assert_ne!(base, hash(&rule, r#"{"id":"a","cents":"5","sent_at":1}"#));
    // Values cannot wander from one member to the other.
    assert_ne!(hash(&rule, r#"{"id":1,"cents":2}"#), hash(&rule, r#"{"id":2,"cents":1}"#));
    assert_ne!(hash(&rule, r#"{"id":1}"#), hash(&rule, r#"{"cents":1}"#), "also where the other is absent");
    assert_eq!(
        hash(&only(&["/cents", "/id", "/id"]), r#"{"id":"a","cents":5}"#),
        hash(&rule, r#"{"id":"a","cents":5}"#)
    );
}

#[test]
fn all_but_the_ignored_members_count() {
    let rule = without(&["/sent_at", "/trace/id", "/items/0"]);
    let base = hash(&rule, r#"{"cents":5,"sent_at":1,"trace":{"id":1,"hop":1},"items":[1,2]}"#);
    assert_eq!(base, hash(&rule, r#"{"trace":{"hop":1},"items":[9,2],"cents":5}"#));
    assert_ne!(base, hash(&rule, r#"{"trace":{"hop":2},"items":[9,2],"cents":5}"#));
    assert_ne!(base, hash(&rule, r#"{"trace":{"hop":1},"items":[9,3],"cents":5}"#));
    assert_ne!(base, hash(&rule, r#"{"trace":{"hop":1},"items":[9,2],"cents":5,"new":null}"#));
}

#[test]
fn an_absent_member_differs_from_null() {
    for rule in [only(&["/a"]), without(&["/z"])] {
        assert_ne!(hash(&rule, r#"{"a":null,"b":1}"#), hash(&rule, r#"{"b":1}"#), "{rule:?}");
    }
}

/// S10, X: a payload without a single canonical form is refused, not hashed by one of its readings.
#[test]
fn s10_repeated_members_are_refused() {
    for rule in [only(&["/a"]), without(&["/a"])] {
        for payload in [r#"{"a":1,"a":2}"#, r#"{"x":{"b":1,"b":1}}"#, "{", "", "{} {}", &"[".repeat(65)] {
            assert!(hash(&rule, payload).is_err(), "{payload}");
        }
    }
}

/// C10: numbers beyond 2^53 have an exact form as well.
#[test]
fn c10_numbers_are_compared_by_their_exact_values() {
    for rule in [only(&["/x"]), without(&["/a"])] {
        let of = |number: &str| hash(&rule, &format!(r#"{{"x":{number}}}"#));
        assert!(of("9007199254740993").is_ok() && of("1e17") == of("100000000000000000.0"));
        assert_ne!(of("9007199254740993"), of("9007199254740992"));
        assert_ne!(of("0.123456789012345678"), of("0.123456789012345679"));
        assert_ne!(of(r#"{"$serde_json::private::Number":"5"}"#), of("5"));
    }
}

/// S4: the error names the rule and the place, never the payload.
#[test]
fn s4_a_payload_that_cannot_be_hashed_is_not_quoted() {
    for payload in [r#"{"canary":"canary","canary":1}"#, r#"{"a": canary}"#, "canary", r#"["canary"#] {
        let error = hash(&without(&["/at"]), payload).expect_err("it is no canonical JSON");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        assert!(error.to_string().contains(r#"json-without/1:["/at"]"#), "{error}");
    }
}

/// B15: the text is stored with every record, so it must stay as it is for as long as the hash does.
#[test]
fn b15_rule_texts_are_stable_and_distinct() {
    assert_eq!(RawPayload.rule(), "raw/1");
    assert_eq!(only(&["/b", "/a"]).rule(), r#"json-only/1:["/a","/b"]"#);
    assert_eq!(without(&["/b", "/a", "/b"]).rule(), r#"json-without/1:["/a","/b"]"#);
    let function = hash_fn("cents/1", |message| Ok(message.payload().map(|p| p.to_vec()).unwrap_or_default()));
    assert_eq!((function.rule().as_str(), format!("{function:?}").as_str()), ("fn:cents/1", "HashFn(cents/1)"));
    assert_eq!(hash(&function, "x"), Ok(PayloadHash::of(b"x")));
    let rules = [
        RawPayload.rule(),
        only(&["/a"]).rule(),
        only(&["/b"]).rule(),
        only(&["/a", "/b"]).rule(),
        only(&["/a\",\"/b"]).rule(),
        only(&["/a,b"]).rule(),
        without(&["/a"]).rule(),
        function.rule(),
    ];
    assert_eq!(rules.iter().collect::<HashSet<_>>().len(), rules.len());
    assert!(
        JsonMembers::only(["a"]).is_none()
            && JsonMembers::without([""]).is_none()
            && JsonMembers::only(["/~"]).is_none()
    );
}

/// B15: the current rule comes first, which is the order in which a store interns them.
#[test]
fn b15_the_current_rule_goes_before_the_former_ones() {
    let rules = HashRules::new(only(&["/id"])).and_formerly(RawPayload).and_formerly(without(&["/at"]));
    let texts: Vec<String> = rules.all().map(|rule| rule.rule()).collect();
    // Records of another system have none, and every build knows that.
    let expected = [r#"json-only/1:["/id"]"#, "unhashed/1", "raw/1", r#"json-without/1:["/at"]"#];
    assert_eq!(texts, expected);
    assert_eq!(HashRules::default().all().map(|rule| rule.rule()).collect::<Vec<_>>(), ["raw/1", "unhashed/1"]);
}

proptest! {
    /// B14: members in any order, and anything in the ignored ones, give one hash; another value in a member that
    /// counts gives another.
    #[test]
    fn b14_the_hash_of_members_knows_no_order(
        members in proptest::collection::btree_map("[a-f]{1,2}", -9_i64..9, 1..6)
            .prop_map(|members| members.into_iter().collect::<Vec<_>>())
            .prop_flat_map(|members| (Just(members.clone()), Just(members).prop_shuffle())),
        at in any::<u32>(),
    ) {
        let (one, other) = members;
        let written = |members: &[(String, i64)], at: u32| {
            let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            format!("{{\"sent_at\":{at},{}}}", members.join(","))
        };
        let pointers: Vec<String> = one.iter().map(|(name, _)| format!("/{name}")).collect();
        let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
        let mut changed = other.clone();
        changed[0].1 += 1;
        for rule in [only(&pointers), without(&["/sent_at"])] {
            let base = hash(&rule, &written(&one, 0));
            prop_assert!(base.is_ok());
            prop_assert_eq!(&base, &hash(&rule, &written(&other, at)));
            prop_assert_ne!(&base, &hash(&rule, &written(&changed, at)));
        }
    }
}
