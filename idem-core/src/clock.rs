//! Time. Deadlines use tokio's clock, which never jumps and which tests can pause; expiry, and the age of messages and
//! records, go by the database's. The wall clock of the process is never read, so it may jump (J14).

use std::{
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tokio::time::Instant;

/// The database's clock without a query: its last reading, and the time since then.
#[derive(Debug)]
pub(crate) struct DatabaseClock(Mutex<(SystemTime, Instant)>);

impl DatabaseClock {
    /// A clock without a reading yet.
    pub(crate) fn new() -> Self {
        Self(Mutex::new((SystemTime::UNIX_EPOCH, Instant::now())))
    }

    /// Notes a reading of the database's clock.
    pub(crate) fn set(&self, now: SystemTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (now, Instant::now());
    }

    pub(crate) fn now(&self) -> SystemTime {
        let (said, at) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.checked_add(at.elapsed()).unwrap_or(said)
    }
}
