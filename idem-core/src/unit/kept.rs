//! The result of a key whose record was read.

use std::time::SystemTime;

use crate::{
    results::{
        encrypt::{OfRecord, Seal},
        result::{NotKept, StoredResult},
        rows::{Gone, KeptResult},
    },
    store::claim::{Claim, Recorded},
};

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
