//! Seals results before they are stored, if the consumer has a seal.

use std::time::SystemTime;

use crate::{
    hash::PayloadHash,
    names::{IdempotencyKey, ScopeId},
    results::{
        result::{NotKept, StoredResult},
        rows::{KeptResult, NewResult},
    },
};

/// A result could not be sealed, so it must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the result could not be sealed: {0}")]
pub(crate) struct SealError(pub(crate) &'static str);

/// The record to which a sealed result is bound. Payload and time differ from those of an earlier record of the key, which was forgotten, has
/// expired or was lost in a restore (S58).
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "seal"), allow(dead_code, reason = "the implementation that reads it is behind the feature"))]
pub(crate) struct OfRecord<'r> {
    pub(crate) scope: ScopeId,
    pub(crate) key: &'r IdempotencyKey,
    pub(crate) hash: PayloadHash,
    pub(crate) processed_at: SystemTime,
}

/// Seals results and opens them.
pub(crate) trait Seal: Send + Sync + 'static {
    /// Seals a result with the current key.
    fn seal(&self, of: OfRecord<'_>, result: NewResult) -> Result<NewResult, SealError>;

    /// Opens a result that was sealed for this record.
    fn open(&self, of: OfRecord<'_>, kept: KeptResult) -> Result<StoredResult, NotKept>;
}
