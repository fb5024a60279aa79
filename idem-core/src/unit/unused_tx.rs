//! Whether handlers use their transaction. One that writes over a connection of its own is not covered, and nothing else would
//! show it (A13).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// After this many calls without any use it is logged. More than one, because a handler may ignore a message.
pub(super) const UNUSED_MAX: u32 = 3;

/// Observations of the calls that went well.
#[derive(Debug, Default)]
pub(crate) struct TransactionUse {
    is_used: AtomicBool,
    /// Calls before the first that used it.
    unused: AtomicU32,
}

impl TransactionUse {
    /// Notes a call. True once: when enough of them went well without using it to log that.
    pub(super) fn note(&self, is_used: bool) -> bool {
        if is_used {
            self.is_used.store(true, Ordering::Relaxed);
            return false;
        }
        !self.is_used.load(Ordering::Relaxed) && self.unused.fetch_add(1, Ordering::Relaxed) + 1 == UNUSED_MAX
    }

    pub(crate) fn seen(&self) -> Option<bool> {
        let is_used = self.is_used.load(Ordering::Relaxed);
        (is_used || self.unused.load(Ordering::Relaxed) > 0).then_some(is_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_it_is_told_once_and_only_of_who_never_used_it() {
        let never = TransactionUse::default();
        assert_eq!(never.seen(), None);
        assert_eq!([(); 5].map(|()| never.note(false)), [false, false, true, false, false]);
        assert_eq!(never.seen(), Some(false));
        let sometimes = TransactionUse::default();
        assert_eq!([false, false, true, false, false].map(|is_used| sometimes.note(is_used)), [false; 5]);
        assert_eq!(sometimes.seen(), Some(true));
    }
}
