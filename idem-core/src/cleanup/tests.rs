use std::{collections::VecDeque, sync::Arc, sync::Mutex};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{cleanup::runner::Cleanup, error::ErrorClass};

#[test]
fn steps_shrink_after_a_failure_and_grow_back() {
    let settings = CleanupSettings::default();
    let shrunk = (0..20).fold(10_000, |size, _| settings.next_size(size, false));
    assert_eq!(shrunk, 100);
    assert_eq!((0..20).fold(shrunk, |size, _| settings.next_size(size, true)), 10_000);
    let small = CleanupSettings { rows_max: 30, ..settings };
    assert_eq!(small.next_size(30, false), 30, "a smaller limit is the smallest step");
}

#[test]
fn cycles_are_spread_by_a_quarter_and_the_first_comes_soon() {
    let settings = CleanupSettings::default();
    for (spread, seconds) in [(0.0, 3150), (1.0, 4050)] {
        assert_eq!(settings.wait(spread), Duration::from_secs(seconds));
    }
    assert_eq!((settings.first_wait(0.0), settings.first_wait(1.0)), (Duration::ZERO, Duration::from_secs(360)));
}

/// J13: each limit is refused by name.
#[test]
fn j13_settings_out_of_bounds_are_refused_with_field_value_and_rule() {
    type Change = fn(&mut CleanupSettings);
    let wrong: [(&str, Change); 8] = [
        ("cleanup_every is 0s", |s| s.every = Duration::ZERO),
        ("rows_max is 0", |s| s.rows_max = 0),
        ("steps_max is 2000000", |s| s.steps_max = 2_000_000),
        ("step_timeout is 1ms", |s| s.step_timeout = Duration::from_millis(1)),
        ("units_kept is 1s", |s| s.units_kept = SECOND),
        ("attempts_kept is 1s", |s| s.attempts_kept = SECOND),
        ("dead_letters_kept is 1s", |s| s.dead_letters_kept = SECOND),
        ("audit_kept is 1s", |s| s.audit_kept = SECOND),
    ];
    for (text, change) in wrong {
        let mut settings = CleanupSettings::default();
        change(&mut settings);
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// A store with this many expired records, whose first steps fail as listed.
#[derive(Default)]
struct Scripted {
    expired: u64,
    failures: VecDeque<Option<ErrorClass>>,
    sizes: Arc<Mutex<Vec<u32>>>,
    last: Option<LastCleanup>,
    noted: Arc<Mutex<Vec<String>>>,
    /// How long a step takes.
    takes: Duration,
    elsewhere: bool,
    /// How often the session that removes stays the same.
    held: u32,
    /// Whether its role may not delete.
    is_worker: bool,
}

fn failed(class: ErrorClass) -> StoreError {
    StoreError::Failed { doing: "cleaning up", class, source: "scripted".into() }
}

#[async_trait]
impl Cleaner for Scripted {
    async fn may_delete(&mut self) -> Result<bool, StoreError> {
        Ok(!self.is_worker)
    }

    async fn preview(&mut self, _: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        Ok(vec![(Expiring::Records, self.expired)])
    }

    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        if removal.kind != Expiring::Records {
            return Ok(Removed::Rows(0));
        }
        self.sizes.lock().unwrap().push(removal.rows_max);
        if self.elsewhere {
            return Ok(Removed::Elsewhere);
        }
        if let Some(Some(class)) = self.failures.pop_front() {
            return Err(failed(class));
        }
        tokio::time::sleep(self.takes).await;
        let rows = self.expired.min(u64::from(removal.rows_max));
        self.expired -= rows;
        Ok(Removed::Rows(rows))
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        Ok(Backlog { lag: Duration::from_secs(self.expired) })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        Ok(self.last.clone())
    }

    async fn holder(&mut self) -> Result<Option<String>, StoreError> {
        self.held = self.held.saturating_sub(1);
        Ok(Some(format!("process 7, step {}", u32::from(self.held == 0))))
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        self.noted.lock().unwrap().push(format!("{}: {report}", report.action()));
        Ok(())
    }
}

fn cleanup(cleaner: Scripted, rows_max: u32, steps_max: u32) -> Cleanup {
    Cleanup::new(Box::new(cleaner), CleanupSettings { rows_max, steps_max, ..CleanupSettings::default() }).unwrap()
}

/// C4: bounded steps, a cap a cycle, and the rest is left for the next.
#[tokio::test]
async fn c4_a_cycle_is_bounded_steps_up_to_a_cap() {
    let cleaner = Scripted { expired: 2_500, ..Scripted::default() };
    let sizes = Arc::clone(&cleaner.sizes);
    let mut cleanup = cleanup(cleaner, 1_000, 2);
    let report = cleanup.cycle().await.unwrap();
    assert_eq!((report.rows(), &*report.unfinished), (2_000, &[Expiring::Records][..]));
    assert_eq!(report.to_string(), "2000 processed_messages; more is left");
    assert_eq!(cleanup.view().state().backlog.unwrap().lag, Duration::from_secs(500));
    let report = cleanup.cycle().await.unwrap();
    assert_eq!((report.rows(), report.unfinished.len()), (500, 0));
    assert_eq!(*sizes.lock().unwrap(), [1_000; 3]);
    assert_eq!(cleanup.view().state().removed, 2_500);
}

/// C4: a step that times out is tried again at half the size, within the same cycle.
#[tokio::test]
async fn c4_steps_that_time_out_shrink_and_grow_back() {
    let failures = [Some(ErrorClass::Transient), Some(ErrorClass::Transient), None, None].into();
    let cleaner = Scripted { expired: 1_200, failures, ..Scripted::default() };
    let sizes = Arc::clone(&cleaner.sizes);
    let report = cleanup(cleaner, 1_000, 10).cycle().await.unwrap();
    assert_eq!(report.rows(), 1_200);
    assert_eq!(*sizes.lock().unwrap(), [1_000, 500, 250, 500, 1_000]);
}

/// A step that always times out ends the cycle, and not the runner.
#[tokio::test]
async fn c4_a_cycle_gives_up_after_a_bounded_number_of_time_outs() {
    let failures = vec![Some(ErrorClass::Transient); 100].into();
    let cleaner = Scripted { expired: 1, failures, ..Scripted::default() };
    let sizes = Arc::clone(&cleaner.sizes);
    assert!(cleanup(cleaner, 10_000, 1_000).cycle().await.is_err());
    assert_eq!(*sizes.lock().unwrap(), [10_000, 5_000, 2_500, 1_250, 625, 312, 156, 100]);
}

#[tokio::test]
async fn cleanup_survives_every_error_and_ten_failed_cycles_are_an_alarm() {
    let failures = vec![Some(ErrorClass::Fatal); 10].into();
    let cleaner = Scripted { expired: 5, failures, ..Scripted::default() };
    let settings = CleanupSettings { every: SECOND, ..CleanupSettings::default() };
    let mut cleanup = Cleanup::new(Box::new(cleaner), settings).unwrap();
    let view = cleanup.view();
    for failed in 1..=10 {
        assert!(!view.state().is_alarming());
        cleanup.next_cycle().await;
        assert_eq!(view.state().failed_cycles, failed);
    }
    assert!(view.state().is_alarming());
    let stop = CancellationToken::new();
    let running = tokio::spawn(cleanup.run(stop.clone().cancelled_owned()));
    let done = async {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        while view.state().removed < 5 || view.state().is_alarming() {
            pace.tick().await;
        }
    };
    tokio::time::timeout(60 * SECOND, done).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_cycle_that_another_has_just_done_is_left_out() {
    let last = |seconds| Some(LastCleanup { who: "other".to_owned(), ago: Duration::from_secs(seconds) });
    for (ago, removed) in [(1_799, None), (1_800, Some(5))] {
        let cleaner = Scripted { expired: 5, last: last(ago), ..Scripted::default() };
        let report = cleanup(cleaner, 1_000, 10).cycle_if_due().await.unwrap();
        assert_eq!(report.map(|report| report.rows()), removed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cycle_ends_where_another_cleaner_is_at_work_and_is_not_written_down() {
    let cleaner = Scripted { expired: 5, elsewhere: true, held: 2, ..Scripted::default() };
    let (sizes, noted) = (Arc::clone(&cleaner.sizes), Arc::clone(&cleaner.noted));
    let report = cleanup(cleaner, 1_000, 10).cycle().await.unwrap();
    assert!(report.elsewhere && report.rows() == 0);
    assert_eq!((sizes.lock().unwrap().len(), noted.lock().unwrap().len()), (1, 0));
}

/// C16: another session holds the lock of cleanup and removes nothing. A cycle is not done by that, and the lag is measured.
#[tokio::test(start_paused = true)]
async fn c16_a_session_that_holds_the_lock_and_removes_nothing_fails_the_cycle() {
    for (held, is_cleaner) in [(3, true), (10, true), (1_000, false)] {
        let cleaner = Scripted { expired: 5, elsewhere: true, held, ..Scripted::default() };
        let mut cleanup = cleanup(cleaner, 1_000, 10);
        let ended = cleanup.cycle().await;
        assert_eq!(ended.is_ok(), is_cleaner, "{held}: {ended:?}");
        let state = cleanup.view().state();
        assert_eq!((state.failed_cycles, state.backlog.unwrap().lag), (u32::from(!is_cleaner), Duration::from_secs(5)));
        let Err(error) = ended else { continue };
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains("process 7") && text.contains("holds the lock of cleanup for more than 15s"), "{text}");
    }
}

/// C15: of a long cycle no more than a minute's rows are ever without a line, and its lines add up to what it removed, also
/// where it fails.
#[tokio::test(start_paused = true)]
async fn c15_a_long_cycle_is_written_down_every_minute() {
    let cleaner = Scripted { expired: 7, takes: Duration::from_secs(25), ..Scripted::default() };
    let noted = Arc::clone(&cleaner.noted);
    let report = cleanup(cleaner, 1, 10).cycle().await.unwrap();
    assert_eq!((report.to_string().as_str(), report.part), ("7 processed_messages", false));
    let part = "cleanup-part: 3 processed_messages";
    assert_eq!(*noted.lock().unwrap(), [part, part, "cleanup: 1 processed_messages"]);
    let failures = [None, None, Some(ErrorClass::Fatal)].into();
    let cleaner = Scripted { expired: 7, failures, ..Scripted::default() };
    let noted = Arc::clone(&cleaner.noted);
    cleanup(cleaner, 1, 10).cycle().await.unwrap_err();
    assert_eq!(*noted.lock().unwrap(), ["cleanup-part: 2 processed_messages"]);
}

/// C15: a step that does not end in time after a stop is dropped, and what was removed before it is written down.
#[tokio::test(start_paused = true)]
async fn c15_a_stop_waits_a_moment_for_the_step_in_hand() {
    for (takes, lines) in [(4, "2 processed_messages; more is left"), (7, "1 processed_messages")] {
        let takes = Duration::from_secs(takes);
        let cleaner = Scripted { expired: 7, takes, ..Scripted::default() };
        let noted = Arc::clone(&cleaner.noted);
        let (begun, mut cleanup) = (tokio::time::Instant::now(), cleanup(cleaner, 1, 10));
        let report = cleanup.cycle_until(tokio::time::sleep(takes + SECOND)).await.unwrap();
        assert!(report.part && begun.elapsed() < takes + 8 * SECOND, "{report:?}");
        assert_eq!(*noted.lock().unwrap(), [format!("cleanup-part: {lines}")]);
        assert_eq!(cleanup.cycle().await.unwrap().rows() + report.rows(), 7, "the next one is not stopped");
    }
}

/// S8: where the role may not delete, nothing is tried and the task ends by itself.
#[tokio::test]
async fn s8_cleanup_ends_where_the_role_may_not_delete() {
    let cleaner = Scripted { expired: 5, is_worker: true, ..Scripted::default() };
    let sizes = Arc::clone(&cleaner.sizes);
    let cleanup = cleanup(cleaner, 1_000, 10);
    tokio::time::timeout(60 * SECOND, cleanup.run(std::future::pending())).await.unwrap();
    assert!(sizes.lock().unwrap().is_empty());
}
