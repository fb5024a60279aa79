//! `Content-Digest` and `Repr-Digest` of RFC 9530: hashes of a message's content as it goes over the wire, and of the representation that
//! it is or is a part of.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest as _, Sha256, Sha512};

pub(crate) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
pub(crate) const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// `Content-Digest` for this content.
pub(crate) fn of(content: &[u8]) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(content)))).ok()
}

/// Compares the `Content-Digest` and `Repr-Digest` of a message (RFC 9530) with its content as it came over the wire. A message without them
/// passes.
///
/// Your own tests want it of the answers of the whole service: a layer outside of idem's that compresses them makes their digests wrong, unless
/// [`responses_are_coded_after`](crate::IdempotencyBuilder::responses_are_coded_after) was said.
///
/// # Errors
/// A text that names the field and the problem.
pub fn check_digests(headers: &HeaderMap, content: &[u8]) -> Result<(), String> {
    let mut stated = Stated::of(headers)?;
    stated.update(content);
    stated.verify()
}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// The digests that a request states, and the hashes of the content that has come so far.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    digests: Vec<(&'static str, Algorithm, Vec<u8>)>,
    // Once each: headers have room for hundreds of members, which may all name one algorithm.
    sha256: Option<Sha256>,
    sha512: Option<Sha512>,
}

impl Stated {
    /// Reads them. The content is the whole representation unless the request says that it is a range. Unknown algorithms are ignored, as
    /// the RFC requires.
    ///
    /// # Errors
    /// A text that names the field and the problem.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let mut stated = Self::default();
        stated.read(headers, &CONTENT_DIGEST, "Content-Digest")?;
        if !headers.contains_key(header::CONTENT_RANGE) {
            stated.read(headers, &REPR_DIGEST, "Repr-Digest")?;
        }
        Ok(stated)
    }

    fn read(&mut self, headers: &HeaderMap, name: &HeaderName, field: &'static str) -> Result<(), String> {
        for value in headers.get_all(name) {
            let text = value.to_str().map_err(|_| format!("{field} is not ASCII"))?;
            for member in text.split(',') {
                let (algorithm, digest) = read_member(member)
                    .ok_or_else(|| format!("{field} is no dictionary of byte sequences (RFC 9530)"))?;
                let algorithm = match algorithm {
                    "sha-256" => {
                        self.sha256.get_or_insert_default();
                        Algorithm::Sha256
                    }
                    "sha-512" => {
                        self.sha512.get_or_insert_default();
                        Algorithm::Sha512
                    }
                    _ => continue,
                };
                self.digests.push((field, algorithm, digest));
            }
        }
        Ok(())
    }

    /// The next part of the content.
    pub(crate) fn update(&mut self, content: &[u8]) {
        self.sha256.as_mut().into_iter().for_each(|hash| hash.update(content));
        self.sha512.as_mut().into_iter().for_each(|hash| hash.update(content));
    }

    /// Compares them, once all has come.
    ///
    /// # Errors
    /// A text that names the field that does not fit.
    pub(crate) fn verify(self) -> Result<(), String> {
        let (sha256, sha512) = (self.sha256.map(Sha256::finalize), self.sha512.map(Sha512::finalize));
        let is_right = |algorithm, digest: &[u8]| match algorithm {
            Algorithm::Sha256 => sha256.as_deref() == Some(digest),
            Algorithm::Sha512 => sha512.as_deref() == Some(digest),
        };
        match self.digests.iter().find(|(_, algorithm, digest)| !is_right(*algorithm, digest)) {
            Some((field, ..)) => Err(format!("{field} is not that of the content that came")),
            None => Ok(()),
        }
    }
}

/// One member: its algorithm, and the digest.
fn read_member(member: &str) -> Option<(&str, Vec<u8>)> {
    let (algorithm, digest) = member.trim().split_once('=')?;
    // In capitals it is not a key of a dictionary, and would pass for an unknown algorithm.
    let digest = digest.strip_prefix(':')?.strip_suffix(':').filter(|_| is_key(algorithm.as_bytes()))?;
    Some((algorithm, STANDARD.decode(digest).ok()?))
}

/// Whether this may be a member's name (RFC 9651, 3.1.2).
fn is_key(name: &[u8]) -> bool {
    let may_begin = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
    let may_go_on = |byte: &u8| may_begin(*byte) || byte.is_ascii_digit() || b"_-.".contains(byte);
    matches!(name, [first, others @ ..] if may_begin(*first) && others.iter().all(may_go_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(field: &str, content: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_DIGEST, HeaderValue::from_str(field).unwrap());
        check_digests(&headers, content).is_ok()
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
        // Also one without the padding of base64, with a parameter, and an empty field, which the RFC would let pass.
        let unpadded = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE:";
        let parameter = format!("{field};a=1");
        let shouted = field.to_uppercase();
        for malformed in [&*shouted, "=:AAAA:", "sha-256=X48E", "sha-256", "sha-256=:!:", ",", "", unpadded, &parameter]
        {
            assert!(!checked(malformed, HELLO), "{malformed}");
        }
        // Of several, one that does not fit is enough.
        assert!(checked(&format!("{sha512}, {field}"), HELLO));
        assert!(!checked(&format!("{field}, sha-512=:AAAA:"), HELLO));
    }

    #[test]
    fn w20_the_representation_is_the_content_unless_it_is_a_range() {
        let with = |fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_str(value).unwrap());
            }
            check_digests(&headers, HELLO)
        };
        let (right, wrong) = ("sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:", "sha-256=:AAAA:");
        assert_eq!(with(&[("repr-digest", right)]), Ok(()));
        assert_eq!(with(&[("repr-digest", wrong)]), Err("Repr-Digest is not that of the content that came".to_owned()));
        assert_eq!(with(&[("content-digest", right), ("repr-digest", "x")]).unwrap_err().find("Repr-Digest"), Some(0));
        assert_eq!(with(&[("content-range", "bytes 0-17/99"), ("repr-digest", wrong)]), Ok(()));
        let two_lines = [("content-digest", right), ("content-digest", wrong)];
        assert_eq!(with(&two_lines).unwrap_err().find("Content-Digest"), Some(0));
    }
}
