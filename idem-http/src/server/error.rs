//! The error of a handler, in place of a response that is committed.

use std::fmt;

use bytes::Bytes;
use http::Response;
use idem_core::{ErrorClass, HandlerError};

/// Why a request has no effect. `?` turns any error into one.
///
/// | A handler answers | its effects | the answer is kept | a repeat gets |
/// |---|---|---|---|
/// | `Ok` | committed | yes | the same answer |
/// | [`HttpError::Final`] | rolled back | yes | the same answer |
/// | [`HttpError::NotKept`] | rolled back | no | a run |
/// | any of these with 5xx | rolled back | no | a run |
/// | any of these with 1xx, or a number that is not a status of HTTP | rolled back | no: it is answered with 500 | a run |
/// | any other error, a panic, no end in time | rolled back | no | a run |
///
/// A decline that has effects of its own, such as a row that counts it, is not an error: answer it with `Ok` and its status. 401,
/// 403, 408, 425 and 429 concern a request and not its operation. If they were kept, every repeat of the key would get them: answer
/// them as [`NotKept`](Self::NotKept). As `Ok` or [`Final`](Self::Final) they are refused in debug builds, and counted in others. The
/// guide's page on HTTP has the table of all statuses.
pub enum HttpError {
    /// The operation is refused permanently: the handler's writes are rolled back, and this answer is kept.
    Final(Box<Response<Bytes>>),
    /// The request is malformed or cannot be served now: it gets this answer, and nothing is kept.
    NotKept(Box<Response<Bytes>>),
    /// The handler failed. The client gets 503 if another try may succeed, otherwise 500, and no part of the error.
    Failed(HandlerError),
}

impl HttpError {
    /// [`Final`](Self::Final).
    #[must_use]
    pub fn refused(response: Response<Bytes>) -> Self {
        Self::Final(Box::new(response))
    }

    /// [`NotKept`](Self::NotKept).
    #[must_use]
    pub fn not_kept(response: Response<Bytes>) -> Self {
        Self::NotKept(Box::new(response))
    }
}

impl fmt::Debug for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Final(response) => write!(f, "Final({})", response.status()),
            Self::NotKept(response) => write!(f, "NotKept({})", response.status()),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl<E: Into<HandlerError>> From<E> for HttpError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// How a response is treated.
pub(crate) enum Judged {
    /// It is committed and kept.
    Keep(Response<Bytes>),
    /// The writes are rolled back, and the response is kept.
    Refuse(Response<Bytes>),
    /// The writes are rolled back, and nothing is kept.
    Drop(Response<Bytes>),
    /// As above, and the handler gave no response.
    Fail(HandlerError),
    /// The response cannot be kept.
    Unfit(&'static str),
}

/// Statuses that concern a request and not its operation.
const OF_THE_REQUEST: [u16; 5] = [401, 403, 408, 425, 429];

/// The treatment that a handler asks for.
enum Wish {
    Commit,
    Refuse,
    Drop,
}

/// Decides how a handler's answer is treated: the table of all statuses in the guide's page on HTTP.
pub(crate) fn judge(answered: Result<Response<Bytes>, HttpError>, limits: Limits<'_>) -> Judged {
    let (response, wish) = match answered {
        Ok(response) => (response, Wish::Commit),
        Err(HttpError::Final(response)) => (*response, Wish::Refuse),
        Err(HttpError::NotKept(response)) => (*response, Wish::Drop),
        Err(HttpError::Failed(error)) => return Judged::Fail(error),
    };
    match (response.status().as_u16(), wish) {
        (500..=599, _) | (200..=499, Wish::Drop) => Judged::Drop(response),
        (200..=499, Wish::Commit) => fit(response, limits, Judged::Keep),
        (200..=499, Wish::Refuse) => fit(response, limits, Judged::Refuse),
        (_, _) => Judged::Unfit("its status is none that an answer has"),
    }
}

/// The limits of a response.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    response_bytes_max: usize,
    /// Counts statuses that should not be kept.
    misplaced: &'a metrics::Counter,
    refuses_misplaced: bool,
}

