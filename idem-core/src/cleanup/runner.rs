//! Runs cleanup: cycles of bounded steps on a timer of its own, which no error ends.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cleanup::{Backlog, Cleaner, CleanupSettings, Expiring, Removal, Removed},
    config_error::ConfigError,
    error::{ErrorClass, StoreError},
    failpoint,
};

/// Steps in a row that may time out before the cycle counts as failed: enough to shrink from the largest to the smallest.
const TIMEOUTS_MAX: u32 = 8;

/// Cycles in a row that may fail before it is an alarm.
const FAILED_CYCLES_MAX: u32 = 10;

/// After this time a cycle that goes on writes down what it has removed: a process that is killed leaves no more out of the
/// trail, and no table grows by a line a step.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// How long a cleaner's transaction may last beyond its step, before the server or the cleaner ends it.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The waits between looks at the session that keeps others from removing: the first one, and the longest.
const LOOKS_AT_HOLDER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a stop waits for the step in hand: one that is dropped may have been committed, and nobody would know its rows.
const STOPS_WITHIN: Duration = Duration::from_secs(3);

/// How long a stop waits for its line of the trail, after a step that did not end: over another connection, which has to be made.
const NOTED_WITHIN: Duration = Duration::from_secs(4);

/// The rows that one cycle removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CleanupReport {
    /// How many rows of each kind, in the order of [`Expiring::ALL`].
    pub removed: Vec<(Expiring, u64)>,
    /// Tables in which more may be left, because the cap of a cycle was reached, or the cycle was stopped.
    pub unfinished: Vec<Expiring>,
    /// Whether another cleaner was at work, so that this one left the rest to it.
    pub elsewhere: bool,
    /// Whether these are rows of a cycle that goes on, or ended early.
    pub part: bool,
}

