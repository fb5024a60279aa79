//! Bugs that can be planted in this store by name, one at a time, to see that tests find them. Without `--cfg idem_bugs` none of them is
//! compiled in.

/// A planted bug: the variable `IDEM_BUG` names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The record is committed first, and the writes of the handler in a second transaction.
    MarkBeforeEffect,
    /// Neither a claim nor a commit asks how the item is.
    NoCondition,
    /// A commit does not ask whether the claim is still its own.
    NoToken,
    /// A key that another unit works on counts as recorded.
    FoundInProgress,
    /// A key without a copy counts as free, and the store is not asked.
    CopyRuns,
    /// Copies are not bound to their table.
    CopiesOfOtherTables,
}

/// Whether this bug is planted, in the whole process.
#[cfg(idem_bugs)]
pub(crate) fn planted(bug: Bug) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("IDEM_BUG").ok()).as_deref() == Some(&format!("{bug:?}"))
}

/// Without the flag no bug is planted.
#[cfg(not(idem_bugs))]
#[inline(always)]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
