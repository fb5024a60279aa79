//! The request that every try sends: the same bytes and the same key.

use bytes::{Bytes, BytesMut};
use http::{
    HeaderName, HeaderValue, Request,
    header::{CONTENT_LENGTH, InvalidHeaderValue},
};
use idem_core::{IdempotencyKey, key::KeyError};
use serde_json::{Map, Value};

use super::{Intent, KeyPlace, Profile};
use crate::ATTEMPT_HEADER;

/// Why a request was not sent: its key would not arrive unchanged. This is a bug in the program; nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareRequestError {
    /// The key is not valid.
    #[error("the intent's key is refused")]
    Key(#[source] KeyError),
    /// The key is longer than the provider accepts. It is never cut, because two keys would then become one.
    #[error(
        "the key has {bytes} bytes, and {profile} takes {max} at most: derive it (Intent::of), or take a shorter one"
    )]
    TooLong {
        /// The profile.
        profile: String,
        /// The key's length.
        bytes: usize,
        /// The longest key that the provider accepts.
        max: usize,
    },
    /// The key contains characters that a header cannot carry unchanged, or that servers read as two values.
    #[error("the key holds a character that the header {header} does not carry unchanged: derive it (Intent::of)")]
    Characters {
        /// The header.
        header: HeaderName,
    },
    /// The key gives no valid value of the header.
    #[error("the header {header} cannot carry the key")]
    Header {
        /// The header.
        header: HeaderName,
        /// Why.
        source: InvalidHeaderValue,
    },
    /// The request already has another key.
    #[error("the request has another key already, in {place}: leave it to the intent")]
    OtherKey {
        /// The header or the member that has it.
        place: String,
    },
    /// The key belongs in the body, which is not a JSON object.
    #[error("{profile} takes the key as a member of the body, and the body is no JSON object")]
    NoObject {
        /// The profile.
        profile: String,
    },
}

/// A request with its key.
#[derive(Debug)]
pub(super) struct Prepared {
    request: Request<Bytes>,
    pub(super) key: IdempotencyKey,
    /// The header that has the key.
    pub(super) header: Option<HeaderName>,
}

impl Prepared {
    pub(super) fn new(
        profile: &Profile,
        intent: &Intent,
        mut request: Request<Bytes>,
    ) -> Result<Self, PrepareRequestError> {
        let key = intent.key(profile.form);
        if key.len() > profile.key_bytes_max {
            let (profile, bytes, max) = (profile.name().to_owned(), key.len(), profile.key_bytes_max);
            return Err(PrepareRequestError::TooLong { profile, bytes, max });
        }
        let header = match &profile.place {
            KeyPlace::Header(name) => Some((name.clone(), bare(name, &key)?)),
            KeyPlace::QuotedHeader(name) => Some((name.clone(), quoted(name, &key)?)),
            KeyPlace::Member(name) => {
                let body = with_member(profile, name, &key, request.body())?;
                *request.body_mut() = body;
                // The body's length has changed.
                request.headers_mut().remove(CONTENT_LENGTH);
                None
            }
        };
        let key = IdempotencyKey::new(&key).map_err(PrepareRequestError::Key)?;
        let Some((name, text)) = header else { return Ok(Self { request, key, header: None }) };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|source| PrepareRequestError::Header { header: name.clone(), source })?;
        value.set_sensitive(true);
        if request.headers().get_all(&name).iter().any(|other| other != value) {
            return Err(PrepareRequestError::OtherKey { place: format!("the header {name}") });
        }
        request.headers_mut().insert(name.clone(), value);
        Ok(Self { request, key, header: Some(name) })
    }

    /// The request for one try. `attempt` is its number from 1, where the server can make use of it.
    pub(super) fn request(&self, attempt: Option<u32>) -> Request<Bytes> {
        let mut request = self.request.clone();
        if let Some(attempt) = attempt.filter(|attempt| *attempt > 1) {
            request.headers_mut().insert(ATTEMPT_HEADER, attempt.into());
        }
        request
    }
}

/// The key unchanged. HTTP cuts blanks at both ends, a comma joins two lines, and a semicolon begins parameters, so a key may contain none of
/// them.
fn bare(name: &HeaderName, key: &str) -> Result<String, PrepareRequestError> {
    let carried = key.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b';' | b'"'));
    carried.then(|| key.to_owned()).ok_or_else(|| PrepareRequestError::Characters { header: name.clone() })
}

