//! A worker's counts over the last minute, remembered every few seconds.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use idem_core::worker::Summary;
use tokio::time::Instant;

/// How often the counts are noted.
pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// How far a rate looks back.
const WINDOW: Duration = Duration::from_secs(60);

/// The counts of the last minute; it begins with zeros at the start of the process.
#[derive(Debug)]
pub(crate) struct Rates(Mutex<VecDeque<(Instant, Summary)>>);

/// The counts of this time, which is a minute, or less if the process is younger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recent {
    /// The counts a while ago.
    pub(crate) before: Summary,
    pub(crate) over: Duration,
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(VecDeque::from([(Instant::now(), Summary::default())])))
    }

    /// Notes the counts of this moment, and forgets those that no rate looks back to.
    pub(crate) fn note(&self, now: Instant, counts: Summary) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push_back((now, counts));
        while noted.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            noted.pop_front();
        }
    }

    /// The counts of a minute ago.
    pub(crate) fn recent(&self, now: Instant) -> Recent {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, before) = noted.front().copied().unwrap_or((now, Summary::default()));
        Recent { before, over: now.duration_since(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_looks_back_a_minute_and_no_further() {
        let begun = Instant::now();
        let rates = Rates(Mutex::new(VecDeque::from([(begun, Summary::default())])));
        let mut counts = Summary::default();
        assert_eq!(rates.recent(begun).over, Duration::ZERO);
        let mut now = begun;
        for _ in 0..100 {
            now += EVERY;
            counts.processed += 10;
            rates.note(now, counts);
        }
        let recent = rates.recent(now);
        assert_eq!((recent.over, counts.processed - recent.before.processed), (WINDOW, 120));
        assert_eq!(rates.0.lock().unwrap().len(), 13, "what nobody looks back to is forgotten");
    }
}
