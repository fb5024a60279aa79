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
    /// The tenant's requests come faster than this many in a second.
    TooSoon {
        rate: u32,
    },
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
    /// The key was used, and this instance cannot tell for which request.
    NotComparable,
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
    Unprotected,
    /// The handler has responded, and something else holds its transaction.
    TransactionMoved,
    NotFound {
        /// Whether it was asked about with quotes around it.
        is_quoted: bool,
    },
    /// A question does not say which operation it is about.
    RouteUnclear(String),
}

/// A pause lasts as long as an operator's work: to ask each second is of no use.
const PAUSED_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The facts of one kind of problem.
struct Row {
    status: StatusCode,
    /// The last part of the type's URI, which is also the name in metrics.
    slug: &'static str,
    title: &'static str,
    /// Whether the same request may get another answer later.
    comes_again: bool,
    /// `Retry-After` is no less.
    after: Duration,
    /// The code and the reason of the platform rules, if they have one.
    guardia: Option<(&'static str, &'static str)>,
    /// The type and the code that Stripe's libraries read.
    stripe: (&'static str, Option<&'static str>),
}

impl Row {
    const fn new(status: StatusCode, slug: &'static str, title: &'static str) -> Self {
        Self {
            status,
            slug,
            title,
            comes_again: false,
            after: Duration::ZERO,
            guardia: None,
            stripe: ("invalid_request_error", None),
        }
    }

    /// The handler or the service is at fault, and another try would fail too.
    const fn failed(slug: &'static str, title: &'static str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, slug, title).stripe("api_error", None)
    }

    /// The tenant has reached a limit of its own.
    const fn limited(slug: &'static str, title: &'static str) -> Self {
        let row = Self::new(StatusCode::TOO_MANY_REQUESTS, slug, title).comes_again();
        row.stripe("invalid_request_error", Some("rate_limit"))
    }

    /// Another try may go better.
    const fn not_now(slug: &'static str, title: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, slug, title).comes_again().stripe("api_error", None)
    }

    const fn comes_again(self) -> Self {
        Self { comes_again: true, ..self }
    }

    const fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    const fn guardia(self, code: &'static str, reason: &'static str) -> Self {
        Self { guardia: Some((code, reason)), ..self }
    }

    const fn stripe(self, kind: &'static str, code: Option<&'static str>) -> Self {
        Self { stripe: (kind, code), ..self }
    }
}

const HEADER: &str = "ERR400_MISSING_OR_MALFORMED_HEADER";
const CONFLICT: &str = "ERR409_SERVER_STATE_CONFLICT";

