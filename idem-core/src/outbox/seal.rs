//! Seals results before they are stored, if the consumer has a seal.

use super::{
    result::{NotKept, StoredResult},
    rows::{Gone, KeptResult, NewResult},
};
use crate::{key::IdempotencyKey, store::ScopeId};

/// A result could not be sealed, so it must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the result could not be sealed: {0}")]
pub(crate) struct SealError(pub(crate) &'static str);

/// Seals results and opens them.
pub(crate) trait Seal: Send + Sync + 'static {
    /// Seals a result with the current key.
    fn seal(&self, result: NewResult) -> Result<NewResult, SealError>;

    /// Opens a result that was sealed for this key.
    fn open(&self, scope: ScopeId, key: &IdempotencyKey, kept: KeptResult) -> Result<StoredResult, NotKept>;
}

/// The result of a key whose record was read, or why there is none.
pub(crate) fn known(
    seal: Option<&dyn Seal>,
    scope: ScopeId,
    key: &IdempotencyKey,
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
        (_, Some(seal)) => seal.open(scope, key, kept),
    }
}
