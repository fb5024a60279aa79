//! Answers: which parts of a response are kept, and how they are given again.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use idem_core::{ResultBody, message::Headers, results::REFERENCE_BYTES_MAX, store::Recorded};

use super::{digest, key::KEY_HEADER};
use crate::{ATTEMPT_HEADER, date::rfc3339};

/// Whether an answer was given before: `true` or `false`.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// When the request of a replayed answer was carried out.
pub(crate) const PROCESSED_AT: HeaderName = HeaderName::from_static("idempotency-processed-at");
/// Until when at least the key is known.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The response headers that a browser's script may read once they are named in `Access-Control-Expose-Headers`.
pub const EXPOSED_HEADERS: [HeaderName; 10] = [
    KEY_HEADER,
    REPLAYED,
    PROCESSED_AT,
    EXPIRES,
    digest::CONTENT_DIGEST,
    header::LOCATION,
    header::RETRY_AFTER,
    header::LINK,
    header::ETAG,
    PREFERENCE_APPLIED,
];

/// The request headers that a browser's script may send once they are named in `Access-Control-Allow-Headers`: those that idem reads,
/// and the two that most services need.
pub const ALLOWED_HEADERS: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    KEY_HEADER,
    ATTEMPT_HEADER,
    digest::CONTENT_DIGEST,
    digest::REPR_DIGEST,
    HeaderName::from_static("prefer"),
    HeaderName::from_static("traceparent"),
];

/// The headers that are kept unless more are named: those that a client needs to go on.
pub(crate) const KEPT_BY_DEFAULT: [HeaderName; 5] =
    [header::LOCATION, header::ETAG, header::CONTENT_LANGUAGE, header::CONTENT_LOCATION, header::LINK];

/// Headers that are never kept, even on request: they are meant for one connection, one client or one moment.
const NEVER_KEPT: [HeaderName; 18] = [
    header::SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    header::AUTHORIZATION,
    header::WWW_AUTHENTICATE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::DATE,
    header::AGE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("authentication-info"),
];

/// Whether an application may have this header kept.
pub(crate) fn may_be_kept(name: &HeaderName) -> bool {
    !NEVER_KEPT.contains(name)
}

/// The part of a response that is kept.
pub(crate) fn kept(response: &Response<Bytes>, names: &[HeaderName]) -> ResultBody {
    let mut headers = Headers::default();
    for name in names {
        for value in response.headers().get_all(name) {
            headers.push(name.as_str(), Some(Bytes::copy_from_slice(value.as_bytes())));
        }
    }
    let mut result =
        ResultBody::new(response.body().clone()).with_status(response.status().as_u16()).with_headers(headers);
    let told = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(content_type) = told(header::CONTENT_TYPE) {
        result = result.with_content_type(content_type);
    }
    // A repeat gets this once the answer's time is over.
    let location = told(header::LOCATION).filter(|location| location.len() <= REFERENCE_BYTES_MAX);
    match location.filter(|_| names.contains(&header::LOCATION)) {
        Some(location) => result.with_reference(location),
        None => result,
    }
}

/// Rebuilds the response that was kept.
pub(crate) fn again(kept: &ResultBody) -> Response<Bytes> {
    let mut response = Response::new(kept.body.clone());
    *response.status_mut() = kept.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    if let Some(value) = kept.content_type.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(header::CONTENT_TYPE, value);
    }
    for (name, value) in kept.headers.iter() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(may_be_kept);
        if let (Some(name), Some(Ok(value))) = (name, value.map(HeaderValue::from_bytes)) {
            headers.append(name, value);
        }
    }
    response
}

/// When a request was carried out, and until when its key is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) processed_at: Option<SystemTime>,
    pub(crate) expires_at: Option<SystemTime>,
}

impl From<&Recorded> for Times {
    fn from(recorded: &Recorded) -> Self {
        Self { processed_at: Some(recorded.processed_at), expires_at: recorded.expires_at }
    }
}

/// Removes the headers that only idem may set. A handler that passes on another service's answer would set them for its own.
pub(crate) fn untold(headers: &mut HeaderMap) {
    for name in [REPLAYED, PROCESSED_AT, EXPIRES] {
        headers.remove(name);
    }
}

/// Adds to a handler's answer the headers that say whether it is a replay, and its times.
pub(crate) fn tell(headers: &mut HeaderMap, replayed: bool, times: Times, last_modified: bool) {
    untold(headers);
    headers.insert(REPLAYED, HeaderValue::from_static(if replayed { "true" } else { "false" }));
    if let (true, Some(at)) = (replayed, times.processed_at) {
        let (name, value) =
            if last_modified { (header::LAST_MODIFIED, http_date(at)) } else { (PROCESSED_AT, rfc3339(at)) };
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    if let Some(Ok(value)) = times.expires_at.map(|at| HeaderValue::try_from(rfc3339(at))) {
        headers.insert(EXPIRES, value);
    }
}

/// Adds to every answer, problems included, the headers that all answers have. A digest is left out where the content is yet to be coded.
pub(crate) fn seal(response: &mut Response<Bytes>, method: &Method, key: Option<&HeaderValue>, coded_after: bool) {
    let is_head = method == Method::HEAD;
    // The server sends no content with these.
    let is_empty = is_head || matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let of_body = digest::of(response.body());
    let of_content = if is_empty { digest::of(b"") } else { of_body.clone() };
    let headers = response.headers_mut();
    headers.remove(digest::CONTENT_DIGEST);
    if !coded_after {
        headers.extend(of_content.map(|digest| (digest::CONTENT_DIGEST, digest)));
        if let (true, Some(digest)) = (is_head, of_body) {
            headers.entry(digest::REPR_DIGEST).or_insert(digest);
        }
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    if let Some(key) = key {
        headers.insert(KEY_HEADER, key.clone());
    }
}

/// A date of HTTP, which has no fractions. A time before 1970 becomes the first second of 1970.
fn http_date(at: SystemTime) -> String {
    httpdate::fmt_http_date(at.max(UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w10_http_has_no_fractions_and_no_time_before_1970() {
        let second = std::time::Duration::from_secs(1);
        assert_eq!(http_date(UNIX_EPOCH - second), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(UNIX_EPOCH + second.mul_f64(784_111_777.9)), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn w6_what_is_for_one_client_is_never_kept() {
        let mut response = Response::new(Bytes::from_static(b"{}"));
        // Named here again, so that none is lost from the list unseen.
        let never = [
            "set-cookie",
            "set-cookie2",
            "authorization",
            "www-authenticate",
            "authentication-info",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "connection",
            "keep-alive",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "content-length",
            "content-encoding",
            "date",
            "age",
        ]
        .map(HeaderName::from_static);
        for name in &never {
            response.headers_mut().insert(name, HeaderValue::from_static("secret"));
        }
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/t/1"));
        // An application that wants them all kept.
        let names: Vec<_> = KEPT_BY_DEFAULT.into_iter().chain(never).filter(may_be_kept).collect();
        let again = again(&kept(&response, &names));
        assert_eq!(again.headers().len(), 1, "{again:?}");
        assert_eq!(again.headers()[header::LOCATION], "/t/1");
        // The names themselves are a promise.
        let names = KEPT_BY_DEFAULT.map(|name| name.to_string());
        assert_eq!(names, ["location", "etag", "content-language", "content-location", "link"]);
        // Even if the row says otherwise, because another version may have written it.
        let mut headers = Headers::default();
        headers.push("set-cookie", Some(Bytes::from_static(b"session=1")));
        assert!(super::again(&ResultBody::new("").with_headers(headers)).headers().is_empty());
    }
}
