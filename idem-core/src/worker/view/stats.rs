//! Counts of a worker's work.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    cleanup::runner::{CleanupState, CleanupView},
    names::ConsumerName,
    telemetry::{self, handles},
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $metric:ident),* $(,)?) => {
        #[derive(Debug)]
        pub(crate) struct Stats {
            $(pub(crate) $name: Counter,)*
            /// Set once cleanup runs in this worker.
            pub(crate) cleanup: OnceLock<CleanupView>,
        }

        /// Counts of a worker's work since it started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Summary {
            $($(#[$doc])* pub $name: u64,)*
            /// Events that were confirmed by their destinations, where a relay runs in the worker.
            pub published: u64,
            /// How long it has run.
            pub ran_for: Duration,
        }

        impl Stats {
            pub(crate) fn of(consumer: &ConsumerName) -> Self {
                Self { $($name: Counter(AtomicU64::new(0), handles::counter(telemetry::$metric, consumer)),)* cleanup: OnceLock::new() }
            }

            pub(crate) fn summary(&self, ran_for: Duration) -> Summary {
                Summary { $($name: self.$name.get(),)* published: 0, ran_for }
            }

            pub(crate) fn cleaning(&self) -> Option<CleanupState> {
                self.cleanup.get().map(CleanupView::state)
            }
        }
    };
}
counters! {
    /// Messages whose effects this worker committed, each once; one whose commit's answer was lost counts once its record is
    /// found. Where such a message went back to the broker before that, the delivery that finds the record is a duplicate.
    processed: PROCESSED,
    /// Duplicates that were skipped.
    duplicates: DUPLICATES,
    /// Duplicates among them that were recognised from memory, without the database; see
    /// [`WorkerSettings::cache_for`](crate::config::WorkerSettings::cache_for).
    cache_hits: CACHE_HITS,
    /// Messages whose key was used before for another payload.
    conflicts: CONFLICTS,
    /// Messages set aside; a conflict that was set aside counts here too.
    dead_lettered: DEAD_LETTERED,
    /// Attempts that failed and were followed by a back-off.
    retries: RETRIES,
    /// Deliveries that waited because another unit held their key.
    busy: BUSY,
    /// Messages whose commit's answer was lost, and whose outcome was then found; they count as processed too, or as
    /// duplicates where another worker's record was found.
    unknown_resolved: UNKNOWN_RESOLVED,
    /// Messages handled without a record, because their type opted out; they count as processed too.
    unprotected: UNPROTECTED,
    /// Messages older than the retention that were handled all the same.
    older_than_retention: OLDER_THAN_RETENTION,
    /// Deliveries given back to the broker.
    released: RELEASED,
    /// Settlements that came too late for their assignment, channel or receipt.
    stale_settlements: STALE_SETTLEMENTS,
    /// Dead letters that were handled again.
    replayed: REPLAYED,
    /// Rows that cleanup removed.
    cleaned: CLEANED,
}

/// Counted for the summary, and for the metrics recorder.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64, metrics::Counter);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
        self.1.increment(count);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
