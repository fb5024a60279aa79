use proptest::prelude::*;

use super::*;
use crate::json::exact::exact;

fn path(tokens: &[&str]) -> Vec<String> {
    tokens.iter().map(|token| (*token).to_owned()).collect()
}

fn text(json: &str, tokens: &[&str]) -> Result<Option<String>, MemberError> {
    text_at(json.as_bytes(), &path(tokens))
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn canonical(json: &str) -> Result<String, String> {
    let mut out = String::new();
    exact(json.as_bytes())?.write(&mut out);
    Ok(out)
}

/// S10: exactly 64 levels pass, and deeper nesting is refused before anything recurses.
#[test]
fn s10_json_deeper_than_64_levels_is_refused() {
    assert!(!deeper_than_max(nested(64).as_bytes()));
    assert!(deeper_than_max(nested(65).as_bytes()));
    assert!(deeper_than_max("{\"a\":".repeat(200).as_bytes()), "also when it is never closed");
    assert!(!deeper_than_max(format!("[{}]", vec!["[]"; 1000].join(",")).as_bytes()), "width is no depth");
    let member = |depth| format!(r#"{{"deep":{},"k":"v"}}"#, nested(depth));
    assert_eq!(text(&member(63), &["k"]), Ok(Some("v".to_owned())));
    assert_eq!(text(&member(64), &["k"]), Err(MemberError::NotJson));
    assert_eq!(text(&member(200), &["k"]), Err(MemberError::NotJson));
    assert!(canonical(&nested(64)).is_ok());
    assert_eq!(canonical(&nested(65)), Err("it is nested deeper than 64 levels".to_owned()));
    assert!(text(&"[".repeat(1_000_000), &["k"]).is_err());
}

#[test]
fn brackets_inside_of_strings_are_no_levels() {
    let brackets = "[{".repeat(100);
    for string in
        [brackets.clone(), format!(r#"\"{brackets}"#), format!(r"\\\\{brackets}"), format!(r#"a\\\"{brackets}"#)]
    {
        let json = format!(r#"{{"k":"{string}"}}"#);
        assert!(!deeper_than_max(json.as_bytes()), "{json}");
        assert!(matches!(text(&json, &["k"]), Ok(Some(_))), "{json}");
    }
    // A backslash outside of a string escapes nothing.
    assert!(deeper_than_max(format!("\\\"{}", "[".repeat(65)).as_bytes()) || text("\\\"", &["k"]).is_err());
}

/// S10: members that repeat on the way to the pointer are refused; elsewhere they do not matter.
#[test]
fn s10_a_repeated_member_is_refused_only_beside_the_path() {
    let repeated = Err(MemberError::Repeated);
    assert_eq!(text(r#"{"k":"a","k":"b"}"#, &["k"]), repeated);
    assert_eq!(text(r#"{"x":1,"x":2,"k":"a"}"#, &["k"]), repeated, "at the top level");
    assert_eq!(text(r#"{"k":"a","x":1,"x":2}"#, &["k"]), repeated, "after the member");
    assert_eq!(text(r#"{"o":{"k":"a","x":1,"x":2}}"#, &["o", "k"]), repeated, "on the path");
    assert_eq!(text(r#"{"o":{"k":"a"},"o":{"k":"b"}}"#, &["o", "k"]), repeated);
    assert_eq!(text(r#"[{"k":"a","k":"b"}]"#, &["0", "k"]), repeated);
    assert_eq!(text(r#"{"k":"a","\u006b":"b"}"#, &["k"]), repeated, "also when it is written with an escape");
    let elsewhere = r#"{"data":{"x":1,"x":2},"k":"a"}"#;
    assert_eq!(text(elsewhere, &["k"]), Ok(Some("a".to_owned())));
    assert_eq!(text(r#"[{"x":1,"x":2},"a"]"#, &["1"]), Ok(Some("a".to_owned())));
}

#[test]
fn s10_a_repeated_member_is_refused_however_many_there_are() {
    let object = |repeated: usize| {
        let members: String = (0..20).map(|n| format!(r#""m{n}":{n},"#)).collect();
        text(&format!(r#"{{{members}"key":"k","m{repeated}":0}}"#), &["key"])
    };
    for repeated in 0..20 {
        assert_eq!(object(repeated), Err(MemberError::Repeated), "m{repeated}");
    }
    assert_eq!(object(20), Ok(Some("k".to_owned())));
}

#[test]
fn a_null_or_missing_member_is_absent_and_another_type_is_told() {
    for json in [r#"{"k":null}"#, "{}", r#"{"other":"x"}"#] {
        assert_eq!(text(json, &["k"]), Ok(None), "{json}");
    }
    for value in ["0", "-1", "1e3", "18446744073709551615", "true", "[]", "[null]", "{}", r#"{"a":1}"#] {
        assert_eq!(text(&format!(r#"{{"k":{value}}}"#), &["k"]), Err(MemberError::NotText), "{value}");
    }
    for parent in ["7", "\"text\"", "null", "false"] {
        assert_eq!(text(&format!(r#"{{"o":{parent}}}"#), &["o", "k"]), Err(MemberError::NotJson), "{parent}");
    }
}

#[test]
fn a_step_into_an_array_is_an_index() {
    let json = r#"{"a":["x",{"k":"y"},null]}"#;
    assert_eq!(text(json, &["a", "0"]), Ok(Some("x".to_owned())));
    assert_eq!(text(json, &["a", "1", "k"]), Ok(Some("y".to_owned())));
    assert_eq!(text(json, &["a", "2"]), Ok(None));
    assert_eq!(text(json, &["a", "3"]), Ok(None));
    assert_eq!(text(json, &["a", &usize::MAX.to_string()]), Ok(None));
    assert_eq!(text(json, &["a", "k"]), Err(MemberError::NotJson));
    assert_eq!(text(json, &["a", "-"]), Err(MemberError::NotJson));
}

/// S1: a key is read from a whole JSON document of valid UTF-8, never from a piece of one.
#[test]
fn s1_trailing_garbage_truncation_and_invalid_utf8_are_no_json() {
    for json in [r#"{"k":"a"}x"#, r#"{"k":"a"}{"k":"b"}"#, r#"{"k":"a"#, r#"{"k":"a""#, r#"{"k":"a",}"#, r#"{k:"a"}"#] {
        assert_eq!(text(json, &["k"]), Err(MemberError::NotJson), "{json}");
    }
    assert_eq!(text(" {\"k\":\"a\"}\n", &["k"]), Ok(Some("a".to_owned())));
    for json in [&b"{\"k\":\"a\xff\"}"[..], b"{\"k\xff\":\"a\"}", b"\xff{\"k\":\"a\"}", b"{\"k\":\"\\ud800\"}"] {
        assert_eq!(text_at(json, &path(&["k"])), Err(MemberError::NotJson), "{json:?}");
    }
    // The payload cannot imitate the engine's own marks.
    assert_eq!(text(&format!(r#"{{"k":"{REPEATED}"}}"#), &["k"]), Ok(Some(REPEATED.to_owned())));
}

#[test]
fn a_pointer_is_unescaped_once_and_in_order() {
    assert_eq!(pointer(""), Some(Vec::new()));
    assert_eq!(pointer("/"), Some(path(&[""])));
    assert_eq!(pointer("/a~1b/m~0n"), Some(path(&["a/b", "m~n"])));
    assert_eq!(pointer("/~01"), Some(path(&["~1"])), "RFC 6901 §4: first ~1, then ~0");
    for malformed in ["a", "a/b", "/~", "/a~2", "/~~0", "/a~/b"] {
        assert_eq!(pointer(malformed), None, "{malformed}");
    }
}

#[test]
fn the_canonical_form_knows_no_order_spacing_or_notation() {
    let one = canonical(r#" { "b" : [1.0, 1e1 , -0.0], "a" : "\u0041/\/" } "#);
    assert_eq!(one, Ok(r#"{"a":"A//","b":[1,1e1,0]}"#.to_owned()));
    assert_eq!(canonical(r#"{"a":"A//","b":[1,10,-0]}"#), one);
    assert_eq!(canonical("[0.1,-2.5,true,false,null]"), Ok("[1e-1,-25e-1,true,false,null]".to_owned()));
    assert_ne!(canonical("[1,2]"), canonical("[2,1]"), "the order of a list counts");
    assert_ne!(canonical(r#""1""#), canonical("1"));
    assert_ne!(canonical(r#"{"a":null}"#), canonical("{}"));
}

/// S4: the error names the problem without a word of the payload.
#[test]
fn s4_what_is_wrong_is_told_without_the_payload() {
    assert_eq!(canonical(r#"{"secret":1,"secret":2}"#), Err("a member repeats".to_owned()));
    assert_eq!(canonical("{\"secret\" secret"), Err("it is no valid JSON at line 1 column 11".to_owned()));
    assert!(canonical("{}{}").is_err());
}

#[test]
fn members_are_found_and_removed_by_path() {
    let removed = |json: &str, tokens: &[&str]| {
        let mut tree = exact(json.as_bytes()).expect("JSON");
        tree.remove(&path(tokens));
        let mut out = String::new();
        tree.write(&mut out);
        out
    };
    assert_eq!(removed(r#"{"a":1,"b":2}"#, &["a"]), r#"{"b":2}"#);
    assert_eq!(removed(r#"{"a":[{"x":1,"y":2}]}"#, &["a", "0", "x"]), r#"{"a":[{"y":2}]}"#);
    assert_eq!(removed(r#"{"a":[1,2,3]}"#, &["a", "1"]), r#"{"a":[1,,3]}"#, "its neighbours keep their places");
    for (json, tokens) in
        [("{}", &["a"][..]), ("7", &["a"]), (r#"{"a":1}"#, &["a", "b"]), ("[1]", &["x"]), ("[1]", &["5"])]
    {
        assert_eq!(removed(json, tokens), json);
    }
    let tree = exact(br#"{"a":[{"x":"v"}]}"#).expect("JSON");
    assert!(matches!(tree.at(&path(&["a", "0", "x"])), Some(Canonical::Scalar(text)) if text == "\"v\""));
    assert!(tree.at(&path(&["a", "1", "x"])).is_none() && tree.at(&path(&["b"])).is_none());
}

/// The slow way to count levels: as a parser of unlimited depth sees them.
fn depth(value: &serde_json::Value) -> usize {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Null | Bool(_) | Number(_) | String(_) => 0,
        Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
    }
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
        "[\\[\\]{}\"\\\\]{0,8}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            proptest::collection::btree_map("[a-d\"\\\\]{0,2}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

/// `value` written with its members in the reverse order.
fn reversed(value: &serde_json::Value, out: &mut String) {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Null | Bool(_) | Number(_) | String(_) => out.push_str(&value.to_string()),
        Array(items) => {
            out.push_str("[ ");
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { " , " } else { "" });
                reversed(item, out);
            }
            out.push(']');
        }
        Object(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().rev().enumerate() {
                out.push_str(if index > 0 { ",\n" } else { "" });
                out.push_str(&format!("{} :", quoted(name)));
                reversed(member, out);
            }
            out.push('}');
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_scanned_parsed_and_looked_into_without_a_panic(
        json in proptest::collection::vec(any::<u8>(), 0..80),
        tokens in proptest::collection::vec("[a-c0-9]{0,2}", 0..3),
    ) {
        let _ = (deeper_than_max(&json), text_at(&json, &tokens), exact(&json).map(|tree| tree.at(&tokens).is_some()));
    }

    #[test]
    fn the_scan_counts_levels_as_a_parser_does(value in values(), around in 55_usize..64) {
        let json = format!("{}{value}{}", "[".repeat(around), "]".repeat(around));
        prop_assert_eq!(deeper_than_max(json.as_bytes()), around + depth(&value) > DEPTH_MAX);
    }

    /// B14: the canonical form is the same for every order and spacing, tells different values apart, and is itself
    /// JSON with the same canonical form.
    #[test]
    fn b14_the_canonical_form_is_one_a_value(value in values(), other in values()) {
        let mut shuffled = String::new();
        reversed(&value, &mut shuffled);
        let form = canonical(&value.to_string());
        prop_assert!(form.is_ok());
        prop_assert_eq!(&form, &canonical(&shuffled));
        prop_assert_eq!(form == canonical(&other.to_string()), value == other);
        let form = form.expect("checked above");
        prop_assert_eq!(canonical(&form), Ok(form));
    }

    #[test]
    fn a_field_name_survives_its_way_through_a_pointer(name in any::<String>()) {
        let escaped = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        prop_assert_eq!(pointer(&escaped), Some(vec![name.clone()]));
        let json = serde_json::json!({ name.clone(): "v" }).to_string();
        prop_assert_eq!(text_at(json.as_bytes(), &[name]), Ok(Some("v".to_owned())));
    }
}
