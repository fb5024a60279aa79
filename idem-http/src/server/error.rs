//! The error of a handler, in place of a response that is committed.

use std::fmt;

use bytes::Bytes;
use http::Response;
use idem_core::HandlerError;

/// Why a request has no effect. `?` turns any error into one.
///
/// | A handler answers | its effects | the answer is kept | a repeat gets |
/// |---|---|---|---|
/// | `Ok`, any status but 5xx | committed | yes | the same answer |
/// | `Ok` with 5xx | rolled back | no | a run |
/// | [`HttpError::Final`] | rolled back | yes | the same answer |
/// | [`HttpError::NotKept`] | rolled back | no | a run |
/// | any other error, a panic, no end in time | rolled back | no | a run |
///
/// A decline that has effects of its own, such as a row that counts it, is not an error: answer it with `Ok` and its status. 401,
/// 403, 408, 425 and 429 concern a request and not its operation. If they were kept, every repeat of the key would get them: answer
/// them as [`NotKept`](Self::NotKept). As `Ok` they are refused in debug builds, and counted in others.
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

/// Decides how a handler's answer is treated.
pub(crate) fn judge(answered: Result<Response<Bytes>, HttpError>, limits: Limits<'_>) -> Judged {
    match answered {
        Ok(response) if response.status().is_server_error() => Judged::Drop(response),
        Ok(response) if response.status().is_informational() => Judged::Unfit("its status is 1xx, which is no answer"),
        Ok(response) => {
            if OF_THE_REQUEST.contains(&response.status().as_u16()) {
                limits.misplaced.increment(1);
                if cfg!(debug_assertions) {
                    return Judged::Unfit("its status is about the request, and would be told for ever");
                }
            }
            fit(response, limits, Judged::Keep)
        }
        Err(HttpError::Final(response)) if response.status().is_server_error() => Judged::Drop(*response),
        Err(HttpError::Final(response)) => fit(*response, limits, Judged::Refuse),
        Err(HttpError::NotKept(response)) => Judged::Drop(*response),
        Err(HttpError::Failed(error)) => Judged::Fail(error),
    }
}

/// The limits of a response.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) response_bytes_max: usize,
    /// Counts statuses that should not be kept.
    pub(crate) misplaced: &'a metrics::Counter,
}

fn fit(response: Response<Bytes>, limits: Limits<'_>, judged: fn(Response<Bytes>) -> Judged) -> Judged {
    if response.headers().contains_key(http::header::CONTENT_ENCODING) {
        return Judged::Unfit("it has a Content-Encoding, which belongs outside of what is kept");
    }
    if response.body().len() > limits.response_bytes_max {
        return Judged::Unfit("it is larger than what is kept of one answer");
    }
    judged(response)
}
