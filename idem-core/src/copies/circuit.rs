//! Whether the cache of copies is asked: after a failure it rests, and then one call tries it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long the cache is not asked after a failure.
pub(super) const REST: Duration = Duration::from_secs(10);

/// Until when the cache rests; `None` while it answers.
#[derive(Debug, Default)]
pub(super) struct Circuit(Mutex<Option<Instant>>);

impl Circuit {
    fn state(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it rests now.
    pub(super) fn rests(&self) -> bool {
        self.state().is_some_and(|until| Instant::now() < until)
    }

    /// Whether a call may be made. After a rest one call may, and the others once it has succeeded.
    pub(super) fn lets_pass(&self) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        match *state {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                *state = Some(now + REST);
                true
            }
        }
    }

    pub(super) fn succeeded(&self) {
        *self.state() = None;
    }

    /// Begins a rest. Answers whether none had begun.
    pub(super) fn failed(&self) -> bool {
        self.state().replace(Instant::now() + REST).is_none()
    }
}
