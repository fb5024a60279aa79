//! Removes what has expired.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_core::{
    StoreError,
    cleanup::{Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
    store::{AuditEntry, ScopeId},
};

use super::{Books, DeadLetterRow, Defect, MemoryStore, RowState, State};

/// Cleanup of a [`MemoryStore`].
pub(in crate::memory_store) struct MemoryCleaner(pub(in crate::memory_store) MemoryStore);

#[async_trait]
impl Cleaner for MemoryCleaner {
    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let everything = self.0.shared.has(Defect::CleansLiveRecords);
        let clean = |state: &mut State| state.remove(removal.kind, removal.kept, removal.rows_max, everything);
        self.0.book("cleaning up", clean).await.map(Removed::Rows)
    }

    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        let count = |state: &mut State| {
            let kept = |kind| settings.kept(kind).unwrap_or_default();
            Expiring::ALL.map(|kind| (kind, state.expired(kind, kept(kind)))).to_vec()
        };
        self.0.book("cleaning up", count).await
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        let look = |state: &mut State| {
            let oldest = state.records.values().filter_map(|recorded| recorded.expires_at).min();
            Backlog { lag: oldest.and_then(|at| state.now().duration_since(at).ok()).unwrap_or_default() }
        };
        self.0.book("cleaning up", look).await
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let look = |state: &mut State| {
            let at = state.books.cleaned_at?;
            let ago = state.now().duration_since(at).unwrap_or_default();
            Some(LastCleanup { who: "this process".to_owned(), ago })
        };
        self.0.book("cleaning up", look).await
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        let line = AuditEntry::new("this process".to_owned(), report.action(), ScopeId(0), report.to_string());
        let note = |state: &mut State| {
            if !report.part {
                state.books.cleaned_at = Some(state.now());
            }
            state.books.audit.push(line.clone());
        };
        self.0.book("cleaning up", note).await
    }
}

/// Runs, units and lines of the audit trail take little room here, so they have no end; and records are never forgotten
/// here.
impl State {
    fn expired(&self, kind: Expiring, kept: Duration) -> u64 {
        let count = match kind {
            Expiring::Records => {
                self.records.values().filter(|recorded| is_over(recorded.expires_at, self.now())).count()
            }
            Expiring::Attempts => {
                self.books.attempts.values().filter(|row| is_old(row.last_at, kept, self.now())).count()
            }
            Expiring::DeadLetters => self.books.dead_letters.iter().filter(|row| row.is_done(kept, self.now())).count(),
            Expiring::Answers => self.events.results.values().filter(|row| row.is_over(self.now())).count(),
            Expiring::Units | Expiring::Audit | Expiring::Runs | Expiring::Forgotten => 0,
        };
        count as u64
    }

    fn remove(&mut self, kind: Expiring, kept: Duration, rows_max: u32, everything: bool) -> u64 {
        let (now, mut left) = (self.now(), rows_max);
        let mut take = |is_expired: bool| {
            let taken = is_expired && left > 0;
            left -= u32::from(taken);
            taken
        };
        let Books { attempts, dead_letters, .. } = &mut self.books;
        match kind {
            Expiring::Records => {
                self.records.retain(|_, recorded| !take(everything || is_over(recorded.expires_at, now)));
                let records = &self.records;
                self.events.results.retain(|key, _| records.contains_key(key));
            }
            Expiring::Attempts => attempts.retain(|_, row| !take(is_old(row.last_at, kept, now))),
            Expiring::DeadLetters => dead_letters.retain(|row| !take(row.is_done(kept, now))),
            Expiring::Answers => {
                for row in self.events.results.values_mut() {
                    if take(row.is_over(now)) {
                        row.end();
                    }
                }
            }
            Expiring::Units | Expiring::Audit | Expiring::Runs | Expiring::Forgotten => {}
        }
        u64::from(rows_max - left)
    }
}

impl DeadLetterRow {
    /// A row that awaits a replay stays, however old.
    fn is_done(&self, kept: Duration, now: SystemTime) -> bool {
        self.state == RowState::Over && is_old(self.last_at, kept, now)
    }
}

fn is_over(expires_at: Option<SystemTime>, now: SystemTime) -> bool {
    expires_at.is_some_and(|at| at <= now)
}

fn is_old(at: SystemTime, kept: Duration, now: SystemTime) -> bool {
    now.duration_since(at).is_ok_and(|age| age > kept)
}
