//! The rows of results.

use std::time::SystemTime;

use idem_core::{
    ResultBody,
    results::{KeptResult, NewResult},
};

/// A result beside its record.
#[derive(Debug, Clone)]
pub(super) struct ResultRow {
    pub(super) result: NewResult,
    /// When it is over, where that is before its record is.
    pub(super) until: Option<SystemTime>,
    /// Whether cleanup has removed all of it but kind, status and reference.
    pub(super) is_ended: bool,
}

impl ResultRow {
    pub(super) fn new(result: NewResult, now: SystemTime) -> Self {
        let until = result.kept_for.and_then(|time| now.checked_add(time));
        Self { result, until, is_ended: false }
    }

    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    pub(super) fn end(&mut self) {
        let ResultBody { status, reference, .. } = std::mem::take(&mut self.result.result);
        (self.result.result.status, self.result.result.reference) = (status, reference);
        (self.until, self.is_ended, self.result.sealed_with) = (None, true, 0);
    }

    pub(super) fn kept(&self) -> KeptResult {
        let NewResult { is_error, ref result, sealed_with, .. } = self.result;
        if self.is_ended {
            return KeptResult::expired(is_error, result.status, result.reference.clone());
        }
        let mut kept = KeptResult::new(is_error, result.clone(), sealed_with);
        kept.until = self.until;
        kept
    }
}
