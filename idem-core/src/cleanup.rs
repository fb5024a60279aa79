//! When expired records are removed, and in steps of what size.

pub(crate) mod runner;

use std::{fmt, time::Duration};

use async_trait::async_trait;

pub use self::runner::{Cleanup, CleanupReport, CleanupState, CleanupView};

use crate::{config_error::ConfigError, error::StoreError, setters::setters};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The smallest step that time-outs shrink to.
const ROWS_MIN: u32 = 100;

/// Rows that have an end, in the order in which cleanup looks at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expiring {
    /// Records of keys, each until its own expiry.
    Records,
    /// Units of work that have committed; they serve only the seal.
    Units,
    /// Counts of failed attempts, one a message.
    Attempts,
    /// Dead letters, except those that await a replay.
    DeadLetters,
    /// The audit trail.
    Audit,
    /// Starts of workers that nothing names any more.
    Runs,
    /// Records that an operator forgot, until when that can be taken back.
    Forgotten,
    /// Answers past their own expiry; kind, status and reference stay. An answer whose record expires is removed with it.
    Answers,
}

impl Expiring {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Records,
        Self::Units,
        Self::Attempts,
        Self::DeadLetters,
        Self::Audit,
        Self::Runs,
        Self::Forgotten,
        Self::Answers,
    ];

    /// The table's name.
    #[must_use]
    pub const fn table(self) -> &'static str {
        match self {
            Self::Records => "processed_messages",
            Self::Units => "units",
            Self::Attempts => "message_attempts",
            Self::DeadLetters => "dead_letters",
            Self::Audit => "audit",
            Self::Runs => "worker_runs",
            Self::Forgotten => "forgotten",
            Self::Answers => "processed_results",
        }
    }
}

impl fmt::Display for Expiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.table())
    }
}

/// When [`Cleanup`] runs, in steps of what size, and how long rows without an expiry of their own are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanupSettings {
    /// The time between two cycles, spread by a quarter. Defaults to an hour; at least 1 s.
    pub every: Duration,
    /// Rows a step. Defaults to 10,000; a step that times out halves it, one that goes well lets it grow back.
    pub rows_max: u32,
    /// Steps of one table a cycle. Defaults to 10,000, with which an hourly cycle keeps up with 27,000 messages a second; the
    /// rest waits for the next cycle.
    pub steps_max: u32,
    /// How long one step may take. Defaults to 5 s; from 10 ms to 5 minutes.
    pub step_timeout: Duration,
    /// Defaults to 1 day; at least 1 minute.
    pub units_kept: Duration,
    /// After the last attempt. Defaults to 7 days; at least 1 day, because the count goes with the row.
    pub attempts_kept: Duration,
    /// After the last copy; records that were forgotten are kept as long. Defaults to 30 days; at least 1 day.
    pub dead_letters_kept: Duration,
    /// Defaults to 1 year; at least 1 day. Starts of workers are kept as long, and longer while anything names them. A
    /// database with roles may keep both for longer, so that a login for cleanup cannot remove its own traces: PostgreSQL
    /// 30 days.
    pub audit_kept: Duration,
}

impl Default for CleanupSettings {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3600),
            rows_max: 10_000,
            steps_max: 10_000,
            step_timeout: 5 * SECOND,
            units_kept: DAY,
            attempts_kept: 7 * DAY,
            dead_letters_kept: 30 * DAY,
            audit_kept: 365 * DAY,
        }
    }
}

impl CleanupSettings {
    setters! {
        /// Sets the time between two cycles.
        every: Duration,
        /// Sets the rows of a step.
        rows_max: u32,
        /// Sets the steps of one table a cycle.
        steps_max: u32,
        /// Sets how long one step may take.
        step_timeout: Duration,
        /// Sets how long rows of `units` are kept.
        units_kept: Duration,
        /// Sets how long counts of attempts are kept.
        attempts_kept: Duration,
        /// Sets how long dead letters are kept.
        dead_letters_kept: Duration,
        /// Sets how long the audit trail is kept.
        audit_kept: Duration,
    }

    /// How long rows of this kind are kept; `None` where each has its own expiry.
    #[must_use]
    pub const fn kept(&self, kind: Expiring) -> Option<Duration> {
        match kind {
            Expiring::Records | Expiring::Answers => None,
            Expiring::Units => Some(self.units_kept),
            Expiring::Attempts => Some(self.attempts_kept),
            Expiring::DeadLetters | Expiring::Forgotten => Some(self.dead_letters_kept),
            Expiring::Audit | Expiring::Runs => Some(self.audit_kept),
        }
    }

