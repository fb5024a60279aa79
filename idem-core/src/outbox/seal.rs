//! Seals results before they are stored, if the consumer has a seal.

use std::time::SystemTime;

use crate::{
    hash::PayloadHash,
    key::IdempotencyKey,
    outbox::{
        result::{NotKept, StoredResult},
        rows::{Gone, KeptResult, NewResult},
    },
    store::{
        ScopeId,
        claim::{Claim, Recorded},
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

impl<'r> OfRecord<'r> {
    /// The record that a claim has inserted.
    pub(crate) fn inserted(claim: &'r Claim, processed_at: SystemTime) -> Self {
        Self { scope: claim.scope, key: &claim.key, hash: claim.hash, processed_at }
    }

    /// The record that a claim has met.
    fn met(claim: &'r Claim, recorded: &Recorded) -> Self {
        let (hash, processed_at) = (recorded.hash, recorded.processed_at);
        Self { scope: claim.scope, key: &claim.key, hash, processed_at }
    }
}

/// Seals results and opens them.
pub(crate) trait Seal: Send + Sync + 'static {
    /// Seals a result with the current key.
    fn seal(&self, of: OfRecord<'_>, result: NewResult) -> Result<NewResult, SealError>;

    /// Opens a result that was sealed for this record.
    fn open(&self, of: OfRecord<'_>, kept: KeptResult) -> Result<StoredResult, NotKept>;
}

/// The result of a key whose record was read, or why there is none.
pub(crate) fn known(
    seal: Option<&dyn Seal>,
    claim: &Claim,
    recorded: &Recorded,
    kept: Option<KeptResult>,
) -> Result<StoredResult, NotKept> {
    let kept = kept.ok_or(NotKept::Absent)?;
    let (is_error, status) = (kept.is_error, kept.result.status);
    match kept.gone {
        Some(Gone::Erased) => return Err(NotKept::Erased { is_error, status }),
        Some(Gone::Expired) => return Err(NotKept::Expired { is_error, status, reference: kept.result.reference }),
        None => {}
    }
    match (kept.sealed_with, seal) {
        (0, _) => Ok(StoredResult { until: kept.until, ..StoredResult::new(kept.is_error, kept.result) }),
        (number, None) => Err(NotKept::NoKey { number }),
        (_, Some(seal)) => seal.open(OfRecord::met(claim, recorded), kept),
    }
}
