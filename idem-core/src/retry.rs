//! How long a failed message waits, and how many attempts it gets: those at once, held in memory, and later ones, as rows.

use std::time::Duration;

use crate::setters::setters;

/// The delays of the later tries of a message whose [attempts at once](RetryPolicy::attempts) are used up, in their order: each is one
/// attempt. Meanwhile the message is a row of the store, and its broker has it no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Later {
    delays: [Duration; Self::MAX],
    tries: u8,
}

impl Later {
    /// No later tries: a message whose attempts are used up is a dead letter.
    pub const NONE: Self = Self { delays: [Duration::ZERO; Self::MAX], tries: 0 };
    /// How many delays there may be.
    pub const MAX: usize = 8;
    /// The longest delay, and for how long at most a message waits whose handler asks for a later try itself.
    pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

    /// Later tries after these delays; `None` where there are more than [`Self::MAX`].
    pub fn new(delays: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut later = Self::NONE;
        for delay in delays {
            *later.delays.get_mut(usize::from(later.tries))? = delay;
            later.tries += 1;
        }
        Some(later)
    }

    /// The delays.
    #[must_use]
    pub fn delays(&self) -> &[Duration] {
        self.delays.get(..usize::from(self.tries)).unwrap_or_default()
    }

    /// How many later tries there are.
    #[must_use]
    pub const fn tries(&self) -> u32 {
        self.tries as u32
    }

    /// The delay before later try number `number` (from 1), spread: never shorter than was asked for, and up to half as long again.
    #[must_use]
    pub fn delay(&self, number: u32, spread: f64) -> Option<Duration> {
        let place = usize::try_from(number.checked_sub(1)?).ok()?;
        self.delays().get(place).map(|delay| delay.mul_f64(1.0 + spread.clamp(0.0, 1.0) / 2.0))
    }
}

/// The attempts of a message, and the waits between them: each is longer than the one before by the same factor, from
/// `first` after the first attempt to `max` before the last, and at least doubles up to `max`. Each is spread by jitter, so
/// that messages that failed together do not come back together.
///
/// With the defaults the waits are 0.2 s, 1.1 s, 5.6 s and 30 s: 37 s in all, and at least 31 s with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How many attempts a message gets. Defaults to 5; at least 1.
    pub attempts: u32,
    /// The wait after the first attempt. Defaults to 200 ms.
    pub first: Duration,
    /// The longest wait. Defaults to 30 s.
    pub max: Duration,
    /// The tries after those. None by default.
    pub later: Later,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 5, first: Duration::from_millis(200), max: Duration::from_secs(30), later: Later::NONE }
    }
}

/// The smallest part of a wait that jitter leaves.
const SPREAD_FROM: f64 = 5.0 / 6.0;

impl RetryPolicy {
    /// A policy of so many attempts, with waits from `first` to `max`. [`WorkerBuilder::build`](crate::worker::WorkerBuilder::build)
    /// checks it.
    #[must_use]
    pub const fn new(attempts: u32, first: Duration, max: Duration) -> Self {
        Self { attempts, first, max, later: Later::NONE }
    }

    setters! {
        /// Sets how many attempts a message gets.
        attempts: u32,
        /// Sets the wait after the first attempt.
        first: Duration,
        /// Sets the longest wait.
        max: Duration,
        /// Sets the tries after those.
        later: Later,
    }

    /// The wait after attempt number `attempt` (from 1). `spread` in `0.0..1.0` picks a point between five sixths of the
    /// wait and the whole.
    #[must_use]
    pub fn backoff(&self, attempt: u32, spread: f64) -> Duration {
        let waits = self.attempts.saturating_sub(1);
        let ratio = self.max.as_secs_f64() / self.first.as_secs_f64().max(f64::MIN_POSITIVE);
        let even = ratio.powf(1.0 / f64::from(waits.saturating_sub(1).max(1)));
        spread_of(self.growing_by(even.max(2.0), attempt), spread, SPREAD_FROM)
    }

    /// The same, spread at random.
    pub(crate) fn between_attempts(&self, attempt: u32) -> Duration {
        self.backoff(attempt, fastrand::f64())
    }

    /// The wait after so many tries that charge nothing, of which there may be any number: it doubles from `first` up to
    /// `max`, and jitter takes up to half of it.
    pub(crate) fn backoff_now(&self, tries: u32) -> Duration {
        spread_of(self.growing_by(2.0, tries), fastrand::f64(), 0.5)
    }

    fn growing_by(&self, factor: f64, times: u32) -> Duration {
        let grown = self.first.as_secs_f64() * factor.powf(f64::from(times.saturating_sub(1)));
        Duration::try_from_secs_f64(grown).unwrap_or(self.max).min(self.max)
    }
}

fn spread_of(full: Duration, spread: f64, from: f64) -> Duration {
    full.mul_f64(from + spread.clamp(0.0, 1.0) * (1.0 - from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d21_the_default_waits_last_for_half_a_minute_in_all() {
        let policy = RetryPolicy::default();
        let in_all = |spread| (1..policy.attempts).map(|attempt| policy.backoff(attempt, spread)).sum::<Duration>();
        assert!(in_all(0.0) >= Duration::from_secs(30), "{:?}", in_all(0.0));
        assert!(in_all(1.0) < Duration::from_secs(40), "{:?}", in_all(1.0));
        assert_eq!(policy.backoff(1, 1.0), Duration::from_millis(200));
        assert_eq!(policy.backoff(4, 1.0).as_millis(), 30_000);
        for attempt in [9, 32, u32::MAX] {
            assert_eq!(policy.backoff(attempt, 1.0), Duration::from_secs(30));
        }
    }

    #[test]
    fn a_later_try_is_never_before_its_delay() {
        let delays = [30, 120].map(Duration::from_secs);
        let later = Later::new(delays).unwrap();
        assert_eq!((later.delays(), later.tries()), (&delays[..], 2));
        assert_eq!(later.delay(1, 0.0), Some(Duration::from_secs(30)));
        assert_eq!(later.delay(2, 1.0), Some(Duration::from_secs(180)));
        assert_eq!((later.delay(0, 0.0), later.delay(3, 0.0), Later::NONE.delay(1, 0.0)), (None, None, None));
        assert_eq!(Later::new([Duration::from_secs(1); 9]), None, "more than there is room for");
    }

    #[test]
    fn many_attempts_double_their_waits_up_to_the_longest() {
        let policy = RetryPolicy { attempts: 100, ..RetryPolicy::default() };
        assert_eq!(policy.backoff(2, 1.0), Duration::from_millis(400));
        assert_eq!(policy.backoff(3, 1.0), Duration::from_millis(800));
        assert_eq!(policy.backoff(50, 1.0), Duration::from_secs(30));
        for strange in [
            RetryPolicy { attempts: 1, ..policy },
            RetryPolicy { attempts: 2, ..policy },
            RetryPolicy { first: Duration::ZERO, ..policy },
            RetryPolicy { first: Duration::from_secs(60), ..policy },
        ] {
            assert!(strange.backoff(1, 1.0) <= Duration::from_secs(30), "{strange:?}");
        }
        assert!((1..9).all(|tries| policy.backoff_now(tries) >= Duration::from_millis(100)));
    }
}
