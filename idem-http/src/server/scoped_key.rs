//! The key under which a request is recorded: its own key, joined with its tenant and its route.

use idem_core::{IdempotencyKey, key::KeyError};
use sha2::{Digest as _, Sha256};

use super::key;

/// The key of a request within its scope, as an operator names it: records are kept under all three joined.
///
/// ```
/// use idem_http::ScopedKey;
///
/// let request = ScopedKey { tenant: "acme", route: "POST /transactions", key: "order-1" };
/// let recorded = request.joined()?;
/// assert_eq!(recorded.as_str(), "4:acme 18:POST /transactions order-1");
/// assert_eq!(ScopedKey::parse(recorded.as_str()), Some(request));
/// # Ok::<(), idem_core::key::KeyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopedKey<'a> {
    /// The tenant; empty if there is [a single one](crate::IdempotencyBuilder::single_tenant).
    pub tenant: &'a str,
    /// Method and path, as the router knows it: `POST /accounts/{id}/transfers`.
    pub route: &'a str,
    /// The client's key, without the quotes that it may be sent in: see [`sent`](Self::sent).
    pub key: &'a str,
}

impl<'a> ScopedKey<'a> {
    /// The key of the record: all three, each of the first two with its length, so that no tenant's name can run into a route's.
    /// If that is too long or contains characters that no key may have, the key is the SHA-256 of the same text; it begins
    /// with a letter, and other keys begin with a digit.
    ///
    /// # Errors
    /// [`KeyError`] if no record can have this key.
    pub fn joined(&self) -> Result<IdempotencyKey, KeyError> {
        let Self { tenant, route, key } = self;
        let text = format!("{}:{tenant} {}:{route} {key}", tenant.len(), route.len());
        let hashed = || format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())));
        IdempotencyKey::new(&text).or_else(|_| IdempotencyKey::new(&hashed()))
    }

    /// Takes the key of a record apart. `None` for a key that is not a request's, and for one of which only the hash is kept.
    #[must_use]
    pub fn parse(recorded: &'a str) -> Option<Self> {
        let (tenant, rest) = counted(recorded)?;
        let (route, key) = counted(rest)?;
        let parsed = Self { tenant, route, key };
        // idem writes no length in another form, such as with leading zeros.
        parsed.joined().ok().filter(|joined| joined.as_str() == recorded).map(|_| parsed)
    }

    /// The key in a header's value: as it is, or out of its quotes.
    ///
    /// # Errors
    /// The fault of the key, in words that go behind "it is no key:".
    pub fn sent(value: &str) -> Result<String, &'static str> {
        key::read(value.as_bytes(), false)
    }
}

/// A text with its length before it and a blank behind it, and the rest.
fn counted(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(':')?;
    let (text, rest) = rest.split_at_checked(length.parse().ok()?)?;
    Some((text, rest.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w4_no_two_scopes_give_one_key() {
        let all = [
            ("a", "POST /b", "c"),
            ("a", "POST /b c", "c"),
            ("a 7:POST /b", "POST /b", "c"),
            ("", "POST /b", "c"),
            ("b", "POST /b", "c"),
            ("a", "PATCH /b", "c"),
            ("ä", "POST /b", "8:x 1:y z"),
        ]
        .map(|(tenant, route, key)| ScopedKey { tenant, route, key });
        let joined = all.map(|request| request.joined().unwrap());
        for (request, joined) in all.iter().zip(&joined) {
            assert_eq!(ScopedKey::parse(joined.as_str()), Some(*request));
        }
        assert_eq!(std::collections::BTreeSet::from(joined).len(), all.len());
        let long = "k".repeat(255);
        let of = |route| ScopedKey { tenant: "acme", route, key: &long }.joined().unwrap();
        // Python's `hashlib` makes the same of it: records of before must be found after an update.
        assert_eq!(of("POST /t").as_str(), "sha256:91437314faf09896269fb6f271f57440de4ce3398a94275dd250b8cb0c3680e2");
        assert_ne!(of("POST /t"), of("POST /u"));
    }

    #[test]
    fn w70_what_is_no_requests_key_is_not_taken_apart() {
        for other in
            ["order-1", "4:blue:order-1", "04:acme 7:POST /t k", "4:acme 7:POST /t", "9:acme 7:POST /t k", "1:ä 1:b c"]
        {
            assert_eq!(ScopedKey::parse(other), None, "{other}");
        }
        assert_eq!(ScopedKey::parse(&format!("sha256:{}", "0".repeat(64))), None);
    }
}
