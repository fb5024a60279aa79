//! A message's headers as the text of a column: everything a broker may deliver comes back as it was.

use idem_core::{Bytes, message::Headers};
use serde_json::{Value, json};

/// Headers as a JSON array of pairs, `[["name", "text"], ["name", null], ["name", {"hex": "ff00"}]]`.
///
/// It is an array, because a header may repeat and has a place; a value that is no UTF-8 is written in hexadecimal.
/// Nothing where there are no headers.
#[must_use]
pub fn encode_headers(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    let pairs = headers.iter().map(|(name, value)| json!([name, value.map_or(Value::Null, encode_value)]));
    Some(Value::Array(pairs.collect()).to_string())
}

fn encode_value(value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "hex": hex::encode(value) }),
    }
}

/// Headers from such a text; `None` where it is something else.
#[must_use]
pub fn decode_headers(text: &str) -> Option<Headers> {
    let mut headers = Headers::default();
    let pairs: Vec<(String, Value)> = serde_json::from_str(text).ok()?;
    for (name, value) in pairs {
        let value = match value {
            Value::Null => None,
            Value::String(text) => Some(Bytes::from(text)),
            Value::Object(object) => Some(hex::decode(object.get("hex")?.as_str()?).ok()?.into()),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        headers.push(&name, value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_absent_and_binary_values_come_back_in_order() {
        let mut headers = Headers::default();
        headers.push("a", Some(Bytes::from_static(b"text with \0 and \"quotes\"")));
        headers.push("b", None);
        headers.push("a", Some(Bytes::new()));
        headers.push("\u{0}", Some(Bytes::from_static(&[0xff, 0x00, 0x0a])));
        let text = encode_headers(&headers).unwrap();
        assert_eq!(decode_headers(&text), Some(headers));
        assert_eq!(encode_headers(&Headers::default()), None);
    }

    #[test]
    fn what_is_no_list_of_headers_is_not_read() {
        let values = ["1", r#"{"hex":"fz"}"#, r#"{"hex":"+f"}"#, r#"{"hex":"fff"}"#, r#"{"hex":1}"#, r#"{"text":"b"}"#];
        let pairs = values.map(|value| format!(r#"[["a",{value}]]"#));
        for text in ["", "{}", "[1]", "[[1,\"a\"]]", "[[\"a\"]]"].into_iter().chain(pairs.iter().map(String::as_str)) {
            assert_eq!(decode_headers(text), None, "{text}");
        }
    }

    /// S10: any headers come back as they were, in their order; the seed is printed where they do not.
    #[test]
    fn s10_headers_of_any_shape_come_back_as_they_were() {
        let seed =
            std::env::var("IDEM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2_000 {
            let mut headers = Headers::default();
            for _ in 0..random.usize(1..8) {
                let name: String = (0..random.usize(0..6)).map(|_| random.char(..)).collect();
                // Text, and bytes that are none.
                let value = match random.u8(0..4) {
                    0 => None,
                    1 => Some(Bytes::from((0..random.usize(0..6)).map(|_| random.char(..)).collect::<String>())),
                    2 => Some(Bytes::from_static(b"{\"hex\":\"ff\"}")),
                    _ => Some((0..random.usize(0..12)).map(|_| random.u8(..)).collect()),
                };
                headers.push(&name, value);
            }
            let text = encode_headers(&headers).unwrap_or_default();
            assert_eq!(decode_headers(&text), Some(headers), "seed {seed}: {text}");
        }
    }

    /// S10: no text makes it panic, and what is read is written as headers again.
    #[test]
    fn s10_any_text_is_read_or_refused() {
        let seed =
            std::env::var("IDEM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
        let mut random = fastrand::Rng::with_seed(seed);
        let parts = ["[", "]", ",", "\"a\"", "null", "{\"hex\":", "\"ff\"", "\"f\"", "}", "1", "\\", "é"];
        for _ in 0..20_000 {
            let text: String = (0..random.usize(0..12)).map(|_| parts[random.usize(..parts.len())]).collect();
            if let Some(headers) = decode_headers(&text).filter(|headers| !headers.is_empty()) {
                let again = encode_headers(&headers).unwrap_or_default();
                assert_eq!(decode_headers(&again), Some(headers), "seed {seed}: {text}");
            }
        }
    }
}
