//! When expired records are removed, and in steps of what size.

use std::time::Duration;

/// One step of cleanup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupStep {
    /// How many rows of each kind are removed at most.
    pub rows_max: u32,
    /// How long rows of units that committed are kept; they serve only the seal.
    pub units_kept: Duration,
    /// How long attempts of failed messages and finished dead letters are kept after their last change.
    pub failures_kept: Duration,
}

/// What a step removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Expired records.
    pub records: u64,
    /// Rows of units, attempts and dead letters.
    pub others: u64,
}

/// When and how cleanup runs inside a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupSchedule {
    /// The time between two cycles, spread by a quarter so that workers do not start together. Defaults to an hour.
    pub every: Duration,
    /// Rows a step. Defaults to 10,000; a step that fails halves it, one that goes well lets it grow back.
    pub rows_max: u32,
    /// Steps a cycle. Defaults to 1,000.
    pub steps_max: u32,
    /// Defaults to one hour.
    pub units_kept: Duration,
    /// Defaults to 30 days.
    pub failures_kept: Duration,
}

impl Default for CleanupSchedule {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3600),
            rows_max: 10_000,
            steps_max: 1_000,
            units_kept: Duration::from_secs(3600),
            failures_kept: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

impl CleanupSchedule {
    /// The wait before the next cycle, for `spread` in `0.0..1.0`.
    #[must_use]
    pub fn wait(&self, spread: f64) -> Duration {
        self.every.mul_f64(0.875 + spread.clamp(0.0, 1.0) / 4.0)
    }

    pub(crate) fn step(&self, rows_max: u32) -> CleanupStep {
        CleanupStep { rows_max, units_kept: self.units_kept, failures_kept: self.failures_kept }
    }

    /// The size of the step after one that went well or failed.
    #[must_use]
    pub fn next_size(&self, size: u32, went_well: bool) -> u32 {
        if went_well { size.saturating_mul(2).min(self.rows_max) } else { (size / 2).max(100.min(self.rows_max)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_shrink_after_a_failure_and_grow_back() {
        let schedule = CleanupSchedule::default();
        let shrunk = (0..20).fold(10_000, |size, _| schedule.next_size(size, false));
        assert_eq!(shrunk, 100);
        assert_eq!((0..20).fold(shrunk, |size, _| schedule.next_size(size, true)), 10_000);
    }

    #[test]
    fn cycles_are_spread_by_a_quarter() {
        let schedule = CleanupSchedule::default();
        assert_eq!(schedule.wait(0.0), Duration::from_secs(3150));
        assert_eq!(schedule.wait(1.0), Duration::from_secs(4050));
    }
}
