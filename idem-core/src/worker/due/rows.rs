//! The rows that a worker has taken, as its lanes and its task for them share it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, time::Instant};

use crate::dead_letter::{DeadLetterId, DueEnd, DueRoom};

/// Bytes of payload in flight, about.
const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The rows that a worker has taken.
#[derive(Debug, Default)]
pub(crate) struct DueRows {
    state: Mutex<State>,
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) taken: HashMap<DeadLetterId, Taken>,
    pub(super) bytes: u64,
    /// Whether there may be more to take.
    pub(super) wanted: bool,
    pub(super) ends: Vec<(DeadLetterId, DueEnd)>,
    pub(super) released: Vec<DeadLetterId>,
}

#[derive(Debug)]
pub(super) struct Taken {
    pub(super) renewed_at: Instant,
    pub(super) bytes: u64,
}

impl State {
    /// The room for more, where half of it is free.
    pub(super) fn room(&self, rows_max: u32) -> Option<DueRoom> {
        let taken = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        let is_free = taken <= rows_max / 2 && self.bytes <= BYTES_MAX / 2;
        is_free.then(|| DueRoom { rows: rows_max - taken, bytes: BYTES_MAX - self.bytes })
    }

    pub(super) fn forget(&mut self, id: DeadLetterId) {
        if let Some(taken) = self.taken.remove(&id) {
            self.bytes -= taken.bytes;
        }
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.taken.values().map(|taken| taken.renewed_at).min()
    }
}

impl DueRows {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the task look whether anything is due.
    pub(crate) fn look(&self) {
        self.state().wanted = true;
        self.changed.notify_one();
    }

    /// Whether no row is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().taken.is_empty()
    }

    /// A row has ended. Lanes do not wait until that is noted: where the note is lost, the row is taken again, and is a duplicate by its
    /// record.
    pub(crate) fn ended(&self, id: DeadLetterId, end: DueEnd) {
        self.state().ends.push((id, end));
        self.changed.notify_one();
    }

    /// A row did not run.
    pub(crate) fn released(&self, id: DeadLetterId) {
        self.state().released.push(id);
        self.changed.notify_one();
    }
}
