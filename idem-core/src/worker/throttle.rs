//! Keeps a flood of failures from becoming a flood of log lines (J8).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Lines of one kind that are written in a second.
const LINES_MAX: u64 = 10;

/// Lets the first lines of each second through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    lines: u64,
}

impl Throttle {
    /// `Some` for a line that may be written, with how many were left out since the one before.
    pub(crate) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if window.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            left_out = window.lines.saturating_sub(LINES_MAX);
            *window = Window { since: Some(now), lines: 0 };
        }
        window.lines += 1;
        (window.lines <= LINES_MAX).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_pass_and_the_next_one_says_how_many_did_not() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        let passed: Vec<_> = (0..100).filter_map(|_| throttle.pass_at(start)).collect();
        assert_eq!(passed, [0; 10]);
        assert_eq!(throttle.pass_at(start + Duration::from_secs(1)), Some(90));
        assert_eq!(throttle.pass_at(start + Duration::from_secs(1)), Some(0));
    }
}
