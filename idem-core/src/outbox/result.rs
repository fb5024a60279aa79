//! The answer of an operation, kept with its record and given again to whoever asks with the same key.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;

use crate::message::Headers;

/// The largest result, in bytes of body and headers, unless the consumer says otherwise.
pub const RESULT_BYTES_MAX: usize = 256 << 10;

/// What an operation answers: a body, and for HTTP a status and headers. It is committed with the record of its key, and
/// every repeat with the same key and payload gets it back byte for byte.
#[derive(Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ResultBody {
    /// The status of an HTTP response; `None` elsewhere.
    pub status: Option<u16>,
    /// The media type of the body.
    pub content_type: Option<Box<str>>,
    /// Headers of an HTTP response that a repeat gets too.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

impl ResultBody {
    /// A result of these bytes.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// The value as JSON, whose media type it also sets.
    ///
    /// # Errors
    /// Where the value is none that JSON has, such as a map whose keys are no texts.
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

    /// What counts against the limit: body, headers and media type.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.body.len() + self.headers.bytes() + self.content_type.as_deref().map_or(0, str::len)
    }
}

impl fmt::Debug for ResultBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the body and no header's value (S4).
        f.debug_struct("ResultBody")
            .field("status", &self.status)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}
