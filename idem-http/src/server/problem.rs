//! The answers to requests that did not run: problems of RFC 9457, with their texts in each profile.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use super::profile::{Profile, Words};
use crate::date::rfc3339;

/// A part of a request that a fingerprint distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Path,
    Query,
    MediaType,
    Body,
    Subject,
}

impl Part {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::MediaType => "type",
            Self::Body => "body",
            Self::Subject => "subject",
        }
    }
}

/// Why a request has no answer from its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    KeyMissing,
    KeyMalformed(&'static str),
    Unauthenticated,
    HeadersTooLarge,
    TooManyRequests,
    BodyLate,
    BodyTooLarge {
        max: usize,
    },
    BodyUnreadable,
    BodyMalformed(String),
    Encoding,
    Multipart,
    Digest(String),
    /// The key was used for another request.
    Differs(Option<Part>),
    /// The answer is for another subject of the tenant.
    OtherSubject,
    InProgress,
    NotKept {
        status: Option<u16>,
        location: Option<Box<str>>,
        processed_at: SystemTime,
    },
    /// The handler failed, and another try would fail too.
    Failed,
    /// The handler failed, or did not end in time; another try may succeed.
    FailedForNow,
    /// The database cannot be reached.
    Unavailable,
    /// An operator has paused the service.
    Paused,
    /// There is no room for the request, or no connection was free in time.
    Overloaded,
    /// The handler's response cannot be kept.
    ResponseRefused(&'static str),
    /// The handler does not take its transaction.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "without the layer every handler is given its own"))]
    Unprotected,
    NotFound,
}

/// A pause lasts as long as an operator's work: to ask each second is of no use.
const PAUSED_RETRY_AFTER: Duration = Duration::from_secs(5);

/// One row of the table: status, the last part of the type's URI, title.
type Row = (StatusCode, &'static str, &'static str);

impl Problem {
    fn row(&self, profile: &Profile) -> Row {
        match self {
            Self::KeyMissing => (StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing"),
            Self::KeyMalformed(_) => (StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed"),
            Self::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, "unauthenticated", "Who sends the request is not known")
            }
            Self::HeadersTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "The headers are too large")
            }
            Self::TooManyRequests => (StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "Too many requests at once"),
            Self::BodyLate => (StatusCode::REQUEST_TIMEOUT, "body-late", "The body did not come in time"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large"),
            Self::BodyUnreadable => (StatusCode::BAD_REQUEST, "body-unreadable", "The body could not be read"),
            Self::BodyMalformed(_) => (StatusCode::BAD_REQUEST, "body-malformed", "The body is malformed"),
            Self::Encoding => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoding-unsupported", "The body's coding is not supported")
            }
            Self::Multipart => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "multipart-unsupported", "The body's type is not supported")
            }
            Self::Digest(_) => (StatusCode::BAD_REQUEST, "digest-mismatch", "The digest does not fit the content"),
            Self::Differs(_) => (profile.differs, "key-reused", "Idempotency-Key was used for another request"),
            Self::OtherSubject => (StatusCode::FORBIDDEN, "other-subject", "The answer is for somebody else"),
            Self::InProgress => {
                (StatusCode::CONFLICT, "in-progress", "A request with this Idempotency-Key is in progress")
            }
            Self::NotKept { .. } => {
                (StatusCode::CONFLICT, "answer-not-kept", "The request was done before, and its answer is gone")
            }
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "failed", "The request failed"),
            Self::FailedForNow => (StatusCode::SERVICE_UNAVAILABLE, "failed-for-now", "The request failed for now"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The service is not available"),
            Self::Paused => (StatusCode::SERVICE_UNAVAILABLE, "paused", "The service is paused"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The service has too much to do"),
            Self::ResponseRefused(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "response-refused", "The response cannot be kept")
            }
            Self::Unprotected => (StatusCode::INTERNAL_SERVER_ERROR, "unprotected", "The operation is not protected"),
            Self::NotFound => (StatusCode::NOT_FOUND, "key-unknown", "Nothing is known of this Idempotency-Key"),
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::KeyMissing => {
                "This operation needs the header Idempotency-Key, with a key that is new for each intent \
                                 and the same for each try of it."
                    .to_owned()
            }
            Self::KeyMalformed(what) => format!("Idempotency-Key cannot be used: {what}."),
            Self::Unauthenticated => "The request names nobody, or nobody that is known here.".to_owned(),
            Self::HeadersTooLarge => "Send fewer or shorter headers.".to_owned(),
            Self::TooManyRequests => "Wait for some of your requests to end, and send this one again.".to_owned(),
            Self::BodyLate => "Send the request again with the same key.".to_owned(),
            Self::BodyTooLarge { max } => format!("The body may have {max} bytes."),
            Self::BodyUnreadable => "The connection broke while the body was read.".to_owned(),
            Self::BodyMalformed(what) => format!("The body is not what this operation takes: {what}."),
            Self::Encoding => "Send the body without Content-Encoding.".to_owned(),
            Self::Multipart => {
                "A form of several parts has another boundary at each try, so that it cannot be compared.".to_owned()
            }
            Self::Digest(what) => format!("{what}."),
            Self::Differs(part) => match part {
                Some(part) => format!(
                    "The key was used before for a request with another {}. Use a new key for a new request.",
                    part.as_str()
                ),
                None => "The key was used before for another request. Use a new key for a new request.".to_owned(),
            },
            Self::OtherSubject => "The key was used before by somebody else.".to_owned(),
            Self::InProgress => {
                "The first request with this key has not ended yet. Send it again with the same key.".to_owned()
            }
            Self::NotKept { .. } => {
                "The operation was done, and is not done again. Its answer is not kept any more.".to_owned()
            }
            Self::Paused | Self::Overloaded => {
                "This try has done nothing. Send the request again with the same key.".to_owned()
            }
            Self::Failed => "Nothing of the request was kept.".to_owned(),
            Self::FailedForNow => "Nothing of the request was kept. Send it again with the same key.".to_owned(),
            Self::Unavailable => {
                "Whether the operation was done is not known now. Send it again with the same key, and it is done once."
                    .to_owned()
            }
            Self::ResponseRefused(what) => format!("Nothing of the request was kept: {what}."),
            Self::Unprotected => {
                "The operation's handler does not take its transaction. What it has done is not undone, and would be done \
                 again."
                    .to_owned()
            }
            Self::NotFound => "No request with this key has ended or is in progress.".to_owned(),
        }
    }

    /// When the client may try again, if that helps. Never if the same request would get the same answer.
    fn retry_after(&self, profile: &Profile) -> Option<Duration> {
        match self {
            Self::Paused => Some(PAUSED_RETRY_AFTER.max(profile.retry_after)),
            Self::InProgress
            | Self::TooManyRequests
            | Self::BodyLate
            | Self::FailedForNow
            | Self::Unavailable
            | Self::Overloaded => Some(profile.retry_after),
            Self::KeyMissing
            | Self::KeyMalformed(_)
            | Self::Unauthenticated
            | Self::HeadersTooLarge
            | Self::BodyTooLarge { .. }
            | Self::BodyUnreadable
            | Self::BodyMalformed(_)
            | Self::Encoding
            | Self::Multipart
            | Self::Digest(_)
            | Self::Differs(_)
            | Self::OtherSubject
            | Self::NotKept { .. }
            | Self::Failed
            | Self::ResponseRefused(_)
            | Self::Unprotected
            | Self::NotFound => None,
        }
    }

    /// The code and the reason of the platform rules, if they have one.
    fn code(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::KeyMissing | Self::KeyMalformed(_) => {
                Some(("ERR400_MISSING_OR_MALFORMED_HEADER", "IDEMPOTENCY_KEY_REQUIRED"))
            }
            Self::Differs(_) => Some(("ERR409_SERVER_STATE_CONFLICT", "CONFLICTING_IDEMPOTENT_REQUEST")),
            Self::InProgress => Some(("ERR409_SERVER_STATE_CONFLICT", "IDEMPOTENCY_IN_PROGRESS")),
            Self::NotKept { .. } => Some(("ERR409_SERVER_STATE_CONFLICT", "IDEMPOTENT_ANSWER_NOT_KEPT")),
            Self::Unauthenticated
            | Self::HeadersTooLarge
            | Self::TooManyRequests
            | Self::BodyLate
            | Self::BodyTooLarge { .. }
            | Self::BodyUnreadable
            | Self::BodyMalformed(_)
            | Self::Encoding
            | Self::Multipart
            | Self::Digest(_)
            | Self::OtherSubject
            | Self::Failed
            | Self::FailedForNow
            | Self::Unavailable
            | Self::Paused
            | Self::Overloaded
            | Self::ResponseRefused(_)
            | Self::Unprotected
            | Self::NotFound => None,
        }
    }

    /// The state of the key, in the words of the answers about keys.
    fn state(&self) -> Option<&'static str> {
        if matches!(self, Self::NotFound) {
            Some("unknown")
        } else {
            matches!(self, Self::Unavailable).then_some("uncertain")
        }
    }

    /// The last part of the type's URI, which is also the name in metrics.
    pub(crate) fn slug(&self, profile: &Profile) -> &'static str {
        self.row(profile).1
    }

    /// The response, with the texts of this profile.
    pub(crate) fn response(&self, profile: &Profile, types: &str) -> Response<Bytes> {
        let (status, slug, title) = self.row(profile);
        let uri = format!("{types}{slug}");
        let body = match profile.words {
            Words::Stripe => self.stripe(),
            Words::Ietf | Words::Guardia => self.problem(profile, &uri),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        let content_type = match profile.words {
            Words::Stripe => "application/json",
            Words::Ietf | Words::Guardia => "application/problem+json",
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Ok(link) = HeaderValue::try_from(format!("<{uri}>; rel=\"describedby\"; title=\"{title}\"")) {
            headers.insert(header::LINK, link);
        }
        if let Some(after) = self.retry_after(profile) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if matches!(self, Self::Encoding) {
            // RFC 9110, 15.5.16: which codings would have been accepted.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if matches!(self, Self::Unauthenticated) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::NotKept { location: Some(location), .. } = self
            && let Ok(location) = HeaderValue::try_from(&**location)
        {
            headers.insert(header::LOCATION, location);
        }
        response
    }

    fn problem(&self, profile: &Profile, uri: &str) -> Value {
        let (status, _, title) = self.row(profile);
        let mut body = Map::new();
        body.insert("type".to_owned(), uri.into());
        body.insert("title".to_owned(), title.into());
        body.insert("status".to_owned(), status.as_u16().into());
        body.insert("detail".to_owned(), self.detail().into());
        if let (Words::Guardia, Some((code, reason))) = (profile.words, self.code()) {
            body.insert("code".to_owned(), code.into());
            body.insert("reason".to_owned(), reason.into());
        }
        if let Self::Differs(Some(part)) = self {
            body.insert("differs".to_owned(), part.as_str().into());
        }
        if let Some(state) = self.state() {
            body.insert("state".to_owned(), state.into());
        }
        if let Self::NotKept { status, location, processed_at } = self {
            body.insert("original_status".to_owned(), (*status).into());
            body.insert("original_location".to_owned(), location.as_deref().into());
            body.insert("processed_at".to_owned(), rfc3339(*processed_at).into());
        }
        Value::Object(body)
    }

    /// The form that Stripe's libraries read.
    fn stripe(&self) -> Value {
        let (kind, code) = match self {
            Self::InProgress => ("idempotency_error", Some("idempotency_key_in_use")),
            Self::KeyMalformed(_) | Self::Differs(_) | Self::NotKept { .. } => ("idempotency_error", None),
            Self::Failed
            | Self::FailedForNow
            | Self::Unavailable
            | Self::Paused
            | Self::Overloaded
            | Self::ResponseRefused(_)
            | Self::Unprotected => ("api_error", None),
            Self::TooManyRequests => ("invalid_request_error", Some("rate_limit")),
            Self::KeyMissing
            | Self::Unauthenticated
            | Self::HeadersTooLarge
            | Self::BodyLate
            | Self::BodyTooLarge { .. }
            | Self::BodyUnreadable
            | Self::BodyMalformed(_)
            | Self::Encoding
            | Self::Multipart
            | Self::Digest(_)
            | Self::OtherSubject
            | Self::NotFound => ("invalid_request_error", None),
        };
        let mut error = json!({ "type": kind, "message": self.detail() });
        if let (Some(code), Some(error)) = (code, error.as_object_mut()) {
            error.insert("code".to_owned(), code.into());
        }
        let mut body = json!({ "error": error });
        if let (Some(state), Some(body)) = (self.state(), body.as_object_mut()) {
            body.insert("state".to_owned(), state.into());
        }
        body
    }
}