    /// Whether the settings are within their limits.
    ///
    /// # Errors
    /// [`ConfigError`] names field, value and rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        let spans = [
            ("cleanup_every", self.every, SECOND, "it must be at least 1 s"),
            ("units_kept", self.units_kept, 60 * SECOND, "it must be at least 1 minute"),
            ("attempts_kept", self.attempts_kept, DAY, "it must be at least 1 day"),
            ("dead_letters_kept", self.dead_letters_kept, DAY, "it must be at least 1 day"),
            ("audit_kept", self.audit_kept, DAY, "it must be at least 1 day"),
        ];
        for (field, value, min, rule) in spans {
            if value < min {
                return Err(ConfigError::span(field, value, rule));
            }
        }
        if !(Duration::from_millis(10)..=300 * SECOND).contains(&self.step_timeout) {
            return Err(ConfigError::span("step_timeout", self.step_timeout, "it must be from 10 ms to 5 minutes"));
        }
        for (field, value) in [("rows_max", self.rows_max), ("steps_max", self.steps_max)] {
            if !(1..=1_000_000).contains(&value) {
                return Err(ConfigError::new(field, value, "it must be from 1 to 1,000,000"));
            }
        }
        Ok(())
    }

    /// The size of the step after one that went well or timed out.
    fn next_size(&self, size: u32, succeeded: bool) -> u32 {
        if succeeded { size.saturating_mul(2).min(self.rows_max) } else { (size / 2).max(ROWS_MIN.min(self.rows_max)) }
    }

    /// The wait before the next cycle, for `spread` in `0.0..1.0`.
    fn wait(&self, spread: f64) -> Duration {
        self.every.mul_f64(0.875 + spread.clamp(0.0, 1.0) / 4.0)
    }

    /// The wait before the first cycle: short, so that workers that are started anew every day clean too, and spread,
    /// because many are started at once.
    fn first_wait(&self, spread: f64) -> Duration {
        self.every.mul_f64(spread.clamp(0.0, 1.0) / 10.0)
    }
}

/// One step: which rows, how many at most, in what time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// Which rows.
    pub kind: Expiring,
    /// How long they are kept after their last change; of no interest to [`Expiring::Records`] and [`Expiring::Answers`].
    pub kept: Duration,
    /// How many are removed at most.
    pub rows_max: u32,
    /// How long the step may take.
    pub timeout: Duration,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// The number of rows removed.
    Rows(u64),
    /// Another cleaner is at work on the same tables, and nothing was done.
    Elsewhere,
}

/// How far behind cleanup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// For how long the oldest expired record has been waiting; zero where none waits.
    pub lag: Duration,
}

/// The last to finish a cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCleanup {
    /// Host and process.
    pub who: String,
    /// How long ago, by the database's clock.
    pub ago: Duration,
}

/// Removes the expired rows of a store, on a connection of its own and with a role that may delete:
/// [`Store::cleaner`](crate::Store::cleaner) makes one, and [`Cleanup`] runs it.
///
/// # Contract
/// 1. A step is one transaction. It removes only rows that have expired by the database's clock, at most
///    [`Removal::rows_max`] rows, and waits for none that another session has locked where others than an operator may lock it.
/// 2. Of all cleaners of one schema, one removes at a time; the others answer [`Removed::Elsewhere`] at once.
/// 3. Each call is bounded in time, may be repeated after any error, and connects anew where that is needed.
#[async_trait]
pub trait Cleaner: Send + 'static {
    /// Whether the role may delete records at all.
    async fn may_delete(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Takes one step. Fewer rows than were asked for mean that nothing is left that could be removed now.
    ///
    /// # Errors
    /// [`ErrorClass::Transient`](crate::ErrorClass::Transient) where the step timed out: a smaller one may go well.
    ///
    /// # Cancel safety
    /// Cancel safe: the step is done whole or not at all.
    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError>;

    /// How many rows of each kind a cycle with these settings would remove now, in the order of [`Expiring::ALL`]; without
    /// kinds that the store does not have.
    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError>;

    /// How far behind cleanup is.
    async fn backlog(&mut self) -> Result<Backlog, StoreError>;

    /// The last to finish a cycle; `None` if there was none.
    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError>;

    /// Writes down that a cycle is over, or [a part](CleanupReport::part) of one, under the report's
    /// [action](CleanupReport::action).
    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError>;

    /// The session that keeps others from removing now, for an operator, with what differs from one step of it to the next. `None`
    /// where there is none, or where the store cannot tell.
    ///
    /// # Errors
    /// Those of the store.
    async fn holder(&mut self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Gives the connection up until the next call.
    async fn rest(&mut self) {}
}

#[cfg(test)]
mod tests;
