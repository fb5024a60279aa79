//! How far a command is that takes long: a bar on a terminal, lines elsewhere. Both go to standard error, so that a script reads reports alone.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::pin,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::commands::dead_letters::thousands;

/// A command that ends sooner says nothing of its progress.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Between two changes of the bar.
const CHANGES_EVERY: Duration = Duration::from_secs(1);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The cells of the bar.
const CELLS: u64 = 30;

/// What is shown of one command.
pub(crate) struct Progress {
    begun: Instant,
    line_at: Instant,
    is_terminal: bool,
    is_shown: bool,
}

impl Progress {
    /// Begins now.
    pub(crate) fn new() -> Self {
        let begun = Instant::now();
        Self { begun, line_at: begun, is_terminal: io::stderr().is_terminal(), is_shown: false }
    }

    /// The time since it began.
    pub(crate) fn taken(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Shows this in place of what it showed before. Without a terminal it is a line, at most one in 10 seconds.
    pub(crate) fn show(&mut self, text: &str) {
        // A terminal that is gone shows nothing, and the command goes on.
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        } else if Instant::now() >= self.line_at {
            let _ = writeln!(io::stderr(), "{text}");
            self.line_at = Instant::now() + LINE_EVERY;
        }
        self.is_shown = true;
    }

    /// Shows how many of all are done, how fast, and about how long the others take; `idle` where none is done.
    pub(crate) fn show_done(&mut self, done: u64, all: u64, idle: &str) {
        let text = of_all(done, all, self.taken(), idle);
        self.show(&if self.is_terminal { format!("[{}] {text}", bar(done, all)) } else { text });
    }

    /// Leaves what was shown last.
    pub(crate) fn end(&self) {
        if self.is_terminal && self.is_shown {
            let _ = writeln!(io::stderr());
        }
    }
}

/// Waits for this. Beside it, from the third second on and once a second, `show` shows how far it is.
pub(crate) async fn beside<T>(work: impl Future<Output = T>, mut show: impl AsyncFnMut(&mut Progress)) -> T {
    let (mut work, mut progress) = (pin!(work), Progress::new());
    let showing = async {
        sleep(SHOWN_AFTER).await;
        loop {
            show(&mut progress).await;
            sleep(CHANGES_EVERY).await;
        }
    };
    let done = tokio::select! {
        biased;
        done = &mut work => done,
        () = showing => unreachable!("it has no end"),
    };
    progress.end();
    done
}

/// The same for a statement that does not say how far it is: what is done, and for how long.
pub(crate) async fn beside_one<T>(what: &str, work: impl Future<Output = T>) -> T {
    beside(work, async |progress| {
        let text = format!(
            "{what}, for {} by now; if it waits for another session, `idem doctor` names it",
            time(progress.taken())
        );
        progress.show(&text);
    })
    .await
}

pub(crate) fn count(number: u64) -> String {
    thousands(i64::try_from(number).unwrap_or(i64::MAX))
}

fn bar(done: u64, all: u64) -> String {
    let full = usize::try_from(done.min(all) * CELLS / all.max(1)).unwrap_or(0);
    format!("{:-<width$}", "#".repeat(full), width = CELLS as usize)
}

fn of_all(done: u64, all: u64, taken: Duration, idle: &str) -> String {
    let of = format!("{} of {}", count(done), count(all));
    let rate = done as f64 / taken.as_secs_f64().max(0.001);
    if done >= all {
        of
    } else if done == 0 {
        format!("{of}, {idle}")
    } else {
        let left = Duration::from_secs_f64((all - done) as f64 / rate);
        format!("{of}, {} a second, about {} left", count(rate.round() as u64), time(left))
    }
}

pub(crate) fn time(time: Duration) -> String {
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
        let of_all = |done, all, seconds| of_all(done, all, Duration::from_secs(seconds), "waiting");
        assert_eq!(of_all(0, 3, 1), "0 of 3, waiting");
        assert_eq!(of_all(25_000, 100_000, 50), "25,000 of 100,000, 500 a second, about 2 min 30 s left");
        assert_eq!(of_all(3, 3, 1), "3 of 3");
        assert_eq!(bar(1, 2), "###############---------------");
        assert_eq!([bar(0, 0).len(), bar(9, 7).len()], [30, 30]);
        assert_eq!([0, 59, 7_260].map(|seconds| time(Duration::from_secs(seconds))), ["1 s", "59 s", "2 h 1 min"]);
    }
}
