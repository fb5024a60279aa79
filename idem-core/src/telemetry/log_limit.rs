//! Keeps a flood of failures from becoming a flood of log lines (J8).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::names::ConsumerName;

/// Lines of one kind that are written in a second.
const LINES_MAX: u64 = 10;

/// That second.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// The lines of a worker that each message may cause, by their subjects.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    /// Messages that are set aside.
    pub(crate) dead_letters: Limiter,
    /// Messages that wait or are in doubt.
    pub(crate) waiting: Limiter,
    /// Conflicts, all of which the audit trail has.
    pub(crate) conflicts: Limiter,
    /// Dead letters that could not be published, and replays whose end could not be noted.
    pub(crate) unrecorded: Limiter,
    /// Dead letters that their rows alone have.
    pub(crate) unpublished: Limiter,
    /// Messages that cannot be kept.
    pub(crate) unkeepable: Limiter,
    /// Units whose keys are claimed again.
    pub(crate) again: Limiter,
}

impl LogLimiter {
    /// Says how many lines were left out since the last one of their kind, once no more come.
    pub(crate) fn sum_up(&self, consumer: &ConsumerName, now: Instant) {
        let Self { dead_letters, waiting, conflicts, unrecorded, unpublished, unkeepable, again } = self;
        for (about, lines) in [
            ("dead letters", dead_letters),
            ("messages that wait", waiting),
            ("conflicts", conflicts),
            ("dead letters and replays that could not be noted", unrecorded),
            ("dead letters that were not published", unpublished),
            ("messages that cannot be kept", unkeepable),
            ("units that claim again", again),
        ] {
            if let Some(left_out) = lines.end_at(now) {
                tracing::warn!(idem.consumer = %consumer, left_out, "lines about {about} were left out");
            }
        }
    }
}

/// Lets the first lines of each second through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Limiter(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    lines: u64,
}

impl Limiter {
    /// `Some` for a line that may be written, with how many were left out since the one before.
    pub(crate) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if window.is_over(now) {
            left_out = window.left_out();
            *window = Window { since: Some(now), lines: 0 };
        }
        window.lines += 1;
        (window.lines <= LINES_MAX).then_some(left_out)
    }

    /// How many lines were left out in a second that is over, where that was not logged yet.
    fn end_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = window.left_out();
        if left_out == 0 || !window.is_over(now) {
            return None;
        }
        *window = Window::default();
        Some(left_out)
    }
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.duration_since(since) >= WINDOW)
    }

    fn left_out(&self) -> u64 {
        self.lines.saturating_sub(LINES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_pass_and_the_next_one_says_how_many_did_not() {
        let (throttle, start) = (Limiter::default(), Instant::now());
        let passed: Vec<_> = (0..100_000).filter_map(|_| throttle.pass_at(start)).collect();
        assert_eq!(passed, [0; 10]);
        assert_eq!(throttle.pass_at(start + Duration::from_secs(1)), Some(99_990));
        assert_eq!(throttle.pass_at(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn what_was_left_out_is_told_once_where_no_line_follows() {
        let (throttle, start) = (Limiter::default(), Instant::now());
        assert_eq!((0..100).filter_map(|_| throttle.pass_at(start)).count(), 10);
        assert_eq!(throttle.end_at(start), None, "the second is not over");
        let later = start + Duration::from_secs(1);
        assert_eq!(throttle.end_at(later), Some(90));
        assert_eq!((throttle.end_at(later), throttle.pass_at(later)), (None, Some(0)));
    }
}
