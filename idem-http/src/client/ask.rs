//! Asks a server about a key, before the client gives up.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, HeaderName},
    uri::{Parts, PathAndQuery},
};
use serde_json::Value;

use super::{
    ended::{KeyState, KeyStateKind},
    prepare::Prepared,
};

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Builds the question, for the authority and with the credentials of the request itself. `None` if no URI can be built from the request's.
pub(super) fn question(prepared: &Prepared, path: &str, wait: Duration) -> Option<Request<Bytes>> {
    let asked_for = prepared.request(None);
    let mut uri: Parts = asked_for.uri().clone().into_parts();
    let path = format!("{}/idempotency/{}", path.trim_end_matches('/'), in_a_path(prepared.key.as_str()));
    uri.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    let mut question = Request::new(Bytes::new());
    *question.method_mut() = Method::GET;
    *question.uri_mut() = Uri::from_parts(uri).ok()?;
    for (name, value) in asked_for.headers() {
        let of_the_body = name.as_str().starts_with("content-") || name == http::header::EXPECT;
        if !of_the_body && Some(name) != prepared.header.as_ref() {
            question.headers_mut().append(name, value.clone());
        }
    }
    question.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    let wait = HeaderValue::from_str(&format!("wait={}", wait.as_secs())).ok()?;
    question.headers_mut().append(PREFER, wait);
    Some(question)
}

/// Reads the server's answer. `None` if it says nothing about the key.
pub(super) fn state(response: &Response<Bytes>) -> Option<KeyState> {
    if response.status() == StatusCode::NOT_FOUND {
        return Some(KeyState { kind: KeyStateKind::Unknown, status: None, location: None });
    }
    let body: Value = serde_json::from_slice(response.body()).ok().filter(|_| response.status().is_success())?;
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let status = body.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
    Some(KeyState { kind: KeyStateKind::parse(text("state")?)?, status, location: text("location").map(str::to_owned) })
}

/// The key as one segment of a path: all but the unreserved characters of RFC 3986 are escaped.
fn in_a_path(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment of dots alone would mean a directory.
    if escaped.bytes().all(|byte| byte == b'.') { escaped.replace('.', "%2E") } else { escaped }
}

#[cfg(test)]
mod tests {
    use idem_core::IdempotencyKey;

    use super::*;
    use crate::client::{Intent, Profile};

    #[test]
    fn it_is_asked_with_the_credentials_of_the_request_and_without_its_body() {
        let profile = Profile::idem(Duration::from_secs(60), "/v1");
        let intent = Intent::from_key(IdempotencyKey::new("a/b ä").expect("a key"));
        let request = Request::post("https://pay.example:8443/v1/transactions?x=1")
            .header("authorization", "Bearer t")
            .header("content-type", "application/json")
            .body("{}".into())
            .expect("a request");
        // No header can carry this key.
        assert!(Prepared::new(&profile, &intent, request).is_err());
        let intent = Intent::from_key(IdempotencyKey::new("a/b..").expect("a key"));
        let request = Request::post("https://pay.example:8443/v1/transactions?x=1")
            .header("authorization", "Bearer t")
            .header("content-type", "application/json")
            .body("{}".into())
            .expect("a request");
        let prepared = Prepared::new(&profile, &intent, request).expect("prepared");
        let question = question(&prepared, "/v1/", Duration::from_secs(10)).expect("a question");
        assert_eq!(question.uri(), "https://pay.example:8443/v1/idempotency/a%2Fb..");
        assert_eq!(question.method(), Method::GET);
        assert_eq!(
            (&question.headers()["authorization"], &question.headers()["prefer"]),
            (&"Bearer t".parse().expect("text"), &"wait=10".parse().expect("text"))
        );
        assert!(
            !question.headers().contains_key("content-type") && !question.headers().contains_key("idempotency-key")
        );
        assert_eq!((in_a_path(".."), in_a_path("ä")), ("%2E%2E".to_owned(), "%C3%A4".to_owned()));
    }

    #[test]
    fn a_state_is_read_from_its_word() {
        let of = |status: u16, body: &'static str| {
            state(&Response::builder().status(status).body(body.into()).expect("a response"))
        };
        let completed = of(200, r#"{"state":"completed","status":201,"location":"/t/1"}"#).expect("a state");
        assert_eq!(
            (completed.kind, completed.status, completed.location.as_deref()),
            (KeyStateKind::Completed, Some(201), Some("/t/1"))
        );
        assert_eq!(of(404, "").expect("unknown").kind, KeyStateKind::Unknown);
        assert_eq!(
            of(200, r#"{"state":"in_progress","status":null}"#).expect("a state").kind,
            KeyStateKind::InProgress
        );
        for (status, body) in [(200, "{}"), (200, r#"{"state":"else"}"#), (401, r#"{"state":"completed"}"#), (503, "")]
        {
            assert_eq!(of(status, body), None, "{status} {body}");
        }
    }
}
