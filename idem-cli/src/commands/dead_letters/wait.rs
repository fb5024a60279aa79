//! Waits until a replay is over, and shows how far it is: a bar on a terminal, lines elsewhere.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use tokio::time::Instant;

use crate::{commands::dead_letters::thousands, exit::Failure, report::Report};

/// Between two looks, at least. One takes no more than a tenth of the time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The cells of the bar.
const CELLS: u64 = 30;

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
    let (begun, is_terminal) = (Instant::now(), io::stderr().is_terminal());
    let mut line_at = begun;
    loop {
        let asked_at = Instant::now();
        let [left, failed] = look().await?.map(|number| u64::try_from(number).unwrap_or(0));
        let (done, taken) = (all.saturating_sub(left), begun.elapsed());
        if is_terminal {
            // A terminal that is gone shows nothing, and the replay goes on.
            let _ = write!(io::stderr(), "\r\x1b[K[{}] {}", bar(done, all), progress(done, all, taken));
        } else if left == 0 || asked_at >= line_at {
            let _ = writeln!(io::stderr(), "{}", progress(done, all, taken));
            line_at = asked_at + LINE_EVERY;
        }
        if left == 0 {
            if is_terminal {
                let _ = writeln!(io::stderr());
            }
            let again = if failed == 0 {
                String::new()
            } else {
                format!("; {} failed again: idem dead-letters list --open", count(failed))
            };
            return Ok(Report::said(format!("{} replayed in {}{again}", count(all), time(taken))));
        }
        tokio::time::sleep(LOOK_EVERY.max(asked_at.elapsed() * 9)).await;
    }
}

fn count(number: u64) -> String {
    thousands(i64::try_from(number).unwrap_or(i64::MAX))
}

fn bar(done: u64, all: u64) -> String {
    let full = usize::try_from(done * CELLS / all.max(1)).unwrap_or(0);
    format!("{:-<width$}", "#".repeat(full), width = CELLS as usize)
}

fn progress(done: u64, all: u64, taken: Duration) -> String {
    let of = format!("{} of {}", count(done), count(all));
    let rate = done as f64 / taken.as_secs_f64().max(0.001);
    if done == all {
        of
    } else if done == 0 {
        format!("{of}, waiting for a running worker of the consumer")
    } else {
        let left = Duration::from_secs_f64((all - done) as f64 / rate);
        format!("{of}, {} a second, about {} left", count(rate.round() as u64), time(left))
    }
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{} s", seconds.max(1)),
        seconds @ 60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_far_how_fast_and_how_long() {
        let after = Duration::from_secs;
        assert_eq!(progress(0, 3, after(1)), "0 of 3, waiting for a running worker of the consumer");
        assert_eq!(progress(25_000, 100_000, after(50)), "25,000 of 100,000, 500 a second, about 2 min 30 s left");
        assert_eq!(progress(3, 3, after(1)), "3 of 3");
        assert_eq!(bar(1, 2), "###############---------------");
        assert_eq!(bar(0, 0).len(), bar(7, 7).len());
        assert_eq!([time(after(0)), time(after(59)), time(after(7_260))], ["1 s", "59 s", "2 h 1 min"]);
    }
}
