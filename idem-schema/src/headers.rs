//! A message's headers as the text of a column: everything a broker may deliver comes back as it was.

use idem_core::{Bytes, Headers};
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
        Err(_) => json!({ "hex": value.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
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
            Value::Object(object) => Some(decode_hex(object.get("hex")?.as_str()?)?),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        headers.push(&name, value);
    }
    Some(headers)
}

fn decode_hex(text: &str) -> Option<Bytes> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect::<Option<Vec<u8>>>().map(Bytes::from)
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
        for text in ["", "{}", "[1]", "[[\"a\", 1]]", "[[\"a\", {\"hex\": \"fz\"}]]", "[[\"a\", {\"text\": \"b\"}]]"] {
            assert_eq!(decode_headers(text), None, "{text}");
        }
    }
}
