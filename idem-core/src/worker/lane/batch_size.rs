//! How large the next unit is. Pure.

use std::time::Duration;

/// How long a unit may take, about. It holds its rows for as long, and all of it runs again after a failure.
const UNIT_MAX: Duration = Duration::from_secs(5);

/// How many messages the next unit takes: fewer after conflicts with other units or where handlers take long, more again when
/// it is calm. It is an upper limit: a lane takes what is there, and waits for nothing.
#[derive(Debug)]
pub(super) struct BatchSize {
    pub(super) max: usize,
    now: usize,
    budget: Duration,
}

impl BatchSize {
    /// `hold_max` is how long the broker leaves a delivery unsettled: a quarter of it leaves time for the units in front
    /// of this one and for the runs after a failure (D8).
    pub(super) fn new(max: usize, hold_max: Option<Duration>) -> Self {
        Self { max, now: max, budget: hold_max.map_or(UNIT_MAX, |max| UNIT_MAX.min(max / 4)) }
    }

    pub(super) fn now(&self) -> usize {
        self.now
    }

    pub(super) fn shrink(&mut self) {
        self.now = (self.now / 2).max(1);
    }

    pub(super) fn grow(&mut self) {
        self.now = (self.now + self.now / 4 + 1).min(self.max);
    }

    /// A unit of so many messages took so long: the next one takes no more than would fit.
    pub(super) fn took(&mut self, messages: usize, time: Duration) {
        let fit = messages as u128 * self.budget.as_nanos() / time.as_nanos().max(1);
        self.now = self.now.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_batch_shrinks_to_one_and_grows_back_to_its_maximum() {
        let mut size = BatchSize::new(100, None);
        (0..10).for_each(|_| size.shrink());
        assert_eq!(size.now(), 1);
        (0..30).for_each(|_| size.grow());
        assert_eq!(size.now(), 100);
    }

    /// D8: handlers become slower and slower; a unit never takes longer than its budget by more than they slowed down.
    #[test]
    fn d8_a_batch_fits_its_time_however_slow_the_handlers_become() {
        let (mut size, hold_max) = (BatchSize::new(500, Some(seconds(12))), seconds(12));
        for milliseconds in [1_u64, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000] {
            let time = Duration::from_millis(milliseconds) * u32::try_from(size.now()).unwrap();
            assert!(time <= hold_max, "{} messages of {milliseconds} ms are {time:?}", size.now());
            size.took(size.now(), time);
            size.grow();
        }
        assert_eq!(size.now(), 2, "one message of 2 s, and the attempt at one more");
    }

    #[test]
    fn d8_quick_units_and_single_ones_limit_nothing() {
        let mut size = BatchSize::new(500, None);
        size.took(500, Duration::from_millis(40));
        size.took(1, Duration::from_millis(2));
        assert_eq!(size.now(), 500);
    }

    #[test]
    fn d8_a_handler_that_takes_longer_than_the_budget_runs_alone() {
        let mut size = BatchSize::new(500, None);
        size.took(1, seconds(29));
        assert_eq!(size.now(), 1);
    }
}