impl Problem {
    fn row(&self, profile: &Profile) -> Row {
        match self {
            Self::KeyMissing => Row::new(StatusCode::BAD_REQUEST, "key-missing", "Idempotency-Key is missing")
                .guardia(HEADER, "IDEMPOTENCY_KEY_REQUIRED"),
            Self::KeyMalformed(_) => Row::new(StatusCode::BAD_REQUEST, "key-malformed", "Idempotency-Key is malformed")
                .guardia(HEADER, "IDEMPOTENCY_KEY_REQUIRED")
                .stripe("idempotency_error", None),
            Self::Unauthenticated => {
                Row::new(StatusCode::UNAUTHORIZED, "unauthenticated", "Who sends the request is not known")
            }
            Self::HeadersTooLarge => {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                Row::new(status, "headers-too-large", "The headers are too large")
            }
            Self::TooManyRequests => Row::limited("too-many-requests", "Too many requests at once"),
            Self::TooSoon { .. } => Row::limited("rate-exceeded", "Too many requests in a second"),
            Self::BodyLate => {
                Row::new(StatusCode::REQUEST_TIMEOUT, "body-late", "The body did not come in time").comes_again()
            }
            Self::BodyTooLarge { .. } => {
                Row::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large")
            }
            Self::BodyUnreadable => Row::new(StatusCode::BAD_REQUEST, "body-unreadable", "The body could not be read"),
            Self::BodyMalformed(_) => Row::new(StatusCode::BAD_REQUEST, "body-malformed", "The body is malformed"),
            Self::Encoding => {
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Row::new(status, "encoding-unsupported", "The body's coding is not supported")
            }
            Self::Multipart => {
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Row::new(status, "multipart-unsupported", "The body's type is not supported")
            }
            Self::Digest(_) => {
                Row::new(StatusCode::BAD_REQUEST, "digest-mismatch", "The digest does not fit the content")
            }
            Self::Differs(_) => Row::new(profile.differs, "key-reused", "Idempotency-Key was used for another request")
                .guardia(CONFLICT, "CONFLICTING_IDEMPOTENT_REQUEST")
                .stripe("idempotency_error", None),
            Self::OtherSubject => Row::new(StatusCode::FORBIDDEN, "other-subject", "The answer is another subject's"),
            Self::NotComparable => Row::not_now("not-comparable", "Whether this is a repeat is not known here"),
            Self::InProgress => {
                Row::new(StatusCode::CONFLICT, "in-progress", "A request with this Idempotency-Key is in progress")
                    .comes_again()
                    .guardia(CONFLICT, "IDEMPOTENCY_IN_PROGRESS")
                    .stripe("idempotency_error", Some("idempotency_key_in_use"))
            }
            Self::NotKept { .. } => {
                let title = "The request was done before, and its answer is gone";
                Row::new(StatusCode::CONFLICT, "answer-not-kept", title)
                    .guardia(CONFLICT, "IDEMPOTENT_ANSWER_NOT_KEPT")
                    .stripe("idempotency_error", None)
            }
            Self::Failed => Row::failed("failed", "The request failed"),
            Self::FailedForNow => Row::not_now("failed-for-now", "The request failed for now"),
            Self::Unavailable => Row::not_now("unavailable", "The service is not available"),
            Self::Paused => Row::not_now("paused", "The service is paused").after(PAUSED_RETRY_AFTER),
            Self::Overloaded => Row::not_now("overloaded", "The service has too much to do"),
            Self::ResponseRefused(_) => Row::failed("response-refused", "The response cannot be kept"),
            Self::Unprotected => Row::failed("unprotected", "The operation is not protected"),
            Self::TransactionMoved => Row::failed("transaction-moved", "The transaction was moved out of the handler"),
            Self::NotFound { .. } => {
                Row::new(StatusCode::NOT_FOUND, "key-unknown", "Nothing is known of this Idempotency-Key")
            }
            Self::RouteUnclear(_) => Row::new(StatusCode::BAD_REQUEST, "route-unclear", "The operation is unclear"),
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
            Self::Unauthenticated => "The request names no caller that is known here.".to_owned(),
            Self::HeadersTooLarge => "Send fewer or shorter headers.".to_owned(),
            Self::TooManyRequests => "Wait for some of your requests to end, and send this one again.".to_owned(),
            Self::TooSoon { rate } => format!(
                "{rate} of your requests may come in a second, as a mean, and as many at once after a pause. Send this one again later."
            ),
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
            Self::OtherSubject => "The key was used before by another subject.".to_owned(),
            Self::NotComparable => {
                "The key was used before, and this server cannot tell for which request. Send it again with the same key, and it is \
                 not done twice."
                    .to_owned()
            }
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
            Self::TransactionMoved => {
                "Nothing of the request was kept: its handler has responded, and the transaction was moved out of the handler."
                    .to_owned()
            }
            Self::NotFound { is_quoted } => {
                let hint = if *is_quoted { " A key is asked about without the quotes that it has in the header." } else { "" };
                format!("No request with this key has left a record. One that is on its way may still come.{hint}")
            }
            Self::RouteUnclear(what) => format!("Ask with ?route=, method and path of the operation: {what}."),
        }
    }

    /// The line for the service's log, where the problem is a bug of a handler's.
    pub(crate) fn bug(&self) -> Option<String> {
        if let Self::ResponseRefused(what) = self {
            return Some(format!("the response of a handler cannot be kept, so its effects were rolled back: {what}"));
        }
        if matches!(self, Self::TransactionMoved) {
            let text = "a handler has responded, and its transaction was moved out of it, as into a task, so nothing was committed: keep \
                        IdempotentTx in the handler until it responds";
            return Some(text.to_owned());
        }
        let text = "a handler behind the layer does not take IdempotentTx as an argument, so nothing that it does is protected: let it, or \
                    leave the layer off its route";
        matches!(self, Self::Unprotected).then(|| text.to_owned())
    }

