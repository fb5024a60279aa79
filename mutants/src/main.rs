//! Runs the mutants that cargo-mutants lists of idem's engine. A build for each would take days, so all are compiled into one program, each
//! behind a number that is chosen when it runs.

mod compile;
mod known;
mod report;
mod run;
mod write;

use std::{
    error::Error,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use known::Known;
use write::Mutant;

/// The sources of mutants: the decisions of the engine.
const FILES: [&str; 12] = [
    "idem-core/src/policy*",
    "idem-core/src/outcome*",
    "idem-core/src/pause*",
    "idem-core/src/names*",
    "idem-core/src/names/**",
    "idem-core/src/key*",
    "idem-core/src/key/**",
    "idem-core/src/hash*",
    "idem-core/src/unit/**",
    "idem-core/src/consumer/**",
    "idem-core/src/once/**",
    "idem-core/src/worker/**",
];

pub(crate) type Failed = Box<dyn Error + Send + Sync>;

struct Args {
    /// Draws the order.
    seed: u64,
    minutes: u64,
    /// How many mutants run at once.
    jobs: usize,
    /// Where the table goes too.
    page: Option<PathBuf>,
}

fn main() -> Result<(), Failed> {
    let args = asked()?;
    let tree = Path::new("target/mutants/tree");
    compile::copy(tree)?;
    let mutants = listed(tree)?;
    let mut made = compile::all(&mutants, tree)?;
    made.numbers.sort_by_key(|number| {
        let mut hasher = DefaultHasher::new();
        (args.seed, &mutants[*number].name).hash(&mut hasher);
        hasher.finish()
    });
    let mut known = Known::read(Path::new("target/mutants/ends"))?;
    let ends = run::all(&mutants, &made, args.minutes, args.jobs, &mut known)?;
    let table = report::table(&mutants, made.numbers.len(), &ends)?;
    println!("{table}");
    args.page.map_or(Ok(()), |page| report::write(&page, &table))
}

fn asked() -> Result<Args, Failed> {
    let mut args = Args { seed: 1, minutes: u64::MAX, jobs: 1, page: None };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} of what?"))?;
        match flag.as_str() {
            "--seed" => args.seed = value.parse()?,
            "--minutes" => args.minutes = value.parse()?,
            "--jobs" => args.jobs = value.parse()?,
            "--page" => args.page = Some(value.into()),
            other => return Err(format!("{other}: --seed N, --minutes N, --jobs N and --page FILE are known").into()),
        }
    }
    Ok(args)
}

fn listed(tree: &Path) -> Result<Vec<Mutant>, Failed> {
    let mut list = Command::new("cargo");
    list.args(["mutants", "--list", "--json", "--package", "idem-core", "--all-features", "--dir"]).arg(tree);
    for file in FILES {
        list.args(["--file", file]);
    }
    Ok(serde_json::from_slice(&output(&mut list)?)?)
}

/// The output of a command, if it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Failed> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
