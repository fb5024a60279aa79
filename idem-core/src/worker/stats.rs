//! What a worker has done, counted.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Stats {
            $(pub(crate) $name: Counter,)*
        }

        /// What a worker has done since it started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Summary {
            $($(#[$doc])* pub $name: u64,)*
            /// How long it has run.
            pub ran_for: Duration,
        }

        impl Stats {
            pub(crate) fn summary(&self, ran_for: Duration) -> Summary {
                Summary { $($name: self.$name.get(),)* ran_for }
            }
        }
    };
}
counters! {
    /// Messages whose effects were committed.
    processed,
    /// Duplicates that were skipped.
    duplicates,
    /// Duplicates among them that were told from memory, without the database; see
    /// [`WorkerSettings::cache_for`](crate::WorkerSettings::cache_for).
    cache_hits,
    /// Messages whose key was used before for another payload.
    conflicts,
    /// Messages set aside; a conflict that was set aside counts here too.
    dead_lettered,
    /// Attempts that failed and were followed by a back-off.
    retries,
    /// Deliveries that waited because somebody else held their key.
    busy,
    /// Messages whose commit's answer was lost, and whose outcome was then found; they count as processed or duplicate
    /// too.
    unknown_resolved,
    /// Messages handled without a record, because their type opted out; they count as processed too (R65).
    unprotected,
    /// Messages older than the retention that were handled all the same.
    older_than_retention,
    /// Deliveries given back to the broker.
    released,
    /// Settlements that came too late for their assignment, channel or receipt.
    stale_settlements,
    /// Dead letters that were handled again.
    replayed,
    /// Rows that cleanup removed.
    cleaned,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
