//! `Content-Digest` of RFC 9530: the hash of a message's content as it goes over the wire.

use std::cell::LazyCell;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256, Sha512};

pub(crate) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// The field for this content.
pub(crate) fn of(content: &[u8]) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(content)))).ok()
}

/// Compares the request's digests with the received content. Unknown algorithms are ignored, as the RFC requires.
///
/// # Errors
/// A text that names the problem.
pub(crate) fn verify(headers: &HeaderMap, content: &[u8]) -> Result<(), &'static str> {
    // Once each: headers have room for hundreds of members, which may all name one algorithm.
    let (sha256, sha512) = (LazyCell::new(|| Sha256::digest(content)), LazyCell::new(|| Sha512::digest(content)));
    for value in headers.get_all(CONTENT_DIGEST) {
        let text = value.to_str().map_err(|_| "Content-Digest is not ASCII")?;
        for member in text.split(',') {
            let malformed = "Content-Digest is no dictionary of byte sequences (RFC 9530)";
            let (name, digest) = member.trim().split_once('=').ok_or(malformed)?;
            let digest = digest.strip_prefix(':').and_then(|digest| digest.strip_suffix(':')).ok_or(malformed)?;
            let digest = STANDARD.decode(digest).map_err(|_| malformed)?;
            let is_right = match name {
                "sha-256" => digest == sha256.as_slice(),
                "sha-512" => digest == sha512.as_slice(),
                _ => true,
            };
            if !is_right {
                return Err("the content that came is not the one that Content-Digest is of");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(field: &str, content: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_DIGEST, HeaderValue::from_str(field).unwrap());
        verify(&headers, content).is_ok()
    }

    /// The example of RFC 9530.
    const HELLO: &[u8] = b"{\"hello\": \"world\"}";

    #[test]
    fn w20_the_digest_is_that_of_the_rfc() {
        let field = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
        assert_eq!(of(HELLO).unwrap(), field);
        assert!(checked(field, HELLO));
        assert!(!checked(field, b"{}"));
        let sha512 = format!("sha-512=:{}:", STANDARD.encode(Sha512::digest(HELLO)));
        assert!(checked(&sha512, HELLO) && !checked(&sha512, b"{}"));
        assert!(!checked(&format!("{field}, {sha512}"), b"{}"));
        assert!(checked("md5=:AAAA:", HELLO), "an unknown algorithm says nothing");
        for malformed in ["sha-256=X48E", "sha-256", "sha-256=:!:", ","] {
            assert!(!checked(malformed, HELLO), "{malformed}");
        }
    }
}
