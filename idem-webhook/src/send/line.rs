//! The line of those that found no place.

use std::time::Duration;

use tokio::time::Instant;

/// The longest time for which events wait in line. A host that answers again gets all of them within it.
pub(crate) const LINE_MAX: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, Default)]
pub(crate) struct Line {
    /// How long the last calls took.
    takes: Duration,
    /// When the last event in line may try for a place again.
    ends_at: Option<Instant>,
}

impl Line {
    /// How long an event waits for one of so many places, each of which is taken for `at_least` as far as can be seen now.
    ///
    /// Events in line are retried one by one, as fast as places become free. If all of them were retried together, the relay would be
    /// busy with them, the oldest events that it has, and would not get to those of others.
    pub(crate) fn wait(&mut self, now: Instant, at_least: Duration, places: u32) -> Duration {
        let ends_at = self.ends_at.unwrap_or(now).max(now) + self.takes.max(at_least) / places.max(1);
        let ends_at = if ends_at > now + LINE_MAX { now } else { ends_at };
        self.ends_at = Some(ends_at);
        ends_at - now
    }

    /// Notes how long a call took.
    pub(crate) fn took(&mut self, time: Duration) {
        self.takes = (self.takes + time) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// O16: those that wait are retried one by one, at the pace of the host, and none waits for longer than the line is.
    #[test]
    fn o16_events_that_wait_for_a_host_stand_in_line() {
        let (now, mut line) = (Instant::now(), Line::default());
        assert_eq!(line.wait(now, Duration::ZERO, 4), Duration::ZERO, "nothing is known of it yet");
        for in_line in 1..=10 {
            assert_eq!(line.wait(now, 4 * SECOND, 4), in_line * SECOND, "a place in each second");
        }
        let longest = (0..100_000).map(|_| line.wait(now, 4 * SECOND, 4)).max();
        assert_eq!(longest, Some(LINE_MAX));
        let later = now + LINE_MAX;
        line.took(40 * SECOND);
        (0..20).for_each(|_| line.took(SECOND / 25));
        let in_line = line.wait(later, Duration::ZERO, 4);
        assert!(in_line < SECOND / 50, "answers are quick again, and the wait is {in_line:?}");
    }
}
