//! Conflicts of calls: all are counted, and some are written to the audit trail.
//!
//! The trail shows which keys were used for two operations. A refusal must not cost a database write each time: a caller that
//! knows one key could fill the disk, and would cost more than callers that are served.

use std::{
    collections::HashSet,
    fmt::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    names::ConsumerName,
    once::expected,
    outcome::Decision,
    store::{AuditEntry, Bookkeeping as _, Store},
    telemetry::{self, handles, log_limit::Limiter},
    unit::{decide::conflict_details, engine::Engine, identify::Item},
};

/// The most keys whose conflicts are noted within [`WINDOW`].
const KEYS_MAX: usize = 32;

const WINDOW: Duration = Duration::from_secs(3_600);

pub(super) struct Conflicts {
    window: Mutex<Window>,
    lines: Limiter,
    counted: metrics::Counter,
}

#[derive(Debug, Default)]
struct Window {
    ends: Option<Instant>,
    /// Digests of the keys of which a conflict was noted.
    keys: HashSet<u64>,
    /// Conflicts since the last one that was noted.
    passed_over: u64,
}

impl Window {
    /// Whether a conflict of this key is noted, and how many were not since the last one.
    fn turn(&mut self, key: u64, now: Instant) -> Option<u64> {
        if self.ends.is_none_or(|ends| now >= ends) {
            self.ends = Some(now + WINDOW);
            self.keys.clear();
        }
        if self.keys.contains(&key) || self.keys.len() >= KEYS_MAX {
            self.passed_over += 1;
            return None;
        }
        self.keys.insert(key);
        Some(std::mem::take(&mut self.passed_over))
    }

    /// The conflict that had its turn could not be noted.
    fn turn_back(&mut self, key: u64, passed_over: u64) {
        self.keys.remove(&key);
        self.passed_over += passed_over + 1;
    }
}

impl Conflicts {
    pub(super) fn of(consumer: &ConsumerName) -> Self {
        Self {
            window: Mutex::default(),
            lines: Limiter::default(),
            counted: handles::counter(telemetry::CONFLICTS, consumer),
        }
    }

    /// Notes that a key was used for another operation. Nothing that is stored of the first one is disclosed.
    pub(super) async fn note<S: Store>(&self, engine: &Engine<S>, item: &Item, decision: &Decision) {
        let (Decision::Conflict(recorded, kind), Some(claim)) = (decision, &item.claim) else { return };
        self.counted.increment(1);
        if let Some(left_out) = self.lines.pass() {
            tracing::warn!(
                target: telemetry::AUDIT,
                {
                    idem.consumer = %engine.name, idem.key = %claim.key, recorded = %recorded.hash.prefix(),
                    found = %claim.hash.prefix(), left_out
                },
                "{}; nothing runs", kind.as_str()
            );
        }
        let Some(registered) = engine.registered.get() else { return };
        let key = expected::digest(claim);
        let Some(passed_over) = self.window().turn(key, Instant::now()) else { return };
        let mut details = conflict_details(claim, recorded, item.message.origin().as_str());
        if passed_over > 0 {
            let _ = write!(details, "; {passed_over} more since the last line");
        }
        let who = format!("run {}", registered.run);
        let entry = AuditEntry::new(who, "conflict", claim.scope, details).key(Some(claim.key.clone()));
        let noted =
            tokio::time::timeout(engine.settings.answer_timeout, engine.store.bookkeeping().audit(&entry)).await;
        if !matches!(noted, Ok(Ok(()))) {
            self.window().turn_back(key, passed_over);
            tracing::warn!(
                target: telemetry::AUDIT,
                { idem.consumer = %engine.name, idem.key = %claim.key },
                "that could not be noted in the audit trail"
            );
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v15_a_conflict_is_noted_once_a_key_and_hour_and_for_so_many_keys() {
        let (mut window, begun) = (Window::default(), Instant::now());
        assert_eq!(window.turn(0, begun), Some(0));
        assert_eq!([window.turn(0, begun), window.turn(0, begun)], [None, None]);
        assert_eq!(window.turn(1, begun), Some(2), "it says how many were not noted");
        let noted = (2..1_000).filter(|key| window.turn(*key, begun).is_some()).count();
        assert_eq!(noted, KEYS_MAX - 2);
        let later = begun + WINDOW;
        assert_eq!(window.turn(0, later - Duration::from_nanos(1)), None);
        assert_eq!(window.turn(0, later), Some(1_000 - KEYS_MAX as u64 + 1));
        window.turn_back(0, 7);
        assert_eq!(window.turn(0, later), Some(8), "a conflict that could not be noted has its turn again");
    }
}
