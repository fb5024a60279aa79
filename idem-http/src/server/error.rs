//! How a handler's response is treated.

use bytes::Bytes;
use http::Response;
use idem_core::ErrorClass;

/// How a response is treated.
pub(crate) enum Judged {
    /// It is committed and kept.
    Keep(Response<Bytes>),
    /// The writes are rolled back, and the response is kept.
    Refuse(Response<Bytes>),
    /// The writes are rolled back, and nothing is kept.
    Drop(Response<Bytes>),
    /// The response cannot be kept.
    Unfit(&'static str),
}

/// Statuses that concern a request and not its operation.
const OF_THE_REQUEST: [u16; 5] = [401, 403, 408, 425, 429];

/// The treatment that a handler asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its writes are committed, and the response is kept.
    Commit,
    /// Its writes are rolled back, and the response is kept.
    Refuse,
    /// Its writes are rolled back, and nothing is kept.
    Drop,
}

/// Decides how a handler's response is treated: the table of all statuses in the guide's page on HTTP.
pub(crate) fn judge(response: Response<Bytes>, wish: Wish, limits: Limits<'_>) -> Judged {
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

/// Codes that are transient for a message and permanent for a client. References to a row that is not there, or from one that still is
/// (PostgreSQL's and SQLite's): for a message the other row may be on its way. A client waits for the response before it sends the next
/// request. 25P02 is a statement in a transaction that had failed before: the handler has swallowed the error of that failure.
const LASTING: [&str; 5] = ["23001", "23503", "25P02", "40002", "787"];

/// Whether another try may go better, by the class of an error and the database's code for it.
pub(crate) fn comes_again(class: ErrorClass, is_by_hand: bool, code: Option<&str>) -> bool {
    match class {
        ErrorClass::Permanent | ErrorClass::Fatal => false,
        ErrorClass::Transient => is_by_hand || !code.is_some_and(|code| LASTING.contains(&code)),
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

    /// The treatment of a response, and how often it was counted as misplaced.
    fn judged(response: Response<Bytes>, wish: Wish, refuses_misplaced: bool) -> (&'static str, u64) {
        let counted = Arc::new(AtomicU64::new(0));
        let misplaced = metrics::Counter::from_arc(Arc::clone(&counted));
        let limits = Limits { response_bytes_max: 10, misplaced: &misplaced, refuses_misplaced };
        let name = match judge(response, wish, limits) {
            Judged::Keep(_) => "keep",
            Judged::Refuse(_) => "refuse",
            Judged::Drop(_) => "drop",
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
            assert_eq!(judged(response(), Wish::Commit, false), (of("keep"), counted), "{status}");
            assert_eq!(judged(response(), Wish::Refuse, false), (of("refuse"), counted), "{status}");
            assert_eq!(judged(response(), Wish::Drop, false), (of("drop"), 0), "{status}");
            if is_misplaced {
                assert_eq!(judged(response(), Wish::Commit, true), ("unfit", 1), "{status}");
                assert_eq!(judged(response(), Wish::Refuse, true), ("unfit", 1), "{status}");
                assert_eq!(judged(response(), Wish::Drop, true), ("drop", 0), "{status}");
            }
        }
    }
}