/// The key as a string of structured fields (RFC 9651, 3.3.3).
fn quoted(name: &HeaderName, key: &str) -> Result<String, PrepareRequestError> {
    if !key.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(PrepareRequestError::Characters { header: name.clone() });
    }
    Ok(format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// The body with one more member in front. The other bytes stay unchanged, because a serialiser would write numbers its own way.
fn with_member(profile: &Profile, name: &str, key: &str, body: &Bytes) -> Result<Bytes, PrepareRequestError> {
    let no_object = || PrepareRequestError::NoObject { profile: profile.name().to_owned() };
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(|_| no_object())?;
    match object.get(name) {
        Some(Value::String(known)) if known == key => return Ok(body.clone()),
        Some(_) => return Err(PrepareRequestError::OtherKey { place: format!("the member {name}") }),
        None => {}
    }
    let brace = body.iter().position(|byte| *byte == b'{').ok_or_else(no_object)?;
    let comma = if object.is_empty() { "" } else { "," };
    let member = format!("{}:{}{comma}", Value::from(name), Value::from(key));
    let mut with = BytesMut::with_capacity(body.len() + member.len());
    with.extend_from_slice(&body[..=brace]);
    with.extend_from_slice(member.as_bytes());
    with.extend_from_slice(&body[brace + 1..]);
    Ok(with.freeze())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn prepared(profile: &Profile, key: &str, body: &'static str) -> Result<Prepared, PrepareRequestError> {
        let intent = Intent::from_key(IdempotencyKey::new(key).expect("a key"));
        Prepared::new(profile, &intent, Request::post("https://a.example/").body(body.into()).expect("a request"))
    }

    /// W33: a key arrives as it is or nothing is sent: it is not cut, trimmed, or read as two.
    #[test]
    fn w33_a_key_arrives_as_it_is_or_nothing_is_sent() {
        let (ietf, stripe, adyen) = (Profile::ietf(HOUR), Profile::stripe(), Profile::adyen());
        let header = |profile: &Profile, key: &str| {
            let prepared = prepared(profile, key, "")?;
            Ok::<_, PrepareRequestError>(
                prepared.request(None).headers()["idempotency-key"].to_str().expect("text").to_owned(),
            )
        };
        assert_eq!(header(&ietf, r#"a "b\c" d"#).expect("carried"), r#""a \"b\\c\" d""#);
        assert_eq!(header(&stripe, "order-1/charge").expect("carried"), "order-1/charge");
        for key in [" a", "a ", "a b", "a,b", "a;b", "a\"b", "ä"] {
            assert!(matches!(header(&stripe, key), Err(PrepareRequestError::Characters { .. })), "{key:?}");
        }
        assert!(matches!(header(&ietf, "ä"), Err(PrepareRequestError::Characters { .. })));
        assert!(matches!(
            header(&adyen, &"k".repeat(65)),
            Err(PrepareRequestError::TooLong { bytes: 65, max: 64, .. })
        ));
    }

    /// W33: a key that the request already has is neither replaced nor sent beside ours.
    #[test]
    fn w33_another_key_in_the_request_is_refused() {
        let intent = Intent::of("order-1", "charge");
        for (value, fits) in [("other", false), (intent.key(idem_core::outbox::IdForm::V5).leak(), true)] {
            let request = Request::post("/").header("idempotency-key", value).body(Bytes::new()).expect("a request");
            assert_eq!(Prepared::new(&Profile::stripe(), &intent, request).is_ok(), fits);
        }
    }

    #[test]
    fn a_member_is_added_and_nothing_else_is_changed() {
        let square = Profile::square(HOUR);
        let body = |body| prepared(&square, "k\"1", body).map(|prepared| prepared.request(None).into_body());
        assert_eq!(
            body(r#" { "amount": 1.10 }"#).expect("an object"),
            &br#" {"idempotency_key":"k\"1", "amount": 1.10 }"#[..]
        );
        assert_eq!(body("{}").expect("an object"), &br#"{"idempotency_key":"k\"1"}"#[..]);
        let there = r#"{"idempotency_key":"k\"1"}"#;
        assert_eq!(body(there).expect("the same"), there.as_bytes());
        assert!(matches!(body(r#"{"idempotency_key":"k2"}"#), Err(PrepareRequestError::OtherKey { .. })));
        for no_object in ["", "[1]", "amount=1"] {
            assert!(matches!(body(no_object), Err(PrepareRequestError::NoObject { .. })), "{no_object}");
        }
    }
}