impl<'a> Limits<'a> {
    /// A status that should not be kept is refused in debug builds, where its author sees it, and counted.
    pub(crate) fn new(response_bytes_max: usize, misplaced: &'a metrics::Counter) -> Self {
        Self { response_bytes_max, misplaced, refuses_misplaced: cfg!(debug_assertions) }
    }
}

/// The response as one that is kept, if it can be.
fn fit(response: Response<Bytes>, limits: Limits<'_>, judged: fn(Response<Bytes>) -> Judged) -> Judged {
    if OF_THE_REQUEST.contains(&response.status().as_u16()) {
        limits.misplaced.increment(1);
        if limits.refuses_misplaced {
            return Judged::Unfit("its status is about the request, and would be told for ever");
        }
    }
    if response.headers().contains_key(http::header::CONTENT_ENCODING) {
        return Judged::Unfit("it has a Content-Encoding, which belongs outside of what is kept");
    }
    if response.body().len() > limits.response_bytes_max {
        return Judged::Unfit("it is larger than what is kept of one answer");
    }
    judged(response)
}

/// Codes of references to a row that is not there, or from one that still is: PostgreSQL's and SQLite's, which come at once or with the COMMIT.
/// For a message the other row may be on its way, so it comes again. A client waits for the answer before it sends the next request, and would
/// be asked to come again for ever.
const BROKEN_REFERENCES: [&str; 4] = ["23001", "23503", "40002", "787"];

/// Whether another try may go better, by the class of an error and the database's code for it.
pub(crate) fn comes_again(class: ErrorClass, is_by_hand: bool, code: Option<&str>) -> bool {
    match class {
        ErrorClass::Permanent | ErrorClass::Fatal => false,
        ErrorClass::Transient => is_by_hand || !code.is_some_and(|code| BROKEN_REFERENCES.contains(&code)),
        ErrorClass::RunUnitAgain | ErrorClass::Infrastructure => true,
    }
}

/// Whether a failure of this status may pass, so that the answer says when to come again. A 500 does not promise that, and 501 and
/// 505 say the opposite (RFC 9110, 10.2.3 and 15.6).
pub(crate) fn may_pass(status: http::StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// The treatment of an answer, and how often it was counted as misplaced.
    fn judged(answered: Result<Response<Bytes>, HttpError>, refuses_misplaced: bool) -> (&'static str, u64) {
        let counted = Arc::new(AtomicU64::new(0));
        let misplaced = metrics::Counter::from_arc(Arc::clone(&counted));
        let limits = Limits { response_bytes_max: 10, misplaced: &misplaced, refuses_misplaced };
        let name = match judge(answered, limits) {
            Judged::Keep(_) => "keep",
            Judged::Refuse(_) => "refuse",
            Judged::Drop(_) => "drop",
            Judged::Fail(_) => "fail",
            Judged::Unfit(_) => "unfit",
        };
        (name, counted.load(Ordering::SeqCst))
    }

    /// W15: release builds keep and count the answers that debug builds refuse.
    #[test]
    fn w15_what_is_about_the_request_is_counted_in_release_builds() {
        for status in 100..1_000 {
            let response = || {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
                response
            };
            let is_misplaced = OF_THE_REQUEST.contains(&status);
            let counted = u64::from(is_misplaced);
            let of = |kept| match status {
                200..=499 => kept,
                500..=599 => "drop",
                _ => "unfit",
            };
            assert_eq!(judged(Ok(response()), false), (of("keep"), counted), "{status}");
            assert_eq!(judged(Err(HttpError::refused(response())), false), (of("refuse"), counted), "{status}");
            assert_eq!(judged(Err(HttpError::not_kept(response())), false), (of("drop"), 0), "{status}");
            if is_misplaced {
                assert_eq!(judged(Ok(response()), true), ("unfit", 1), "{status}");
                assert_eq!(judged(Err(HttpError::refused(response())), true), ("unfit", 1), "{status}");
                assert_eq!(judged(Err(HttpError::not_kept(response())), true), ("drop", 0), "{status}");
            }
        }
    }
}
