//! Which transactions are open: one that stays open keeps the database from removing dead rows (A26).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

/// When each open unit began, in that order.
#[derive(Debug, Default)]
pub(crate) struct OpenUnits(Mutex<BTreeMap<u64, Instant>>);

/// A unit that is open for as long as this lives.
pub(super) struct Open(Arc<OpenUnits>, u64);

impl OpenUnits {
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
        open.insert(number, Instant::now());
        drop(open);
        Open(Arc::clone(self), number)
    }

    /// Since when the oldest is open.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).first_key_value().map(|(_, since)| *since)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}
