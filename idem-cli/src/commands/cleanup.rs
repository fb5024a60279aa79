//! `idem cleanup`: one cycle, for cron.

use idem_core::{Cleaner as _, Cleanup, CleanupSettings};
use idem_schema::CleanupScript;

use crate::{
    command_line::{Clean, Target},
    database,
    exit::Failure,
    report::{Report, Row},
};

pub(crate) async fn run(target: &Target, clean: &Clean) -> Result<Report, Failure> {
    let settings = CleanupSettings {
        rows_max: clean.rows_max,
        attempts_kept: clean.attempts_kept,
        dead_letters_kept: clean.dead_letters_kept,
        audit_kept: clean.audit_kept,
        ..CleanupSettings::default()
    };
    let refused = |error: idem_core::ConfigError| {
        Failure::refused(format!("--{} is {}, but {}", error.field.replace('_', "-"), error.value, error.rule))
    };
    if clean.print_sql {
        settings.check().map_err(refused)?;
        return Ok(Report::script(script(&settings).render(&target.schema)));
    }
    let mut cleanup = Cleanup::new(database::store(target)?.cleaner(), settings).map_err(refused)?;
    if clean.dry_run {
        let preview = cleanup.cleaner().preview(&settings).await?;
        cleanup.cleaner().rest().await;
        return Ok(Report::new().table("rows", rows(&preview)).line("Nothing was removed."));
    }
    let report = cleanup.cycle().await?;
    let answer = Report::new().table("rows", rows(&report.removed));
    Ok(match (report.elsewhere, report.unfinished.is_empty()) {
        (true, _) => answer.line("Another cleaner is at work, and the rest was left to it."),
        (false, false) => answer.line("More is left: run it again."),
        (false, true) => answer,
    })
}

fn rows(counted: &[(idem_core::Expiring, u64)]) -> crate::report::Table {
    counted.iter().map(|(kind, rows)| Row::new([("table", kind.table().into()), ("rows", (*rows).into())])).collect()
}

fn script(settings: &CleanupSettings) -> CleanupScript {
    CleanupScript {
        rows_max: settings.rows_max,
        units_kept: settings.units_kept,
        attempts_kept: settings.attempts_kept,
        dead_letters_kept: settings.dead_letters_kept,
        audit_kept: settings.audit_kept,
    }
}
