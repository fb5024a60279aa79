//! Whether handlers use their transaction. One that writes over a connection of its own is not covered, and nothing else would
//! show it (A13).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{
    config::Effects,
    consumer::{DedupConsumer, Inner},
    store::Store,
};

/// After this many calls without any use it is logged. More than one, because a handler may ignore a message.
const UNUSED_MAX: u32 = 3;

/// Observations of the calls that went well.
#[derive(Debug, Default)]
pub(super) struct TransactionUse {
    is_used: AtomicBool,
    /// Calls before the first that used it.
    unused: AtomicU32,
}

impl TransactionUse {
    /// Notes a call. True once: when enough of them went well without using it to log that.
    fn note(&self, is_used: bool) -> bool {
        if is_used {
            self.is_used.store(true, Ordering::Relaxed);
            return false;
        }
        !self.is_used.load(Ordering::Relaxed) && self.unused.fetch_add(1, Ordering::Relaxed) + 1 == UNUSED_MAX
    }

    fn seen(&self) -> Option<bool> {
        let is_used = self.is_used.load(Ordering::Relaxed);
        (is_used || self.unused.load(Ordering::Relaxed) > 0).then_some(is_used)
    }
}

impl<S: Store> Inner<S> {
    /// Notes whether a call that went well has used its transaction.
    pub(super) fn note_use(&self, is_used: bool) {
        if self.effects == Effects::InTransaction && self.transaction_use.note(is_used) {
            tracing::warn!(
                idem.consumer = %self.name,
                "the handler has taken no connection from its transaction for its first {UNUSED_MAX} messages, and published \
                 nothing: what it does elsewhere happens at least once. Write through tx.connection(), or say Effects::Outside; a \
                 handler that is to do nothing is right as it is"
            );
        }
    }
}

impl<S: Store> DedupConsumer<S> {
    /// Whether any call of the handler so far has taken the connection of its transaction, published an event or set a result;
    /// `None` where none has gone well yet. With [`Effects::InTransaction`], `Some(false)` means that whatever the handler does,
    /// idem does not cover it.
    #[must_use]
    pub fn uses_transaction(&self) -> Option<bool> {
        self.inner.transaction_use.seen()
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
