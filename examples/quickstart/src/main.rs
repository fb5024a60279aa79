//! Real purchases, counted exactly once on SQLite through redeliveries, second sends, altered amounts and crashes; and
//! beside it the same with two loops that people write by hand. `handler.rs` and `consume.rs` are the application; the
//! rest is the data, the mischief and the report.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that shows its results in a terminal")]

mod by_hand;
mod consume;
mod crash;
mod handler;
mod ledger;
mod purchases;
mod report;

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
};

use idem_core::{BoxError, ConsumerName, Store as _, dead_letter::StoredDeadLetter, store::Bookkeeping};
use idem_sqlx::SqliteStore;
use idem_testkit::memory::{Broker, Faults, Order, Queue, QueueOptions, Rate};
use tokio::{runtime, time::Instant};

use self::{
    by_hand::Recognise,
    crash::{Crashes, Moment},
    purchases::{SOLD, Sent},
    report::Run,
};

const USAGE: &str = "usage: quickstart [--keep]\n\n  --keep  leave the databases behind, and print where";

fn main() -> ExitCode {
    let keep = match keep(std::env::args().skip(1)) {
        Ok(keep) => keep,
        Err(unknown) => {
            eprintln!("quickstart: there is no argument {unknown}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let folder = std::env::temp_dir().join(format!("idem-quickstart-{}", process::id()));
    let result = fs::create_dir(&folder).map_err(BoxError::from).and_then(|()| run(&folder));
    if keep {
        println!("\nThe databases are in {}", folder.display());
    } else if let Err(error) = fs::remove_dir_all(&folder) {
        eprintln!("{} could not be removed: {error}", folder.display());
    }
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let causes = std::iter::successors(Some(&*error as &dyn std::error::Error), |error| error.source());
            eprintln!("{}", causes.map(ToString::to_string).collect::<Vec<_>>().join(": "));
            ExitCode::FAILURE
        }
    }
}

/// Whether the databases are kept.
///
/// # Errors
/// The first argument that is unknown.
fn keep(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    arguments.into_iter().try_fold(false, |_, argument| if argument == "--keep" { Ok(true) } else { Err(argument) })
}

/// Runs all three consumers; returns whether idem counted and set aside the right messages.
fn run(folder: &Path) -> Result<bool, BoxError> {
    let purchases = purchases::read()?;
    let sent = purchases::send(&purchases);
    let crashes = crashes(purchases.iter().map(|(key, _)| key.as_str()).collect());
    report::opening(&sent, crashes.len());

    let file = folder.join("idem.db");
    let show = |line: String| println!("{line}");
    let idem = compete("idem", &file, &sent, &crashes, consume::consume, show)?;
    let dead_letters = dead_letters(&file)?;
    let set_aside: u64 = dead_letters.iter().map(|letter| letter.copies).sum();
    let by_hand = |name, file: &str, recognise, show: &mut dyn FnMut(String)| {
        let consume = |queue, file, crashes| by_hand::consume(queue, file, crashes, recognise);
        compete(name, &folder.join(file), &sent, &crashes, consume, show)
    };
    // The two loops run side by side, each on a broker and a file of its own; the lines of the second are printed
    // after.
    let (inserted, by_content) = thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut lines = Vec::new();
            let run = by_hand("dedup by content", "content.db", Recognise::Content, &mut |line| lines.push(line));
            (run, lines)
        });
        let first = by_hand("insert, then acknowledge", "insert.db", Recognise::Nothing, &mut |line| show(line));
        let (second, lines) = second.join().map_err(|_| "the thread of a loop died")?;
        lines.into_iter().for_each(show);
        Ok::<_, BoxError>((first?, second?))
    })?;

    let right = idem.totals == SOLD && set_aside == (sent.altered + sent.unusable) as u64;
    report::totals(&[idem, inserted, by_content]);
    report::times();
    report::reasons(&sent, purchases::repeated(&purchases));
    report::dead_letters(&dead_letters);
    Ok(right)
}

/// Six crashes, spread over the purchases.
fn crashes(keys: Vec<&str>) -> Vec<Moment> {
    let key = |percent: usize| keys[keys.len() * percent / 100].to_owned();
    [(10, 25), (40, 55), (70, 85)]
        .into_iter()
        .flat_map(|(one, other)| [Moment::InTheTransaction(key(one)), Moment::BeforeTheAcknowledgement(key(other))])
        .collect()
}

/// Gives a consumer a broker and a database of its own, the same messages and the same crashes, and adds up its table.
fn compete<F>(
    name: &'static str,
    file: &Path,
    sent: &Sent,
    crashes: &[Moment],
    consume: impl Fn(Queue, PathBuf, Arc<Crashes>) -> F,
    mut show: impl FnMut(String),
) -> Result<Run, BoxError>
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    show(report::start(name));
    let options = QueueOptions::default().order(Order::ByKey).seed(1997);
    let queue = Broker::new().create("purchases", options)?;
    queue.misbehave(Faults { resurrected: Rate::OneIn(10), ..Faults::default() });
    for message in &sent.messages {
        queue.publish(message.clone())?;
    }
    let crashes = Arc::new(Crashes::planned(crashes.to_vec()));
    let begun = Instant::now();
    crash::outlive(
        &crashes,
        || consume(queue.clone(), file.to_owned(), Arc::clone(&crashes)),
        |moment| show(report::crash(moment, queue.stats().delivered)),
    )?;
    show(report::end(begun.elapsed(), queue.stats().delivered));
    let totals = in_a_runtime(ledger::totals(file))?;
    Ok(Run { name, totals })
}

/// The messages that idem set aside, from its table.
fn dead_letters(file: &Path) -> Result<Vec<StoredDeadLetter>, BoxError> {
    in_a_runtime(async {
        let store = SqliteStore::open(file).await?;
        Ok(store.bookkeeping().dead_letters(&ConsumerName::new(consume::CONSUMER)?, 1_000).await?)
    })
}

fn in_a_runtime<T>(future: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_unknown_argument_is_named() {
        let keep = |arguments: &[&str]| super::keep(arguments.iter().map(|argument| (*argument).to_owned()));
        assert_eq!((keep(&[]), keep(&["--keep"])), (Ok(false), Ok(true)));
        assert_eq!(keep(&["--keep", "--keeps", "--fast"]), Err("--keeps".to_owned()));
    }
}
