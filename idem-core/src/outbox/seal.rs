//! What stands between a result and its row: a seal, where the consumer has one.

use super::{
    result::{NotKept, StoredResult},
    rows::{Gone, KeptResult, NewResult},
};
use crate::{key::IdempotencyKey, store::ScopeId};

/// A result could not be sealed, so that it must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the result could not be sealed: {0}")]
pub(crate) struct SealError(pub(crate) &'static str);

/// Seals results and opens them.
pub(crate) trait Seal: Send + Sync + 'static {
    /// Seals a result with the current key.
    fn seal(&self, result: NewResult) -> Result<NewResult, SealError>;

    /// Opens what was sealed for this key.
    fn open(&self, scope: ScopeId, key: &IdempotencyKey, kept: KeptResult) -> Result<StoredResult, NotKept>;
}

/// What is known of the result of a key whose record was read.
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
        (0, _) => Ok(StoredResult::new(kept.is_error, kept.result)),
        (number, None) => Err(NotKept::NoKey { number }),
        (_, Some(seal)) => seal.open(scope, key, kept),
    }
}