    /// The state of the key, in the words of the answers about keys.
    fn state(&self) -> Option<&'static str> {
        if matches!(self, Self::NotFound { .. }) {
            Some("unknown")
        } else {
            matches!(self, Self::Unavailable).then_some("uncertain")
        }
    }

    /// The last part of the type's URI, which is also the name in metrics.
    pub(crate) fn slug(&self, profile: &Profile) -> &'static str {
        self.row(profile).slug
    }

    /// The response, with the texts of this profile.
    pub(crate) fn response(&self, profile: &Profile, types: &str) -> Response<Bytes> {
        let row = self.row(profile);
        let uri = format!("{types}{}", row.slug);
        let body = match profile.words {
            Words::Stripe => self.stripe(&row),
            Words::Ietf | Words::Guardia => self.problem(&row, profile, &uri),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = row.status;
        let content_type = match profile.words {
            Words::Stripe => "application/json",
            Words::Ietf | Words::Guardia => "application/problem+json",
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Ok(link) = HeaderValue::try_from(format!("<{uri}>; rel=\"describedby\"; title=\"{}\"", row.title)) {
            headers.insert(header::LINK, link);
        }
        if row.comes_again {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(profile.retry_after.max(row.after).as_secs().max(1)));
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

    fn problem(&self, row: &Row, profile: &Profile, uri: &str) -> Value {
        let mut body = Map::new();
        body.insert("type".to_owned(), uri.into());
        body.insert("title".to_owned(), row.title.into());
        body.insert("status".to_owned(), row.status.as_u16().into());
        body.insert("detail".to_owned(), self.detail().into());
        if let (Words::Guardia, Some((code, reason))) = (profile.words, row.guardia) {
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
    fn stripe(&self, row: &Row) -> Value {
        let (kind, code) = row.stripe;
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::UNIX_EPOCH};

    use super::*;

    const PAGE: &str = include_str!("../../../docs/http-problems.md");

    /// W97: the page of problems has each of them, with its status in each profile, and with `Retry-After` where it has that.
    #[test]
    fn w97_the_page_has_every_problem() {
        let all = [
            Problem::KeyMissing,
            Problem::KeyMalformed(""),
            Problem::Unauthenticated,
            Problem::HeadersTooLarge,
            Problem::TooManyRequests,
            Problem::TooSoon { rate: 1 },
            Problem::BodyLate,
            Problem::BodyTooLarge { max: 1 },
            Problem::BodyUnreadable,
            Problem::BodyMalformed(String::new()),
            Problem::Encoding,
            Problem::Multipart,
            Problem::Digest(String::new()),
            Problem::Differs(None),
            Problem::OtherSubject,
            Problem::NotComparable,
            Problem::InProgress,
            Problem::NotKept { status: None, location: None, processed_at: UNIX_EPOCH },
            Problem::Failed,
            Problem::FailedForNow,
            Problem::Unavailable,
            Problem::Paused,
            Problem::Overloaded,
            Problem::ResponseRefused(""),
            Problem::Unprotected,
            Problem::TransactionMoved,
            Problem::NotFound { is_quoted: false },
            Problem::RouteUnclear(String::new()),
        ];
        let sections = PAGE.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
        let mut page: BTreeMap<&str, &str> = sections.collect();
        let profiles = [Profile::ietf(), Profile::guardia(), Profile::stripe()];
        for problem in all {
            let Row { slug, comes_again, .. } = problem.row(&profiles[0]);
            let first = page.remove(slug).unwrap_or_else(|| panic!("{slug} is not there")).trim_start();
            let first = first.split(". ").next().unwrap_or_default();
            for profile in &profiles {
                let status = problem.row(profile).status;
                assert!(first.contains(status.as_str()), "{slug} is {status} in {}: {first}", profile.name());
            }
            assert_eq!(first.contains(", with `Retry-After`"), comes_again, "{slug}: {first}");
        }
        assert!(page.is_empty(), "no such problems: {page:?}");
    }
}
