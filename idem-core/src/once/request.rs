//! [`Request`] and [`Outcome`]: an operation as its caller asks for it, and how it ended.

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::{
    key::KEY_FIELD,
    message::{Message, decode_error::DecodePayloadError},
    results::result::{ResultBody, StoredResult},
    store::claim::Recorded,
};

/// An operation, as its caller asks for it. A [`Message`] is one too, for what has more than a key and a payload: headers, by which
/// many tenants are [told apart](crate::once::RunOnceBuilder::tenant_from), or a key that a [source](crate::key::KeySource) finds.
#[derive(Debug, Clone)]
pub struct Request(pub(super) Message);

impl Request {
    /// An operation with this key. The payload distinguishes it from another one that uses the same key. The key is given as the
    /// header `idempotencykey`, where the default [source](crate::once::RunOnceBuilder::key_source) finds it; with another source make a
    /// [`Message`].
    #[must_use]
    pub fn new(key: &str, payload: impl AsRef<[u8]>) -> Self {
        let payload = Bytes::copy_from_slice(payload.as_ref());
        Self(Message::new(payload).with_header(KEY_FIELD, key.to_owned()))
    }
}

impl From<Message> for Request {
    fn from(message: Message) -> Self {
        Self(message)
    }
}

/// The outcome of an operation, the same for every call with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work ran in this call, and this is its result.
    Fresh(ResultBody),
    /// The result was read back: the work did not run in this call, or the answer to its commit was lost on the way.
    Replayed {
        /// The result of the first run.
        result: ResultBody,
        /// Its record.
        recorded: Recorded,
    },
    /// The operation was [refused for good](crate::once::WorkError::final_result).
    Refused {
        /// The answer of the refusal.
        result: ResultBody,
        /// The record that it was read back with; `None` where this call has written it.
        recorded: Option<Recorded>,
    },
}

impl Outcome {
    pub(super) fn of(result: StoredResult, recorded: Option<Recorded>) -> Self {
        let StoredResult { is_error, result, .. } = result;
        match recorded {
            recorded if is_error => Self::Refused { result, recorded },
            Some(recorded) => Self::Replayed { result, recorded },
            None => Self::Fresh(result),
        }
    }

    /// The result, whichever it is.
    #[must_use]
    pub fn result(&self) -> &ResultBody {
        match self {
            Self::Fresh(result) | Self::Replayed { result, .. } | Self::Refused { result, .. } => result,
        }
    }

    /// The same by value.
    #[must_use]
    pub fn into_result(self) -> ResultBody {
        match self {
            Self::Fresh(result) | Self::Replayed { result, .. } | Self::Refused { result, .. } => result,
        }
    }

    /// The record that it was read back with; `None` where this call has written it.
    #[must_use]
    pub fn recorded(&self) -> Option<&Recorded> {
        match self {
            Self::Fresh(_) => None,
            Self::Replayed { recorded, .. } => Some(recorded),
            Self::Refused { recorded, .. } => recorded.as_ref(),
        }
    }

    /// Whether it was read back, a refusal too.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.recorded().is_some()
    }

    /// Whether the operation was refused for good.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// The result, decoded from JSON.
    ///
    /// # Errors
    /// [`DecodePayloadError`] where it is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, DecodePayloadError> {
        Message::new(self.result().body.clone()).json()
    }
}
