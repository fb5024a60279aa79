//! How long a failed message waits, and how many attempts it gets.

use std::time::Duration;

/// The back-off between attempts: it doubles from `first` up to `max`, and each wait is spread by jitter, so that
/// messages that failed together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How many attempts a message gets. Defaults to 5; at least 1.
    pub attempts: u32,
    /// The wait after the first attempt. Defaults to 200 ms.
    pub first: Duration,
    /// The longest wait. Defaults to 30 s.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 5, first: Duration::from_millis(200), max: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// The wait after attempt number `attempt` (from 1). `spread` in `0.0..1.0` picks a point between half the wait
    /// and the whole.
    #[must_use]
    pub fn backoff(&self, attempt: u32, spread: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.max);
        full.mul_f64(0.5 + spread.clamp(0.0, 1.0) / 2.0)
    }

    /// The same, spread at random.
    pub(crate) fn backoff_now(&self, attempt: u32) -> Duration {
        self.backoff(attempt, fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_maximum_and_keeps_at_least_half() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.backoff(1, 1.0), Duration::from_millis(200));
        assert_eq!(policy.backoff(2, 1.0), Duration::from_millis(400));
        assert_eq!(policy.backoff(1, 0.0), Duration::from_millis(100));
        for attempt in [9, 32, u32::MAX] {
            assert_eq!(policy.backoff(attempt, 1.0), Duration::from_secs(30));
        }
    }
}
