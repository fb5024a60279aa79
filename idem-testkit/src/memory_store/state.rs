//! The committed rows, and the units that hold keys and locks.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes, IdempotencyKey, Retention,
    store::{Claim, Recorded, ScopeId},
};
use tokio::time::Instant;

use super::{Defect, bookkeeping::Books, inbox::Inboxes, outbox::Events};

/// The unique key: a key within its scope.
pub(super) type RecordKey = (ScopeId, IdempotencyKey);

/// The rows of a table.
pub(super) type Rows = Vec<(String, Bytes)>;

/// A unit of work, as the "server" numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct UnitId(u64);

/// When the clock of every store begins: 1 January 2026 in UTC.
const DAY_ONE: Duration = Duration::from_secs(1_767_225_600);

/// When a store was made.
#[derive(Debug)]
pub(super) struct Began(Instant);

impl Default for Began {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    began: Began,
    pub(super) records: BTreeMap<RecordKey, Recorded>,
    /// The uncommitted records, each with its unit.
    pub(super) held: BTreeMap<RecordKey, (UnitId, Recorded)>,
    /// The unit that writes, in a store with a single writer.
    pub(super) writer: Option<UnitId>,
    /// The unit that each waiting unit waits for.
    pub(super) waits: BTreeMap<UnitId, UnitId>,
    pub(super) tables: BTreeMap<String, Rows>,
    pub(super) books: Books,
    pub(super) events: Events,
    pub(super) inboxes: Inboxes,
    pub(super) advanced: Duration,
    pub(super) set_back: Duration,
    /// The locked rows, with the units that hold the locks.
    pub(super) locked: BTreeMap<(String, String), UnitId>,
    /// How often all sessions have ended.
    pub(super) era: u64,
    /// Which server answers.
    pub(super) server: u32,
    pub(super) deadlocks: u64,
    pub(super) unknown_commits: u64,
    pub(super) swallows_records: bool,
    pub(super) hides_records: bool,
    units: u64,
}

/// A row that a unit has written and not committed.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Put { table: String, key: String, value: Bytes },
    Append { table: String, key: String, value: Bytes },
}

impl State {
    pub(super) fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY_ONE + self.began.0.elapsed() + self.advanced - self.set_back
    }

    pub(super) fn next_unit(&mut self) -> UnitId {
        self.units += 1;
        UnitId(self.units)
    }

    /// Whether `unit` would close a circle by waiting for `holder`.
    pub(super) fn is_deadlock(&self, unit: UnitId, holder: UnitId) -> bool {
        // A unit that was dropped while it waited still stands in a circle of others.
        let chain = std::iter::successors(Some(holder), |waiting| self.waits.get(waiting).copied());
        chain.take(self.waits.len() + 1).any(|next| next == unit)
    }

    /// Commits what a unit wrote.
    pub(super) fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            apply_to(&mut self.tables, write);
        }
    }

    /// Lets go of everything that a unit holds.
    pub(super) fn release(&mut self, unit: UnitId) {
        self.held.retain(|_, (holder, _)| *holder != unit);
        self.events.held.retain(|_, holder| *holder != unit);
        self.locked.retain(|_, holder| *holder != unit);
        self.waits.remove(&unit);
        if self.writer == Some(unit) {
            self.writer = None;
        }
    }
}

/// Makes one write visible in a set of tables.
pub(super) fn apply_to(tables: &mut BTreeMap<String, Rows>, write: &Write) {
    match write {
        Write::Put { table, key, value } => {
            let rows = tables.entry(table.clone()).or_default();
            match rows.iter_mut().find(|(existing, _)| existing == key) {
                Some(row) => row.1 = value.clone(),
                None => rows.push((key.clone(), value.clone())),
            }
        }
        Write::Append { table, key, value } => {
            tables.entry(table.clone()).or_default().push((key.clone(), value.clone()));
        }
    }
}

/// A text as databases store it: PostgreSQL cannot store this one character, and the other stores do as it does.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The key under which a claim is recorded.
pub(super) fn record_key(claim: &Claim, defect: Option<Defect>) -> RecordKey {
    let text = claim.key.as_str();
    let changed = match defect {
        Some(Defect::FoldsKeys | Defect::CollidesKeys) => Some(text.trim_end().to_lowercase()),
        Some(Defect::CutsKeysAt64Bytes) => Some(text.chars().take(64).collect()),
        Some(_) | None => None,
    };
    let key = changed.and_then(|text| IdempotencyKey::new(&text).ok()).unwrap_or_else(|| claim.key.clone());
    let scope = if defect == Some(Defect::IgnoresScopes) { ScopeId(0) } else { claim.scope };
    (scope, key)
}

/// The record that a claim leaves.
pub(super) fn record(claim: &Claim, run: idem_core::store::RunId, now: SystemTime) -> Recorded {
    let expires_at = match claim.retention {
        Retention::For(time) => now.checked_add(time),
        Retention::Forever => None,
    };
    let key = claim.key.clone();
    Recorded::new(key, claim.hash, claim.hash_rule, now, run, expires_at)
}
