//! The command line: which cases, how much of each, and where the figures go.

use std::{error::Error, time::Duration};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// How long a round of one line is, after its warm-up.
    pub(crate) round: Duration,
    /// Messages a round through the engine alone, and from a broker.
    pub(crate) engine: usize,
    pub(crate) broker: usize,
    /// Single messages a round, a hundred a second.
    pub(crate) latency: usize,
    /// Messages over which memory is watched.
    pub(crate) memory: usize,
    pub(crate) duplicates: usize,
    pub(crate) backlog: usize,
    /// Events that a relay has before it.
    pub(crate) relay: usize,
    /// How long a relay runs at each rate.
    pub(crate) half_load: Duration,
    /// How long wrk sends, in whole seconds, and how often at most.
    pub(crate) http: Duration,
    pub(crate) http_rounds_max: usize,
}

const FULL: Size = Size {
    round: Duration::from_millis(1500),
    engine: 500_000,
    broker: 20_000,
    latency: 500,
    memory: 5_000_000,
    duplicates: 500_000,
    backlog: 5_000_000,
    relay: 100_000,
    half_load: Duration::from_secs(5),
    http: Duration::from_secs(2),
    http_rounds_max: usize::MAX,
};
const QUICK: Size = Size {
    round: Duration::from_millis(500),
    engine: 200_000,
    broker: 8_000,
    latency: 200,
    memory: 1_000_000,
    duplicates: 200_000,
    backlog: 1_000_000,
    relay: 40_000,
    half_load: Duration::from_secs(2),
    http: Duration::from_secs(1),
    http_rounds_max: 1,
};
/// Only whether it works.
const SMOKE: Size = Size {
    round: Duration::from_millis(100),
    engine: 2_000,
    broker: 500,
    latency: 20,
    memory: 20_000,
    duplicates: 3_000,
    backlog: 5_000,
    relay: 2_000,
    half_load: Duration::from_millis(500),
    http: Duration::from_secs(1),
    http_rounds_max: 1,
};

/// When a case is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Also with `--quick`.
    Always,
    /// In a full run.
    Full,
    /// Only where it is asked for.
    Asked,
}

/// Every case: its name, when it is measured, and what it is.
const CASES: [(&str, When, &str); 22] = [
    ("engine", When::Always, "the engine alone on one thread: time and allocations a message"),
    ("memory", When::Always, "resident memory over millions of messages through the engine"),
    ("insert", When::Always, "PostgreSQL, a row of JSON: idem beside five loops by hand and pgbench"),
    ("purchase", When::Always, "PostgreSQL, a row and a balance: the same"),
    ("latency", When::Always, "single messages at low load: p50 and p99"),
    ("alone", When::Full, "one message a call, at 1, 16 and 64 callers: idem beside the textbook and pgbench"),
    ("network-1ms", When::Always, "both works with 1 ms added to each round trip"),
    ("hot-row", When::Full, "purchase where lanes share rows"),
    ("kafka", When::Always, "from Kafka to PostgreSQL"),
    ("events", When::Asked, "what an event or an answer a message costs, on both stores; with --rounds 9 four minutes"),
    (
        "inbox",
        When::Asked,
        "an inbox beside a worker at the broker: rates, log, statements, and six turnovers of its table",
    ),
    ("relay", When::Asked, "a backlog of events from PostgreSQL to Kafka: the relay beside the loops by hand"),
    ("relay-times", When::Asked, "from commit to confirmation at half load, and from a kill to the next relay"),
    ("relay-backlog", When::Asked, "a backlog of one destination, and what another one notices of it"),
    ("relay-snapshot", When::Asked, "six turnovers of the outbox, with and without an old snapshot open"),
    ("http", When::Asked, "first runs and replays over HTTP, on both stores; a minute a round; needs wrk"),
    ("http-refused", When::Asked, "what requests that are refused, and replays, have the database write; needs wrk"),
    ("http-latency", When::Asked, "an answer's latency at half of what the bare handler can"),
    ("http-memory", When::Asked, "resident memory at full load, for --minutes N (2); needs wrk"),
    ("network", When::Asked, "both works at 0, 0.5, 1 and 5 ms, on both stores; 15 minutes"),
    ("growth", When::Asked, "up to --rows N (50 million) in the table; 40 minutes and 40 GB of disk"),
    ("instructions", When::Asked, "the engine alone under valgrind: instructions a message; a minute"),
];

/// The command that the arguments ask for.
pub(crate) enum Asked {
    List,
    /// Draw the pictures of a file of figures.
    Plots(String),
    Measure(Options),
}

pub(crate) struct Options {
    pub(crate) cases: Vec<String>,
    /// No case was named.
    pub(crate) is_whole: bool,
    pub(crate) rounds: usize,
    pub(crate) size: Size,
    /// How far the table of records grows.
    pub(crate) rows: usize,
    /// How long memory is watched.
    pub(crate) minutes: usize,
    pub(crate) json: Option<String>,
}

pub(crate) fn parse(arguments: Vec<String>) -> Result<Asked, Box<dyn Error>> {
    let mut options =
        Options { cases: Vec::new(), is_whole: false, rounds: 5, size: FULL, rows: 50_000_000, minutes: 2, json: None };
    let (mut quick, mut arguments) = (false, arguments.into_iter());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--list" => return Ok(Asked::List),
            "--plots" => return Ok(Asked::Plots(value()?)),
            "--quick" => (quick, options.rounds, options.size) = (true, 3, QUICK),
            "--smoke" => (options.rounds, options.size) = (1, SMOKE),
            "--case" => options.cases.push(value()?),
            "--rounds" => options.rounds = value()?.parse()?,
            "--rows" => options.rows = value()?.parse()?,
            "--minutes" => options.minutes = value()?.parse()?,
            "--json" => options.json = Some(value()?),
            other => match other.strip_prefix("--").filter(|name| CASES.iter().any(|(case, ..)| case == name)) {
                Some(case) => options.cases.push(case.to_owned()),
                None => {
                    return Err(format!("{other} is unknown; ./bench without arguments, --list, or see its top").into());
                }
            },
        }
    }
    options.is_whole = options.cases.is_empty();
    if options.is_whole {
        let now = |when: &When| *when == When::Always || (*when == When::Full && !quick);
        options.cases = CASES.iter().filter(|(_, when, _)| now(when)).map(|(name, ..)| (*name).to_owned()).collect();
    }
    Ok(Asked::Measure(options))
}

pub(crate) fn list() {
    for (name, when, what) in CASES {
        let when = match when {
            When::Always => "always",
            When::Full => "without --quick",
            When::Asked => "asked for",
        };
        println!("  {name:<14} {when:<16} {what}");
    }
}
