//! The causes for which messages of a worker wait, and since when.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::policy::WaitCause;

/// Messages of a worker that wait for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The cause.
    pub cause: WaitCause,
    /// How many they are. Messages behind one of them, in its key, are not among them.
    pub messages: usize,
    /// For how long the first of them has waited.
    pub longest: Duration,
}

/// Every message that waits.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    all: BTreeMap<u64, (WaitCause, Instant)>,
}

/// One message that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    number: u64,
    pub(crate) cause: WaitCause,
    pub(crate) since: Instant,
}

impl Waits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, cause: WaitCause) -> Waiting {
        self.begin_at(cause, Instant::now())
    }

    fn begin_at(self: &Arc<Self>, cause: WaitCause, since: Instant) -> Waiting {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.all.insert(number, (cause, since));
        Waiting { waits: Arc::clone(self), number, cause, since }
    }

    /// One entry for each cause that anything waits for.
    pub(crate) fn now(&self) -> Vec<Wait> {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Vec<Wait> {
        let mut found = BTreeMap::<WaitCause, (usize, Instant)>::new();
        for (cause, since) in self.state().all.values() {
            let (messages, first) = found.entry(*cause).or_insert((0, *since));
            *messages += 1;
            *first = (*first).min(*since);
        }
        found
            .into_iter()
            .map(|(cause, (messages, first))| Wait { cause, messages, longest: now.duration_since(first) })
            .collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.state().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j16_what_waits_is_counted_by_cause_and_by_its_oldest() {
        let (waits, start) = (Arc::<Waits>::default(), Instant::now());
        let later = start + Duration::from_secs(3);
        assert_eq!(waits.at(later), []);
        let first = waits.begin_at(WaitCause::Retry, start);
        let (second, key) = (waits.begin_at(WaitCause::Retry, later), waits.begin_at(WaitCause::KeyHeld, later));
        let wait = |cause, messages, seconds| Wait { cause, messages, longest: Duration::from_secs(seconds) };
        assert_eq!(waits.at(later), [wait(WaitCause::Retry, 2, 3), wait(WaitCause::KeyHeld, 1, 0)]);
        drop((first, key));
        assert_eq!(waits.at(later), [wait(WaitCause::Retry, 1, 0)]);
        drop(second);
        assert_eq!(waits.at(later), []);
    }
}
