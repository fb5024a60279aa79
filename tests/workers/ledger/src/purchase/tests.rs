use super::*;

fn read(payload: &str) -> Result<Purchase, String> {
    Purchase::read(&Message::new(payload.to_owned())).map_err(|error| error.to_string())
}

/// A good purchase with one member replaced; `value` is JSON.
fn with(name: &str, value: &str) -> Result<Purchase, String> {
    let members = [("customer", r#""00001""#), ("day", r#""1997-01-01""#), ("cds", "1"), ("cents", "1177")];
    let members =
        members.map(|(member, usual)| format!(r#""{member}":{}"#, if member == name { value } else { usual }));
    read(&format!("{{{}}}", members.join(",")))
}

#[test]
fn a_purchase_is_read_and_other_members_are_allowed() {
    let purchase =
        read(r#"{"x":[{"x":1}],"cents":0,"cds":2147483647,"day":"2000-02-29","customer":"é","idempotencykey":"k"}"#);
    let expected = Purchase { customer: "é".into(), day: "2000-02-29".into(), cds: i32::MAX, cents: 0 };
    assert_eq!(purchase, Ok(expected));
    assert_eq!(with("cents", "9223372036854775807").unwrap().cents, i64::MAX);
    assert_eq!(with("customer", &format!("{:?}", "ü".repeat(200))).unwrap().customer.chars().count(), 200);
}

#[test]
fn what_is_out_of_bounds_or_of_another_type_is_malformed() {
    let long = format!("{:?}", "ü".repeat(201));
    for (name, values) in [
        ("customer", vec![r#""""#, &long, r#""a\u0000""#, "1", "null", "[]", r#"["a"]"#]),
        ("cds", vec!["-1", "2147483648", "1.0", "1e2", r#""1""#, "null", "true", "99999999999999999999"]),
        ("cents", vec!["-1", "9223372036854775808", "1.5", r#""1""#, "null", "{}"]),
        (
            "day",
            vec![
                r#""""#,
                r#""1997-1-01""#,
                r#""1997-02-29""#,
                r#""1900-02-29""#,
                r#""1997-04-31""#,
                r#""1997-13-01""#,
                r#""1997-00-10""#,
                r#""1997-01-00""#,
                r#""1997-01-32""#,
                r#""0000-01-01""#,
                r#""19970101""#,
                r#""1997-01-01T00:00""#,
                r#"" 1997-01-01""#,
                r#""1997/01/01""#,
                r#""+997-01-01""#,
                r#""199７-01-01""#,
                "19970101",
                "null",
            ],
        ),
    ] {
        for value in values {
            let error = with(name, value).expect_err(value);
            assert!(error.contains(&format!("{name} must be")), "{value}: {error}");
        }
    }
}

#[test]
fn what_is_no_object_lacks_a_member_or_repeats_one_is_malformed() {
    for payload in ["", "x", "null", "[]", "1", r#""a""#, "{}", "{", r#"{"customer":"a"} x"#] {
        assert!(read(payload).is_err(), "{payload}");
    }
    for repeated in [r#""cents":1177,"cents":1177"#, r#""cents":1,"x":1,"x":1"#, r#""cents":1,"c\u0065nts":2"#] {
        let payload = format!(r#"{{"customer":"a","day":"1997-01-01","cds":1,{repeated}}}"#);
        let error = read(&payload).unwrap_err();
        assert!(error.contains("repeated"), "{error}");
    }
    assert!(Purchase::read(&Message::tombstone()).is_err());
    assert!(Purchase::read(&Message::new(&b"{\"customer\":\"\xff\"}"[..])).is_err());
}

#[test]
fn s4_no_error_quotes_the_payload() {
    for payload in [r#""canary""#, r#"{"customer":"canary","day":"canary"}"#, r#"{"canary":1,"canary":2}"#, "{canary"] {
        assert!(!read(payload).unwrap_err().contains("canary"), "{payload}");
    }
}
