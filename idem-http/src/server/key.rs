//! Reads the key from its header.

use http::{HeaderMap, HeaderName};
use idem_core::{
    IdempotencyKey,
    key::{KEY_BYTES_MAX, KeyError, KeyPolicy},
};

/// The header.
pub(crate) const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

const TOO_LONG: &str = "the key is longer than 255 bytes";

/// Why a request has no usable key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFault {
    /// There is no header.
    Missing,
    /// There is a header, with this problem.
    Malformed(&'static str),
}

/// Reads the header. If `strict`, only a string of RFC 9651 is accepted, as the draft requires.
pub(crate) fn of(headers: &HeaderMap, strict: bool, policy: KeyPolicy) -> Result<String, KeyFault> {
    let mut all = headers.get_all(KEY_HEADER).iter();
    let received = all.next().ok_or(KeyFault::Missing)?;
    if all.next().is_some() {
        return Err(KeyFault::Malformed("the header stands there more than once"));
    }
    let text = read(received.as_bytes(), strict).map_err(KeyFault::Malformed)?;
    formed(text, policy).map_err(KeyFault::Malformed)
}

/// The key, checked against the form that the service requires. It stays as it was sent, whatever the form: a service that changes its
/// profile would not find its own records otherwise, and would run their operations again (W130).
pub(crate) fn formed(text: String, policy: KeyPolicy) -> Result<String, &'static str> {
    let key = IdempotencyKey::new(&text).map_err(|error| {
        if matches!(error, KeyError::TooLong { .. }) {
            TOO_LONG
        } else if matches!(error, KeyError::ControlCharacter) {
            "the key holds a control character"
        } else {
            "the key is empty"
        }
    })?;
    policy.apply(key).map_err(|_| "the key is no UUID as RFC 9562 writes it")?;
    Ok(text)
}

/// The key in a header's value or in a path. Different values give different keys, except that quotes make no difference.
pub(crate) fn read(value: &[u8], strict: bool) -> Result<String, &'static str> {
    let value = value.trim_ascii();
    let key = match value.first() {
        None => return Err("the header is empty"),
        Some(b'"') => string(value)?,
        Some(_) if strict => return Err("the key is not a quoted string of RFC 9651"),
        Some(_) => bare(value)?,
    };
    if key.is_empty() {
        return Err("the key is empty");
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok(key)
}

/// A string of RFC 9651 without parameters: they would be lost, and two keys would become one.
fn string(value: &[u8]) -> Result<String, &'static str> {
    let mut key = String::new();
    let mut rest = value.iter().copied().skip(1);
    while let Some(byte) = rest.next() {
        match byte {
            b'"' if rest.next().is_none() => return Ok(key),
            b'"' => return Err("something follows the quoted key"),
            b'\\' => match rest.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(char::from(escaped)),
                Some(_) | None => return Err("a backslash escapes a quote or a backslash only"),
            },
            0x20..=0x7e => key.push(char::from(byte)),
            _ => return Err("the quoted key holds a byte that is not printable ASCII"),
        }
    }
    Err("the quote is not closed")
}

/// The whole value, byte for byte. A value that could be a list, a parameter or two words is refused, because proxies join lines.
fn bare(value: &[u8]) -> Result<String, &'static str> {
    if value.iter().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b',' | b';' | b'"')) {
        return Err("a key without quotes holds no comma, semicolon, quote, space or byte beyond ASCII");
    }
    Ok(value.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w5_keys_are_read_whole_or_not_at_all() {
        for (value, key) in [
            ("\"k\"", "k"),
            (" k ", "k"),
            ("\"a\" ", "a"),
            ("\"a\\\"b\\\\\"", "a\"b\\"),
            ("\"order;1, 2\"", "order;1, 2"),
            ("1.50", "1.50"),
            ("?1", "?1"),
            ("8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        ] {
            assert_eq!(read(value.as_bytes(), false).as_deref(), Ok(key), "{value}");
        }
        let long = "k".repeat(256);
        for value in ["", " ", "\"\"", "\"a", "\"a\";p=1", "a,b", "a, b", "a b", "order;1", "\"a\\x\"", &long] {
            let refused = read(value.as_bytes(), false);
            assert!(refused.is_err(), "{value:?}: {refused:?}");
        }
        assert!(read("é".as_bytes(), false).is_err());
        assert!(read(b"\"\x01\"", false).is_err());
        assert!(read(&[b'k'; 255], false).is_ok());
        assert!(read(b"bare", true).is_err());
        assert_eq!(read(b"\"quoted\"", true).as_deref(), Ok("quoted"));
    }

    /// W136: a refused key is refused for its own reason.
    #[test]
    fn w136_a_key_is_refused_for_what_is_wrong_with_it() {
        let refused = |key: &str, policy| formed(key.to_owned(), policy).unwrap_err();
        assert_eq!(refused("a\0b", KeyPolicy::Token), "the key holds a control character");
        assert_eq!(refused(&"k".repeat(256), KeyPolicy::Token), "the key is longer than 255 bytes");
        assert_eq!(refused("", KeyPolicy::Token), "the key is empty");
        assert_eq!(refused("k", KeyPolicy::Uuid), "the key is no UUID as RFC 9562 writes it");
    }
}
