//! Keys that are known committed, so that their duplicates need no database.
//!
//! The database stays the authority: an entry is a record that was committed or read, it goes before the record may go,
//! and all of them go when a record may have been removed (by an operator, a failover, a restore).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    config::WorkerSettings,
    names::{IdempotencyKey, Retention},
    outcome::{Durable, Verdict, compare},
    store::{
        StoreIdentity,
        claim::{Claim, Recorded},
    },
};

/// How often the epoch is read while the cache is on. It rises when an operator forgets or replays records.
pub(crate) const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// Without a confirmation of the epoch for so long, nothing is answered from memory.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// The bytes of an entry beside its key, which is held once: the record, the two collections' own.
const ENTRY_BYTES: usize = 250;

#[derive(Debug)]
pub(crate) struct CommittedKeys {
    keep_for: Duration,
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Rises whenever everything is dropped.
    generation: u64,
    confirmed: Option<Confirmed>,
    entries: HashMap<IdempotencyKey, (Recorded, Instant)>,
    /// In the order in which they were noted, which is the order in which they expire.
    order: VecDeque<(IdempotencyKey, Instant)>,
    bytes: usize,
}

/// The control that was last read.
#[derive(Debug)]
struct Confirmed {
    epoch: i64,
    identity: StoreIdentity,
    /// When; `None` once a later look has failed.
    at: Option<Instant>,
}

/// The moment before a claim. Its answers are noted only if nothing was dropped since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    generation: u64,
    at: Instant,
}

impl CommittedKeys {
    /// `None` where the cache is off.
    pub(crate) fn new(settings: &WorkerSettings, retention: Retention) -> Option<Self> {
        let keep_for = match retention {
            Retention::For(retention) => settings.cache_for?.min(retention),
            Retention::Forever => settings.cache_for?,
        };
        Some(Self { keep_for, bytes_max: settings.cache_bytes_max, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an entry lives at most.
    pub(crate) fn keep_for(&self) -> Duration {
        self.keep_for
    }

    /// To be taken before a claim is sent.
    pub(crate) fn before(&self, now: Instant) -> Before {
        Before { generation: self.state().generation, at: now }
    }

    /// Notes a record that was committed, or read after it was.
    pub(crate) fn note(&self, before: Before, recorded: Recorded) {
        let mut state = self.state();
        if state.generation != before.generation {
            return;
        }
        let key = recorded.key.clone();
        state.bytes += key.as_str().len() + ENTRY_BYTES;
        state.order.push_back((key.clone(), before.at));
        state.entries.insert(key, (recorded, before.at));
        while state.bytes > self.bytes_max {
            state.drop_oldest();
        }
    }

    /// The record of this claim's key, if it is known and says that the message is a duplicate. Anything else is for
    /// the database to say.
    pub(crate) fn duplicate(&self, claim: &Claim, now: Instant) -> Option<(Recorded, Durable)> {
        let mut state = self.state();
        let confirmed_at = state.confirmed.as_ref()?.at?;
        if now.duration_since(confirmed_at) > CONFIRMED_FOR {
            return None;
        }
        while state.order.front().is_some_and(|(_, from)| now.duration_since(*from) >= self.keep_for) {
            state.drop_oldest();
        }
        let (recorded, _) = state.entries.get(&claim.key)?.clone();
        match compare(claim, recorded, |_| None) {
            Verdict::Duplicate(recorded, durable) => Some((recorded, durable)),
            Verdict::Fresh(_) | Verdict::Conflict(..) | Verdict::Collision(_) | Verdict::Unanswered => None,
        }
    }

    /// The epoch and the server's identity as they were just read. Where either has changed, or none was known, everything
    /// goes before anything is answered by this confirmation: entries may be of another epoch or server.
    pub(crate) fn confirm(&self, epoch: i64, identity: StoreIdentity, now: Instant) {
        let mut state = self.state();
        let is_same = |known: &Confirmed| known.identity == identity || bugs::planted(Bug::RemembersOverServers);
        let is_known = state.confirmed.as_ref().is_some_and(|known| known.epoch == epoch && is_same(known));
        if !is_known {
            state.drop_all();
        }
        state.confirmed = Some(Confirmed { epoch, identity, at: Some(now) });
    }

    /// The database could not be asked: nothing is answered until it was, because another server may answer then.
    pub(crate) fn doubt(&self) {
        if let Some(confirmed) = &mut self.state().confirmed {
            confirmed.at = None;
        }
    }

    /// A connection was lost, and the next may be to another server or to one that was restored.
    pub(crate) fn drop_all(&self) {
        if !bugs::planted(Bug::RemembersOverServers) {
            self.state().drop_all();
        }
    }
}

impl State {
    fn drop_all(&mut self) {
        let confirmed = self.confirmed.take();
        *self = Self { generation: self.generation + 1, confirmed, ..Self::default() };
    }

    fn drop_oldest(&mut self) {
        let Some((key, from)) = self.order.pop_front() else { return };
        self.bytes -= key.as_str().len() + ENTRY_BYTES;
        // A key that was noted again has a younger entry.
        if self.entries.get(&key).is_some_and(|(_, noted)| *noted == from) {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
