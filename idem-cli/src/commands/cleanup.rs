//! `idem cleanup`: one cycle, for cron.

use std::{sync::Arc, thread};

use idem_core::{
    Store as _,
    cleanup::{Cleaner, Cleanup, CleanupReport, CleanupSettings, Expiring},
};
use idem_sql::cleanup_script;
use tokio::{runtime, sync::oneshot};

use crate::{
    command_line::{Clean, Target},
    commands::progress::{self, count},
    database,
    exit::Failure,
    report::{Report, Row, Table},
};

pub(crate) async fn run(target: &Target, clean: &Clean) -> Result<Report, Failure> {
    let settings = settings(clean)?;
    if clean.print_sql {
        return Ok(Report::script(cleanup_script(&settings, &target.schema)));
    }
    // Each store has one connection for cleanup, and nothing is connected before it is asked for.
    let cleaners = [Arc::new(database::store(target)?).cleaner(), Arc::new(database::store(target)?).cleaner()];
    on(cleaners, settings, clean.dry_run).await
}

/// One cycle of the first cleaner, or what it would remove. While it takes long it shows how far it is: the second cleaner counts once what
/// is left.
pub(crate) async fn on(
    [cleaner, mut counter]: [Box<dyn Cleaner>; 2],
    settings: CleanupSettings,
    dry_run: bool,
) -> Result<Report, Failure> {
    if dry_run {
        return Ok(previewed(&counter.preview(&settings).await?));
    }
    let mut cleanup = Cleanup::new(cleaner, settings).map_err(refused)?;
    let (view, mut all) = (cleanup.view(), None);
    let cycle = progress::beside(cleanup.cycle_until(stop()), async |progress| {
        if all.is_none() {
            let counted = counter.preview(&settings).await.unwrap_or_default();
            all = Some(view.state().removed + counted.iter().map(|(_, rows)| rows).sum::<u64>());
        }
        match (view.state().removed, all.unwrap_or_default()) {
            (done, all) if all > 0 => progress.show_done(done, all, "the first step is under way"),
            (done, _) => progress.show(&format!("{} rows removed", count(done))),
        }
    });
    Ok(cleaned(&cycle.await?))
}

/// Ready once a signal asks the process to end. A second signal ends it, and so does the first one after the cycle: a report that nothing
/// reads, or a log, must not keep the process.
pub(crate) async fn stop() {
    let (ask, is_asked) = oneshot::channel();
    let listen = move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let first = signal().await;
            let last = if ask.send(()).is_ok() { signal().await } else { first };
            // As a shell reports a process that a signal has ended.
            std::process::exit(128 + last);
        });
    };
    // Without a thread, a signal ends the process as it does by default.
    if thread::Builder::new().name("signals".to_owned()).spawn(listen).is_err() || is_asked.await.is_err() {
        std::future::pending().await
    }
}

/// The number of the next signal that asks the process to end.
async fn signal() -> i32 {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            return tokio::select! {
                _ = terminated.recv() => SignalKind::terminate().as_raw_value(),
                _ = tokio::signal::ctrl_c() => SignalKind::interrupt().as_raw_value(),
            };
        }
    }
    let _ = tokio::signal::ctrl_c().await;
    2
}

pub(crate) fn settings(clean: &Clean) -> Result<CleanupSettings, Failure> {
    let settings = CleanupSettings::default()
        .rows_max(clean.rows_max)
        .attempts_kept(clean.attempts_kept)
        .dead_letters_kept(clean.dead_letters_kept)
        .audit_kept(clean.audit_kept);
    settings.check().map_err(refused)?;
    Ok(settings)
}

fn refused(error: idem_core::ConfigError) -> Failure {
    Failure::refused(format!("--{} is {}, but {}", error.field.replace('_', "-"), error.value, error.rule))
}

fn previewed(counted: &[(Expiring, u64)]) -> Report {
    Report::new().table("rows", rows(counted)).line("Nothing was removed.")
}

fn cleaned(report: &CleanupReport) -> Report {
    let answer = Report::new().table("rows", rows(&report.removed));
    match report {
        CleanupReport { elsewhere: true, .. } => {
            answer.line("Another cleaner is at work, and the rest was left to it.")
        }
        CleanupReport { part: true, .. } => answer.line("It was stopped: run it again for the rest."),
        CleanupReport { unfinished, .. } if !unfinished.is_empty() => answer.line("More is left: run it again."),
        CleanupReport { .. } => answer,
    }
}

fn rows(counted: &[(Expiring, u64)]) -> Table {
    counted.iter().map(|(kind, rows)| Row::new([("table", kind.table().into()), ("rows", (*rows).into())])).collect()
}