impl CleanupReport {
    /// All rows that were removed.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.removed.iter().map(|(_, rows)| rows).sum()
    }

    /// Its action in the audit trail: `cleanup` for a cycle that is over, which [`Cleaner::last`] answers, else `cleanup-part`.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        if self.part { "cleanup-part" } else { "cleanup" }
    }

    fn add(&mut self, kind: Expiring, rows: u64) {
        match self.removed.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, removed)) => *removed += rows,
            None => self.removed.push((kind, rows)),
        }
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
    /// Asks the cycle to end after the step in hand.
    stopping: CancellationToken,
    /// What was removed and is not written down yet, and since when at most.
    unnoted: CleanupReport,
    noted_at: Instant,
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
        Ok(Self {
            cleaner,
            settings,
            size: settings.rows_max,
            view: CleanupView::default(),
            stopping: CancellationToken::new(),
            unnoted: CleanupReport::default(),
            noted_at: Instant::now(),
            count: Box::new(|_| {}),
        })
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
    /// No error ends it: the next cycle tries again, and ten failed cycles in a row are an alarm. After a stop it ends the step
    /// in hand and writes down what it has removed, within 7 s.
    ///
    /// # Cancel safety
    /// Cancel safe: a step is done whole or not at all. What was removed in the last minute, and by the step in hand, is then
    /// in no line of the audit trail.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        if unless_stopped(self.stopping.clone(), self.run_cycles(), stop).await.is_none() {
            self.note_in_time().await;
        }
    }

    async fn run_cycles(&mut self) {
        // Any other answer is left to the first cycle.
        if let Ok(false) = self.cleaner.may_delete().await {
            return self.tell_who_cleans().await;
        }
        let (stopping, mut wait) = (self.stopping.clone(), self.settings.first_wait(fastrand::f64()));
        while stopping.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
            self.next_cycle().await;
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
             (cleanup_login, --cleanup-database-url), or run `idem cleanup` elsewhere"
        );
    }

    pub(super) async fn next_cycle(&mut self) {
        match self.cycle_if_due().await {
            Ok(Some(report)) if report.elsewhere => {
                tracing::info!(rows = report.rows(), "another cleaner is at work, and the rest was left to it");
            }
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
                self.end_cycle(true, true).await;
                Ok(None)
            }
            Ok(_) => {
                let mut report = CleanupReport::default();
                self.cycle_into(&mut report).await.map(|()| Some(report))
            }
            Err(error) => {
                self.end_cycle(false, false).await;
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
    /// As of [`run`](Self::run).
    pub async fn cycle(&mut self) -> Result<CleanupReport, StoreError> {
        self.cycle_until(std::future::pending()).await
    }

    /// The same, which ends early once `stop` is ready: after the step in hand, or within 7 s without its rows. The answer is
    /// then [a part](CleanupReport::part).
    ///
    /// # Errors
    /// The error that ended the cycle; rows that were removed before stay removed.
    ///
    /// # Cancel safety
    /// As of [`run`](Self::run).
    pub async fn cycle_until(&mut self, stop: impl Future<Output = ()>) -> Result<CleanupReport, StoreError> {
        self.stopping = CancellationToken::new();
        let mut report = CleanupReport::default();
        match unless_stopped(self.stopping.clone(), self.cycle_into(&mut report), stop).await {
            Some(done) => done.map(|()| report),
            None => {
                self.note_in_time().await;
                report.part = true;
                Ok(report)
            }
        }
    }

    async fn cycle_into(&mut self, report: &mut CleanupReport) -> Result<(), StoreError> {
        self.noted_at = Instant::now();
        let mut removed = self.remove_all(report).await;
        if removed.is_ok() && report.elsewhere {
            removed = self.await_cleaner().await;
        }
        report.part = removed.is_err() || report.elsewhere || self.stopping.is_cancelled();
        self.unnoted.unfinished.clone_from(&report.unfinished);
        self.note(report.part).await;
        // The rows wait as long, whoever keeps them from being removed.
        self.end_cycle(removed.is_ok(), removed.is_ok() || report.elsewhere).await;
        removed
    }

    /// Waits until the session that removes has ended its step. One that holds on for longer than a step may take removes nothing: a
    /// cycle that left the rest to it would seem to be done, and so would each cycle after it.
    async fn await_cleaner(&mut self) -> Result<(), StoreError> {
        let Some(holder) = self.cleaner.holder().await? else { return Ok(()) };
        let (stopping, patience) = (self.stopping.clone(), 2 * self.settings.step_timeout + ENDS_WITHIN);
        let (begun, (mut pace, longest)) = (Instant::now(), LOOKS_AT_HOLDER);
        while begun.elapsed() < patience {
            if stopping.run_until_cancelled(tokio::time::sleep(pace)).await.is_none()
                || self.cleaner.holder().await?.as_ref() != Some(&holder)
            {
                return Ok(());
            }
            pace = (2 * pace).min(longest);
        }
        let text = format!("{holder} holds the lock of cleanup for more than {patience:?} and removes nothing: end it");
        Err(StoreError::failed("removing expired rows", ErrorClass::Transient, text))
    }

    /// Writes down what was removed since the last line, if anything or if a cycle is over.
    async fn note(&mut self, part: bool) {
        self.noted_at = Instant::now();
        // Taken before it is written, so that a line that is given up half-way is not written again.
        let mut report = mem::take(&mut self.unnoted);
        report.part = part;
        if part && report.rows() == 0 {
            return;
        }
        if let Err(error) = self.cleaner.note(&report).await {
            // The rows are gone all the same, so this is no failure of the cycle. The next line has them.
            self.unnoted = report;
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(error, "cleanup could not write down that it ran");
        }
    }

    /// The same after a stop that the step in hand did not obey.
    async fn note_in_time(&mut self) {
        if timeout(NOTED_WITHIN, self.note(true)).await.is_err() {
            tracing::warn!("cleanup could not write down in time what it removed before the stop");
        }
    }

    /// Looks how far behind cleanup is, and lets the connection go.
    async fn end_cycle(&mut self, succeeded: bool, looks: bool) {
        let backlog = if looks && !self.stopping.is_cancelled() { self.cleaner.backlog().await.ok() } else { None };
        self.cleaner.rest().await;
        let mut state = self.view.lock();
        state.failed_cycles = if succeeded { 0 } else { state.failed_cycles.saturating_add(1) };
        state.backlog = backlog.or(state.backlog);
    }

    async fn remove_all(&mut self, report: &mut CleanupReport) -> Result<(), StoreError> {
        for kind in Expiring::ALL {
            let is_elsewhere = self.remove(kind, report).await?;
            if is_elsewhere {
                report.elsewhere = true;
                break;
            }
        }
        Ok(())
    }

    /// Removes rows of one kind until nothing is left or the cap is reached. Answers whether another cleaner is at it.
    async fn remove(&mut self, kind: Expiring, report: &mut CleanupReport) -> Result<bool, StoreError> {
        let kept = self.settings.kept(kind).unwrap_or_default();
        let mut timeouts = 0;
        for _ in 0..self.settings.steps_max {
            if self.stopping.is_cancelled() || failpoint!(CLEAN_CHUNK).is_err() {
                break;
            }
            let size = self.size;
            let removal = Removal { kind, kept, rows_max: size, timeout: self.settings.step_timeout };
            match self.cleaner.remove(&removal).await {
                Ok(Removed::Rows(rows)) => {
                    timeouts = 0;
                    report.add(kind, rows);
                    self.unnoted.add(kind, rows);
                    self.view.lock().removed += rows;
                    (self.count)(rows);
                    self.size = self.settings.next_size(size, true);
                    if self.noted_at.elapsed() >= NOTED_EVERY {
                        self.note(true).await;
                    }
                    if rows < u64::from(size) {
                        return Ok(false);
                    }
                }
                Ok(Removed::Elsewhere) => {
                    report.add(kind, 0);
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
        report.add(kind, 0);
        report.unfinished.push(kind);
        Ok(false)
    }
}

/// Does this; once `stop` is ready it is asked to end, and has a moment for that. `None` where it did not.
async fn unless_stopped<T>(
    stopping: CancellationToken,
    work: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
) -> Option<T> {
    tokio::pin!(work);
    tokio::select! {
        // No further step begins once it is ready.
        biased;
        () = stop => stopping.cancel(),
        done = &mut work => return Some(done),
    }
    timeout(STOPS_WITHIN, work).await.ok()
}
