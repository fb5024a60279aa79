//! The answer of an operation, kept with its record and given to every repeat of its key.

use std::{fmt, time::SystemTime};

use bytes::Bytes;
use serde::Serialize;

use crate::message::headers::Headers;

/// The largest result, in bytes of body and headers, unless the consumer has another limit.
pub const RESULT_BYTES_MAX: usize = 256 << 10;

/// The largest [reference](ResultBody::reference) of a result, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 64;

/// The answer of an operation: a body, and for HTTP a status and headers. It is committed with the record of its key, and
/// every repeat with the same key and payload gets it back byte for byte.
#[derive(Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ResultBody {
    /// The status of an HTTP response, at most 32,767; `None` elsewhere.
    pub status: Option<u16>,
    /// The media type of the body, without NUL characters.
    pub content_type: Option<Box<str>>,
    /// Headers of an HTTP response that a repeat gets too.
    pub headers: Headers,
    /// Where the operation's outcome can be looked up, such as the `Location` of an HTTP response. Repeats get it, with the status,
    /// when the answer's time is over and the record's is not. At most [`REFERENCE_BYTES_MAX`] bytes, without NUL characters. It is never
    /// sealed, so it must not be confidential.
    pub reference: Option<Box<str>>,
    /// The body.
    pub body: Bytes,
}

impl ResultBody {
    /// A result of these bytes.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// A result with this value as JSON, and the media type of JSON.
    ///
    /// # Errors
    /// If JSON cannot represent the value, such as a map whose keys are not text.
    pub fn json(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::new(serde_json::to_vec(value)?).with_content_type("application/json"))
    }

    /// Sets the status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Sets the media type.
    #[must_use]
    pub fn with_content_type(self, content_type: &str) -> Self {
        Self { content_type: Some(content_type.into()), ..self }
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_headers(self, headers: Headers) -> Self {
        Self { headers, ..self }
    }

    /// Sets the [reference](Self::reference).
    #[must_use]
    pub fn with_reference(self, reference: &str) -> Self {
        Self { reference: Some(reference.into()), ..self }
    }

    /// The size that counts against the limit: body, headers and media type.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.body.len() + self.headers.bytes() + self.content_type.as_deref().map_or(0, str::len)
    }
}

impl fmt::Debug for ResultBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the body nor the value of a header (S4).
        f.debug_struct("ResultBody")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("reference", &self.reference.as_deref().map(str::len))
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}

/// A result that is kept: the outcome of the operation with its key and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredResult {
    /// Whether the operation was refused permanently, without an effect; see [`WorkError::final_result`](crate::once::WorkError::final_result).
    pub is_error: bool,
    /// The answer, byte for byte.
    pub result: ResultBody,
    /// When its time is over, as it was read back; `None` if it is kept as long as the record of its key.
    pub until: Option<SystemTime>,
}

impl StoredResult {
    /// A result as it was handed in.
    #[must_use]
    pub fn new(is_error: bool, result: ResultBody) -> Self {
        Self { is_error, result, until: None }
    }
}

/// Why the result of a recorded operation cannot be given. The operation is done nevertheless, and does not run again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotKept {
    /// There is no result: the handler set none, the worker did not keep results, or the record was imported.
    #[error("no result was kept")]
    Absent,
    /// The result was erased, for privacy.
    #[error("the result was erased")]
    Erased {
        /// Whether it was an error.
        is_error: bool,
        /// The status that it had.
        status: Option<u16>,
    },
    /// The result's time is over, and the record's is not; see
    /// [`result_retention`](crate::consumer::DedupConsumerBuilder::result_retention).
    #[error("the result is no longer kept")]
    Expired {
        /// Whether it was an error.
        is_error: bool,
        /// The status that it had.
        status: Option<u16>,
        /// Its [reference](ResultBody::reference).
        reference: Option<Box<str>>,
    },
    /// The result is sealed with a key that this program does not have. With the key it can be read.
    #[error("the result is sealed with key {number}, which this program does not have")]
    NoKey {
        /// The key's number.
        number: u16,
    },
    /// The seal does not match: the row was changed, or belongs to another record.
    #[error("the result is sealed with key {number}, and was changed since")]
    Altered {
        /// The key's number.
        number: u16,
    },
}
