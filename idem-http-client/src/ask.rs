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
use crate::date::parse_rfc3339;

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Builds the question, for the authority and with the credentials of the request itself, and about the route of this name or else that of
/// the request's path. `None` if no URI can be built from the request's.
pub(super) fn question(prepared: &Prepared, path: &str, route: Option<&str>, wait: Duration) -> Option<Request<Bytes>> {
    let asked_for = prepared.request(None);
    let mut uri: Parts = asked_for.uri().clone().into_parts();
    // One key may be used for several operations, and this is about one of them.
    let by_path = || format!("{} {}", asked_for.method(), asked_for.uri().path());
    let route = in_a_path(&route.map_or_else(by_path, str::to_owned));
    let path = format!("{}/idempotency/{}?route={route}", path.trim_end_matches('/'), in_a_path(prepared.key.as_str()));
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

/// Reads the server's answer. `None` if it says nothing about the key, as a 404 of a path that is not there.
pub(super) fn state(response: &Response<Bytes>) -> Option<KeyState> {
    let body: Value = serde_json::from_slice(response.body()).ok()?;
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let kind = KeyStateKind::parse(text("state")?)?;
    let is_told_so = match kind {
        KeyStateKind::Unknown => response.status() == StatusCode::NOT_FOUND || response.status().is_success(),
        KeyStateKind::Uncertain => response.status().is_server_error() || response.status().is_success(),
        KeyStateKind::InProgress | KeyStateKind::Completed | KeyStateKind::Failed | KeyStateKind::AnswerNotKept => {
            response.status().is_success()
        }
    };
    if !is_told_so {
        return None;
    }
    // In a problem, `status` is the problem's own.
    let status = body.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
    let time = |name: &str| text(name).and_then(parse_rfc3339);
    Some(KeyState {
        kind,
        route: text("route").map(str::to_owned),
        status: status.filter(|_| response.status().is_success()),
        location: text("location").map(str::to_owned),
        processed_at: time("processed_at"),
        key_expires: time("key_expires"),
        answer_expires: time("answer_expires"),
    })
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
    use crate::{Intent, Profile};

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
        let question = question(&prepared, "/v1/", None, Duration::from_secs(10)).expect("a question");
        assert_eq!(question.uri(), "https://pay.example:8443/v1/idempotency/a%2Fb..?route=POST%20%2Fv1%2Ftransactions");
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
        let completed = of(
            200,
            r#"{"state":"completed","status":201,"location":"/t/1","processed_at":"2026-11-25T01:26:01.999Z",
                "key_expires":null,"answer_expires":"2026-11-26T01:26:01.999Z"}"#,
        );
        let completed = completed.expect("a state");
        assert_eq!(
            (completed.kind, completed.status, completed.location.as_deref()),
            (KeyStateKind::Completed, Some(201), Some("/t/1"))
        );
        assert_eq!(completed.processed_at, parse_rfc3339("2026-11-25T01:26:01.999Z"));
        assert_eq!((completed.key_expires, completed.answer_expires.is_some()), (None, true));
        for (status, word, kind) in [
            (404, "unknown", KeyStateKind::Unknown),
            (503, "uncertain", KeyStateKind::Uncertain),
            (200, "uncertain", KeyStateKind::Uncertain),
            (200, "in_progress", KeyStateKind::InProgress),
            (200, "failed", KeyStateKind::Failed),
            (200, "answer_not_kept", KeyStateKind::AnswerNotKept),
        ] {
            let body = format!(r#"{{"state":"{word}","status":{status}}}"#).leak();
            let told = of(status, body).expect("a state");
            assert_eq!((told.kind, told.status), (kind, (status == 200).then_some(200)), "{status} {word}");
        }
        for (status, body) in [
            (200, "{}"),
            (200, r#"{"state":"else"}"#),
            (401, r#"{"state":"completed"}"#),
            (404, r#"{"state":"completed"}"#),
            (503, ""),
            // That path has no service.
            (404, ""),
            (404, r#"{"error":"not found"}"#),
        ] {
            assert_eq!(of(status, body), None, "{status} {body}");
        }
    }
}
