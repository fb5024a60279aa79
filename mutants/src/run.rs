//! Runs each mutant until something dies of it.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use crate::{Failed, compile::Made, known::Known, write::Mutant};

/// Seconds: a mutant that waits for ever takes no time of a processor.
const PATIENCE: u32 = 400;

/// Programs that mutants may die of.
pub(crate) struct Killer {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// How cargo builds it.
    pub(crate) build: &'static [&'static str],
    /// Where it runs.
    dir: &'static str,
    /// One run of it after the other.
    runs: &'static [&'static [&'static str]],
    /// The CPU seconds that a run may take: a multiple of those without a mutant.
    seconds: u32,
}

/// The cheapest first.
#[rustfmt::skip]
pub(crate) const KILLERS: [Killer; 5] = [
    Killer {
        name: "the engine's unit tests", package: "idem-core", dir: "idem-core", seconds: 20,
        build: &["test", "--no-run", "--all-features", "--lib"],
        runs: &[&["--test-threads", "1"]],
    },
    Killer {
        name: "the first lives", package: "simulation", dir: "simulation", seconds: 20,
        build: &["build", "--profile", "sim"],
        runs: &[
            &["--jobs", "1", "--lives", "500", "--theme", "small"],
            &["--jobs", "1", "--lives", "200", "--theme", "any"],
            &["--jobs", "1", "--lives", "60", "--theme", "junk"],
        ],
    },
    Killer {
        name: "the lives of what was found", package: "simulation", dir: "simulation", seconds: 60,
        build: &["test", "--no-run", "--profile", "sim", "--test", "it"],
        runs: &[&["found::", "--test-threads", "1"]],
    },
    Killer {
        name: "the test kit's tests", package: "idem-testkit", dir: "idem-testkit", seconds: 90,
        build: &["test", "--no-run", "--all-features", "--test", "it"],
        // Without those that take seconds; of the suites, without those that plant defects of their own.
        runs: &[&[
            "--test-threads", "16", "--skip", "prove::", "--skip", "o9_an_hours_outage", "--skip", "v1_v2_each_key",
        ]],
    },
    Killer {
        name: "the suites", package: "idem-conformance", dir: "idem-conformance", seconds: 90,
        build: &["test", "--no-run", "--all-features", "--test", "it"],
        runs: &[&[
            "--test-threads", "16", "--skip", "store::broken::", "--skip", "answers_of_the_twin", "--skip", "large_batches",
        ]],
    },
    Killer {
        name: "the worker's tests", package: "idem-tests", dir: "tests", seconds: 90,
        build: &["test", "--no-run", "--all-features", "--test", "it"],
        // Without those that need a database.
        runs: &[&["worker::", "--test-threads", "16", "--skip", "worker::evidence::"]],
    },
];

/// The end of a mutant: the place of its killer in [`KILLERS`], or `None` where it lives.
pub(crate) struct End {
    pub(crate) number: usize,
    pub(crate) killer: Option<usize>,
}

/// Runs these mutants, as many at once as there are jobs, and begins none after that many minutes. Ends that are known count, and new ones
/// become known at once.
#[allow(clippy::disallowed_methods, reason = "a program's own time, which no test pauses")]
pub(crate) fn all(mutants: &[Mutant], made: &Made, minutes: u64, jobs: usize, known: &mut Known) -> Result<Vec<End>, Failed> {
    let (mut ends, mut rest) = (Vec::new(), Vec::new());
    for number in made.numbers.iter().copied() {
        match known.of(&mutants[number]) {
            Some(killer) => ends.push(End { number, killer }),
            None => rest.push(number),
        }
    }
    println!("{} ends are known, {} mutants are left", ends.len(), rest.len());
    if let (false, Some(of)) = (rest.is_empty(), killer(usize::MAX, made)?) {
        return Err(format!("{} fail without a mutant", KILLERS[of].name).into());
    }
    let began = Instant::now();
    let rest = Mutex::new(rest.into_iter());
    let found = Mutex::new((known, ends));
    let run = || -> Result<(), Failed> {
        while began.elapsed().as_secs() / 60 < minutes {
            let Some(number) = rest.lock().map_err(|_| "another job panicked")?.next() else { break };
            let killer = killer(number, made)?;
            let mut found = found.lock().map_err(|_| "another job panicked")?;
            found.0.add(&mutants[number], killer)?;
            found.1.push(End { number, killer });
        }
        Ok(())
    };
    thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs).map(|_| scope.spawn(run)).collect();
        jobs.into_iter().try_for_each(|job| job.join().map_err(|_| "a job panicked")?)
    })?;
    Ok(found.into_inner().map_err(|_| "a job panicked")?.1)
}

fn killer(number: usize, made: &Made) -> Result<Option<usize>, Failed> {
    for (place, (killer, program)) in KILLERS.iter().zip(&made.programs).enumerate() {
        for arguments in killer.runs {
            let mut run = limited(killer.seconds, program);
            run.args(*arguments).current_dir(made.tree.join(killer.dir)).env("IDEM_MUTANT", number.to_string());
            if !ends_well(run.env_remove("RUST_BACKTRACE"))? {
                return Ok(Some(place));
            }
        }
    }
    Ok(None)
}

/// A program that may take this many CPU seconds, and no longer than a mutant may wait in vain.
fn limited(seconds: u32, program: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -t {seconds}; exec timeout -s KILL {PATIENCE} \"$@\""), "mutant"]).arg(program);
    shell
}

/// Whether a program ends well. The output is read to the first failure only: tests that go on write to a closed pipe, and end.
fn ends_well(command: &mut Command) -> std::io::Result<bool> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let lines = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
    let failed = lines.map_while(Result::ok).any(|line| line.ends_with(b"... FAILED"));
    Ok(child.wait()?.success() && !failed)
}
