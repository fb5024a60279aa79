//! Waits until a replay is over, and shows how far it is.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    commands::progress::{Progress, count, time},
    exit::Failure,
    report::Report,
};

/// Between two looks, at least. One takes no more than a tenth of the time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The report of a replay that is not waited for.
pub(crate) fn asked(asked: i64) -> Report {
    Report::said(format!(
        "{asked} asked for. Running workers take them within seconds; `idem dead-letters list` shows what became of them, and --wait \
         waits for it."
    ))
}

/// Asks how many of these dead letters wait or run, and how many have failed again, until all are over. A command that is interrupted
/// takes nothing back.
pub(crate) async fn until_over(
    dead_letters: usize,
    mut look: impl AsyncFnMut() -> Result<[i64; 2], Failure>,
) -> Result<Report, Failure> {
    let all = u64::try_from(dead_letters).unwrap_or(u64::MAX);
    let mut progress = Progress::new();
    loop {
        let asked_at = Instant::now();
        let [left, failed] = look().await?.map(|number| u64::try_from(number).unwrap_or(0));
        progress.show_done(all.saturating_sub(left), all, "waiting for a running worker of the consumer");
        if left == 0 {
            progress.end();
            let again = if failed == 0 {
                String::new()
            } else {
                format!("; {} failed again: idem dead-letters list --open", count(failed))
            };
            return Ok(Report::said(format!("{} replayed in {}{again}", count(all), time(progress.taken()))));
        }
        tokio::time::sleep(LOOK_EVERY.max(asked_at.elapsed() * 9)).await;
    }
}
