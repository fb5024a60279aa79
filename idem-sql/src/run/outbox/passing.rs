//! When looks at an outbox may begin past the published events: a database that keeps deleted rows for old snapshots meets each
//! of them again at every look.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use idem_core::outbox::DestinationId;

/// The events that are answered between two tries. A look meets this many in vain, and those of as many again.
const TRIED_AFTER: usize = 5_000;

/// The results of the last try, by destination.
#[derive(Debug, Default)]
pub(super) struct Passing(Mutex<HashMap<DestinationId, Passed>>);

#[derive(Debug, Default)]
struct Passed {
    /// Events that were answered since; `None` before the first try.
    answered: Option<usize>,
    /// Which transactions wrote to the outbox then, and the last number that was drawn.
    writers: Option<String>,
    drawn: Option<i64>,
}

impl Passing {
    fn lock(&self) -> MutexGuard<'_, HashMap<DestinationId, Passed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is to be tried after this many more events were answered, and with which parameters.
    pub(super) fn due(&self, destination: DestinationId, events: usize) -> Option<(Option<String>, Option<i64>)> {
        let mut all = self.lock();
        let passed = all.entry(destination).or_default();
        let answered = passed.answered.unwrap_or(TRIED_AFTER) + events;
        let is_due = events > 0 && answered >= TRIED_AFTER;
        passed.answered = Some(if is_due { 0 } else { answered });
        is_due.then(|| (passed.writers.take(), passed.drawn.take()))
    }

    pub(super) fn note(&self, destination: DestinationId, writers: String, drawn: i64) {
        let mut all = self.lock();
        let passed = all.entry(destination).or_default();
        (passed.writers, passed.drawn) = (Some(writers), Some(drawn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o31_it_is_tried_at_first_and_then_by_the_events_that_were_answered() {
        let (passing, of) = (Passing::default(), DestinationId(7));
        assert_eq!(passing.due(of, 0), None, "nothing was met");
        assert_eq!(passing.due(of, 1), Some((None, None)), "what others have left is met");
        passing.note(of, "3/7".to_owned(), 9);
        assert_eq!(passing.due(of, TRIED_AFTER - 1), None);
        assert_eq!(passing.due(of, 1), Some((Some("3/7".to_owned()), Some(9))));
        assert_eq!(passing.due(of, TRIED_AFTER), Some((None, None)), "the last try has told nothing");
        assert_eq!(passing.due(DestinationId(8), 1), Some((None, None)), "each destination by itself");
    }
}
