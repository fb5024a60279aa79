//! Runs cleanup: cycles of bounded steps on a timer of its own, which no error ends.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Backlog, Cleaner, CleanupSettings, Expiring, Removal, Removed};
use crate::{
    error::{ConfigError, ErrorClass, StoreError},
    failpoint,
};

/// Steps in a row that may time out before the cycle counts as failed: enough to shrink from the largest to the smallest.
const TIMEOUTS_MAX: u32 = 8;

/// Cycles in a row that may fail before it is an alarm.
const FAILED_CYCLES_MAX: u32 = 10;

/// The rows that one cycle removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CleanupReport {
    /// How many rows of each kind, in the order of [`Expiring::ALL`].
    pub removed: Vec<(Expiring, u64)>,
    /// Tables in which more is left, because the cap of a cycle was reached.
    pub unfinished: Vec<Expiring>,
    /// Whether another cleaner was at work, so that this one left the rest to it.
    pub elsewhere: bool,
}

impl CleanupReport {
    /// All rows that were removed.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.removed.iter().map(|(_, rows)| rows).sum()
    }
}

impl fmt::Display for CleanupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let removed: Vec<String> =
            self.removed.iter().filter(|(_, rows)| *rows > 0).map(|(kind, rows)| format!("{rows} {kind}")).collect();
        f.write_str(if removed.is_empty() { "nothing" } else { "" })?;
        f.write_str(&removed.join(", "))?;
        if !self.unfinished.is_empty() { f.write_str("; more is left") } else { Ok(()) }
    }
}

/// Cleanup as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CleanupState {
    /// Rows removed since the start.
    pub removed: u64,
    /// Cycles that failed in a row; ten are an alarm.
    pub failed_cycles: u32,
    /// How far behind cleanup was at the end of its last cycle.
    pub backlog: Option<Backlog>,
}

impl CleanupState {
    /// Whether cleanup keeps failing, so that the tables grow.
    #[must_use]
    pub const fn is_alarming(&self) -> bool {
        self.failed_cycles >= FAILED_CYCLES_MAX
    }
}

/// A view of a running [`Cleanup`].
#[derive(Debug, Clone, Default)]
pub struct CleanupView(Arc<Mutex<CleanupState>>);

impl CleanupView {
    /// The state now.
    #[must_use]
    pub fn state(&self) -> CleanupState {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, CleanupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes expired rows, in steps that shrink when they time out.
///
/// Any number of them may run on one schema: one removes at a time, and a runner whose turn comes just after another's
/// cycle skips its own.
pub struct Cleanup {
    cleaner: Box<dyn Cleaner>,
    settings: CleanupSettings,
    /// Rows a step, as the last steps went.
    size: u32,
    view: CleanupView,
    /// Called with the rows of every step.
    count: Box<dyn Fn(u64) + Send + Sync>,
}

impl fmt::Debug for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cleanup").field("settings", &self.settings).field("view", &self.view).finish_non_exhaustive()
    }
}

