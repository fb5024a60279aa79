//! `idem cleanup`: one cycle, for cron.

use std::sync::Arc;

use idem_core::{Cleanup, CleanupReport, CleanupSettings, Store as _, store::Expiring};
use idem_schema::cleanup_script;

use crate::{
    command_line::{Clean, Target},
    database,
    exit::Failure,
    report::{Report, Row, Table},
};

pub(crate) async fn run(target: &Target, clean: &Clean) -> Result<Report, Failure> {
    let settings = settings(clean)?;
    if clean.print_sql {
        return Ok(Report::script(cleanup_script(&settings, &target.schema)));
    }
    let mut cleaner = Arc::new(database::store(target)?).cleaner();
    if clean.dry_run {
        return Ok(previewed(&cleaner.preview(&settings).await?));
    }
    let mut cleanup = Cleanup::new(cleaner, settings).map_err(refused)?;
    Ok(cleaned(&cleanup.cycle_until(stop()).await?))
}

/// Ready once a signal asks the process to end.
pub(crate) async fn stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
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

pub(crate) fn previewed(counted: &[(Expiring, u64)]) -> Report {
    Report::new().table("rows", rows(counted)).line("Nothing was removed.")
}

pub(crate) fn cleaned(report: &CleanupReport) -> Report {
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
