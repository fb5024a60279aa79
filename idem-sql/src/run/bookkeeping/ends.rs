//! The ends of rows as the arrays of one statement.

use idem_core::dead_letter::{DeadLetterId, DueEnd};

use crate::run::{driver::storable, row::microseconds};

/// One entry an end, in each of them.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) ids: Vec<i64>,
    pub(super) outcomes: Vec<String>,
    /// The delays before later tries; -1 of rows without one.
    pub(super) afters: Vec<i64>,
    pub(super) reasons: Vec<String>,
    pub(super) attempts: Vec<i64>,
    pub(super) errors: Vec<String>,
    pub(super) fingerprints: Vec<String>,
}

impl Ended {
    pub(super) fn of(ends: &[(DeadLetterId, DueEnd)]) -> Self {
        let mut all = Self::default();
        for (id, end) in ends {
            let failure = end.failure();
            let after = match end {
                DueEnd::Again { after, .. } => Some(microseconds(*after).unwrap_or(i64::MAX)),
                DueEnd::Processed | DueEnd::Duplicate | DueEnd::Failed(_) => None,
            };
            all.ids.push(id.0);
            all.outcomes.push(storable(&end.outcome()));
            all.afters.push(after.unwrap_or(-1));
            all.reasons.push(failure.map(|failure| failure.reason.to_string()).unwrap_or_default());
            all.attempts.push(failure.map_or(0, |failure| i64::from(failure.attempts)));
            all.errors.push(failure.map(|failure| storable(&failure.error)).unwrap_or_default());
            let fingerprint = failure.and_then(|failure| failure.fingerprint);
            all.fingerprints.push(fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default());
        }
        all
    }
}