impl Cleanup {
    /// A runner with these settings.
    ///
    /// # Errors
    /// [`ConfigError`] names field, value and rule.
    pub fn new(cleaner: Box<dyn Cleaner>, settings: CleanupSettings) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(Self { cleaner, settings, size: settings.rows_max, view: CleanupView::default(), count: Box::new(|_| {}) })
    }

    /// Also calls `count` with the number of rows that each step removed.
    pub(crate) fn counted_by(mut self, count: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.count = Box::new(count);
        self
    }

    /// A view that outlives the call of [`run`](Self::run).
    #[must_use]
    pub fn view(&self) -> CleanupView {
        self.view.clone()
    }

    /// Runs until `stop` is ready, unless it is known that this role may not delete: then it logs who cleans, and ends.
    /// No error ends it: the next cycle tries again, and ten failed cycles in a row are an alarm.
    ///
    /// # Cancel safety
    /// Cancel safe: a step is done whole or not at all.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        // A step that is dropped costs its connection, and the server rolls it back or has committed it: both are right,
        // so a stop need not wait for it.
        tokio::select! {
            () = self.run_cycles() => {}
            () = stop => {}
        }
    }

    async fn run_cycles(&mut self) {
        // Any other answer is left to the first cycle.
        if let Ok(false) = self.cleaner.may_delete().await {
            return self.tell_who_cleans().await;
        }
        let mut wait = self.settings.first_wait(fastrand::f64());
        loop {
            self.next_cycle(wait).await;
            wait = self.settings.wait(fastrand::f64());
        }
    }

    async fn tell_who_cleans(&mut self) {
        let last = match self.cleaner.last().await {
            Ok(Some(last)) => format!("{} was the last, {} minutes ago", last.who, last.ago.as_secs() / 60),
            Ok(None) => "no cleanup has finished yet".to_owned(),
            Err(_) => "the last one cannot be read".to_owned(),
        };
        self.cleaner.rest().await;
        tracing::info!(
            last,
            "cleanup is off in this worker, because its role may not delete: give it another login for that \
             (--cleanup-database-url, cleanup_with), or run `idem cleanup` elsewhere"
        );
    }

    pub(super) async fn next_cycle(&mut self, wait: Duration) {
        tokio::time::sleep(wait).await;
        match self.cycle_if_due().await {
            Ok(Some(report)) => tracing::info!(rows = report.rows(), removed = %report, "cleanup is done"),
            Ok(None) => tracing::debug!("another cleaner has done this cycle"),
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                let state = self.view.state();
                if state.failed_cycles.is_multiple_of(FAILED_CYCLES_MAX) {
                    let failures = state.failed_cycles;
                    tracing::error!(failures, error, "cleanup keeps failing; the tables grow");
                } else {
                    tracing::warn!(error, "cleanup failed; the next cycle tries again");
                }
            }
        }
    }

    /// A cycle, unless another cleaner has finished one less than half the time between two cycles ago.
    pub(super) async fn cycle_if_due(&mut self) -> Result<Option<CleanupReport>, StoreError> {
        let last = self.cleaner.last().await;
        let is_done = |ago| ago < self.settings.every / 2;
        match last {
            Ok(Some(last)) if is_done(last.ago) => {
                self.end_cycle(true).await;
                Ok(None)
            }
            Ok(_) => self.cycle().await.map(Some),
            Err(error) => {
                self.end_cycle(false).await;
                Err(error)
            }
        }
    }

    /// One cycle now, even where another cleaner has just finished one.
    ///
    /// # Errors
    /// The error that ended the cycle; rows that were removed before stay removed.
    ///
    /// # Cancel safety
    /// Cancel safe: a step is done whole or not at all.
    pub async fn cycle(&mut self) -> Result<CleanupReport, StoreError> {
        let report = self.remove_all().await;
        if let Ok(report) = &report
            && !report.elsewhere
            && let Err(error) = self.cleaner.note(report).await
        {
            // The rows are gone all the same, so this is no failure of the cycle.
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(error, "cleanup could not write down that it ran");
        }
        self.end_cycle(report.is_ok()).await;
        report
    }

    /// Looks how far behind cleanup is, and lets the connection go.
    async fn end_cycle(&mut self, succeeded: bool) {
        let backlog = if succeeded { self.cleaner.backlog().await.ok() } else { None };
        self.cleaner.rest().await;
        let mut state = self.view.lock();
        state.failed_cycles = if succeeded { 0 } else { state.failed_cycles.saturating_add(1) };
        state.backlog = backlog.or(state.backlog);
    }

    async fn remove_all(&mut self) -> Result<CleanupReport, StoreError> {
        let mut report = CleanupReport::default();
        for kind in Expiring::ALL {
            let is_elsewhere = self.remove(kind, &mut report).await?;
            if is_elsewhere {
                report.elsewhere = true;
                break;
            }
        }
        Ok(report)
    }

    /// Removes rows of one kind until nothing is left or the cap is reached. Answers whether another cleaner is at it.
    async fn remove(&mut self, kind: Expiring, report: &mut CleanupReport) -> Result<bool, StoreError> {
        let kept = self.settings.kept(kind).unwrap_or_default();
        let (mut removed, mut timeouts) = (0, 0);
        for _ in 0..self.settings.steps_max {
            if failpoint!(CLEAN_CHUNK).is_err() {
                break;
            }
            let size = self.size;
            let removal = Removal { kind, kept, rows_max: size, timeout: self.settings.step_timeout };
            match self.cleaner.remove(&removal).await {
                Ok(Removed::Rows(rows)) => {
                    timeouts = 0;
                    removed += rows;
                    self.view.lock().removed += rows;
                    (self.count)(rows);
                    self.size = self.settings.next_size(size, true);
                    if rows < u64::from(size) {
                        report.removed.push((kind, removed));
                        return Ok(false);
                    }
                }
                Ok(Removed::Elsewhere) => {
                    report.removed.push((kind, removed));
                    return Ok(true);
                }
                Err(error) => {
                    self.size = self.settings.next_size(size, false);
                    timeouts += 1;
                    let is_too_large = matches!(error.class(), ErrorClass::Transient | ErrorClass::RunUnitAgain);
                    if !is_too_large || timeouts >= TIMEOUTS_MAX {
                        return Err(error);
                    }
                }
            }
        }
        report.removed.push((kind, removed));
        report.unfinished.push(kind);
        Ok(false)
    }
}
