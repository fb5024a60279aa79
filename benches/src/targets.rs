//! The targets of idem beside the figures of this run, each with the command that measures it alone.

use std::fmt;

use serde_json::{Value, json};

use crate::{
    calls,
    cases::{AUTOCOMMIT, EACH, ONE_BY_ONE, ONE_BY_ONE_TOKIO, PGBENCH_16, PIPELINED, SET, TEXTBOOK, TRANSACTION, lanes},
    engine::{CACHED, FRESH, SILENT},
    events,
    growth::{EMPTY_EACH, EMPTY_SET, GROWN_EACH, GROWN_SET, LARGEST_TABLE},
    hot, http, inbox, latency, network, relay,
    report::{Line, Table, number},
};

enum Must {
    BeAtLeast(f64),
    BeAtMost(f64),
}

impl Must {
    fn is_met_by(&self, measured: f64) -> bool {
        match *self {
            Self::BeAtLeast(least) => measured >= least,
            Self::BeAtMost(most) => measured <= most,
        }
    }
}

impl fmt::Display for Must {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeAtLeast(least) => write!(f, "at least {}", number(*least)),
            Self::BeAtMost(most) => write!(f, "at most {}", number(*most)),
        }
    }
}

/// Where the figure is found: in a table, a line's median, or that of the best of several, over another's.
struct Target {
    what: &'static str,
    case: &'static str,
    table: String,
    lines: Vec<String>,
    over: Option<&'static str>,
    must: Must,
}

impl Target {
    fn new(what: &'static str, case: &'static str, table: &str, line: impl Into<String>, must: Must) -> Self {
        Self { what, case, table: table.to_owned(), lines: vec![line.into()], over: None, must }
    }

    fn over(self, line: &'static str) -> Self {
        Self { over: Some(line), ..self }
    }

    fn best_of(self, lines: impl IntoIterator<Item = String>) -> Self {
        Self { lines: lines.into_iter().collect(), ..self }
    }

    /// `None` where this run did not measure it.
    fn measured(&self, tables: &[Table]) -> Option<f64> {
        let table = tables.iter().find(|table| table.id == self.table)?;
        let best = self.lines.iter().filter_map(|name| table.line(name)).map(Line::median).reduce(f64::max)?;
        match self.over {
            Some(over) => Some(best / table.line(over)?.median()),
            None => Some(best),
        }
    }
}

/// The table that the project holds itself to.
fn targets() -> Vec<Target> {
    use Must::BeAtLeast;
    let all_lanes = |name: &'static str| [1, 2, 4].map(|n| lanes(name, n));
    let mut targets = Vec::new();
    for (work, a, b, set, best, c) in [("insert", 2.5, 2.8, 6.0, 8.0, 2.0), ("purchase", 2.5, 2.5, 7.0, 12.0, 1.5)] {
        let of = |what, line: String, must| Target::new(what, work, work, line, must);
        let each = lanes(EACH, 1);
        targets.push(
            of("per-message handler, batch 100, one lane, over (a)", each.clone(), BeAtLeast(a)).over(TRANSACTION),
        );
        if work == "insert" {
            targets.push(of("the same over (a')", each.clone(), BeAtLeast(1.5)).over(AUTOCOMMIT));
        }
        targets.push(of("the same over (b) on a pool", each, BeAtLeast(b)).over(TEXTBOOK));
        targets.push(
            of("set-based handler, batch 500, one lane, over (a)", lanes(SET, 1), BeAtLeast(set)).over(TRANSACTION),
        );
        let on_best = of("the same on the best number of lanes, over (a)", String::new(), BeAtLeast(best));
        targets.push(on_best.best_of(all_lanes(SET)).over(TRANSACTION));
        let server = of("per-message handler, best of all, over (c) at 16 clients", String::new(), BeAtLeast(c));
        targets.push(server.best_of(all_lanes(EACH).into_iter().chain([PIPELINED.to_owned()])).over(PGBENCH_16));
        targets.push(of("batch 1 over (b) on a pool", ONE_BY_ONE.to_owned(), BeAtLeast(0.95)).over(TEXTBOOK));
        let other_store = of("the same on tokio-postgres", ONE_BY_ONE_TOKIO.to_owned(), BeAtLeast(0.95));
        targets.push(other_store.over(TEXTBOOK));
    }
    for (table, each, set) in [("network-insert-1", 2.2, 60.0), ("network-purchase-1", 1.6, 80.0)] {
        let of = |what, line, must| Target::new(what, "network-1ms", table, line, must).over(network::BY_HAND);
        targets.push(of("1 ms of round trip, in order, one lane, over (a)", network::IN_ORDER, BeAtLeast(each)));
        targets.push(of("1 ms of round trip, set-based, one lane, over (a)", network::SET, BeAtLeast(set)));
    }
    for (what, callers, line, over, least) in [
        ("one caller, over (b) on a connection that is kept", 1, calls::IDEM, calls::KEPT, 1.0),
        ("the same on tokio-postgres", 1, calls::ON_TOKIO_POSTGRES, calls::KEPT, 1.0),
        ("16 callers, over (b) on a pool", 16, calls::IDEM, calls::POOL, 1.0),
        ("the same on tokio-postgres", 16, calls::ON_TOKIO_POSTGRES, calls::POOL, 1.0),
        ("16 callers, over (c) with a claim", 16, calls::IDEM, calls::PGBENCH, 0.85),
        ("the same on tokio-postgres", 16, calls::ON_TOKIO_POSTGRES, calls::PGBENCH, 0.85),
        ("64 callers, units shared, over not", 64, calls::SHARED, calls::IDEM, 2.0),
        ("the same on tokio-postgres", 64, calls::SHARED_ON_TOKIO_POSTGRES, calls::ON_TOKIO_POSTGRES, 2.0),
    ] {
        targets.push(Target::new(what, "alone", &calls::table(callers), line, BeAtLeast(least)).over(over));
    }
    let log = Target::new("log a message, over (b)'s", "alone", "alone-16-wal", calls::IDEM, Must::BeAtMost(1.15));
    targets.push(log.over(calls::KEPT));
    targets.extend(others());
    targets.extend(outgoing());
    targets.extend(waiting());
    targets.extend(requests());
    targets
}

/// Of requests over HTTP. The lines of pairs are shares of another line, round by round.
fn requests() -> impl Iterator<Item = Target> {
    use Must::{BeAtLeast, BeAtMost};
    let mut targets = Vec::new();
    for driver in ["sqlx", "tokio"] {
        let table = http::table(driver);
        let replays = format!("{table}-replays");
        let of = |what, case, table: &str, line, must| Target::new(what, case, table, line, must);
        targets.extend([
            of("first runs, over the textbook by hand", "http", &table, http::IDEM, BeAtLeast(0.9)),
            of("replays, over first runs", "http", &replays, http::REPLAYS, BeAtLeast(2.0)),
        ]);
        // The server's other work is in these too, so they are not exactly nothing.
        for (what, line) in [
            ("a replay's log, bytes", http::REPLAY),
            ("that of a 400", http::KEYLESS),
            ("that of a 409", http::HELD),
            ("that of a 422", http::OTHER),
        ] {
            let table = http::refused_table(driver, "log");
            targets.push(of(what, "http-refused", &table, line, BeAtMost(1.0)));
        }
        let latency = http::latency_table(driver);
        targets.push(of("p99 at half the bare rate, ms more", "http-latency", &latency, http::MORE, BeAtMost(1.0)));
    }
    let what = "memory, last tenth over the first";
    targets.push(Target::new(what, "http-memory", "http-memory", http::GROWN, BeAtMost(1.1)));
    targets.into_iter()
}

/// Of events and answers. The lines of pairs are shares of the line without, round by round.
fn outgoing() -> impl Iterator<Item = Target> {
    use Must::{BeAtLeast, BeAtMost};
    let mut targets = Vec::new();
    for (is_tokio, batch, least) in [(false, 100, 0.9), (true, 100, 0.9), (false, 1, 0.8), (true, 1, 0.8)] {
        let of =
            |what, line, least| Target::new(what, "events", &events::table(is_tokio, batch), line, BeAtLeast(least));
        targets.push(of("one event a message, over none", events::EVENT, least));
        if batch > 1 {
            targets.push(of("an answer of 1 KiB a message, over none", events::ANSWER, 0.85));
        }
    }
    let of = |what, case, table, line, must| Target::new(what, case, table, line, must);
    targets.extend([
        of("the relay alone to Kafka, events a second", "relay", "relay", relay::RELAY, BeAtLeast(20_000.0)),
        of("p99 at 10,000 a second, ms", "relay-times", "relay-half-load", relay::P99, BeAtMost(100.0)),
        of("a kill to the next confirmation, s", "relay-times", "relay-takeover", relay::LONGEST, BeAtMost(2.0)),
        of("backlog, over rate less arrivals", "relay-backlog", "relay-backlog-share", relay::DRAINED, BeAtLeast(0.9)),
        of("p99 beside a backlog, ms", "relay-backlog", "relay-backlog-beside", relay::BESIDE, BeAtMost(250.0)),
        of("size over six turnovers", "relay-snapshot", "relay-snapshot-size", relay::ALONE, BeAtMost(1.1)),
        of("rate over six, snapshot open", "relay-snapshot", "relay-snapshot-rate", relay::SNAPSHOT, BeAtLeast(0.8)),
        of("look over six, snapshot open", "relay-snapshot", "relay-snapshot-look", relay::SNAPSHOT, BeAtMost(2.0)),
    ]);
    targets.into_iter()
}

/// Of an inbox.
fn waiting() -> [Target; 8] {
    use Must::{BeAtLeast, BeAtMost};
    let of = |what, table, line, must| Target::new(what, "inbox", table, line, must);
    [
        of("end to end, set-based, over directly", "inbox-rate", inbox::BOTH_SET, BeAtLeast(0.4))
            .over(inbox::DIRECT_SET),
        of("end to end, in order, over directly", "inbox-rate", inbox::BOTH_EACH, BeAtLeast(0.6))
            .over(inbox::DIRECT_EACH),
        of("a receive's log beyond the payload, bytes", "inbox-log", inbox::BEYOND_PAYLOAD, BeAtMost(250.0)),
        of("processing's log beyond directly, bytes", "inbox-log", inbox::BEYOND_DIRECT, BeAtMost(80.0)),
        // One insert a poll of 500, and the start.
        of("statements of a thousand received", "inbox-statements", inbox::RECEIVE, BeAtMost(3.0)),
        of("statements of a thousand processed", "inbox-statements", inbox::PROCESS_SET, BeAtMost(3.0)),
        of("size over six turnovers", "inbox-size", inbox::GROWTH, BeAtMost(1.1)),
        of("a look with a snapshot open, ms", "inbox-look", inbox::LOOK, BeAtMost(20.0)),
    ]
}

/// The targets that do not belong to one of the two works.
fn others() -> impl IntoIterator<Item = Target> {
    use Must::{BeAtLeast, BeAtMost};
    [
        Target::new("duplicates from the cache, one core, a second", "engine", "cached", CACHED, BeAtLeast(500_000.0)),
        Target::new(
            "p99 of a single message at low load, over (b)'s",
            "latency",
            "latency-p99",
            latency::IDEM,
            BeAtMost(1.0),
        )
        .over(latency::TEXTBOOK),
        Target::new("the same on tokio-postgres", "latency", "latency-p99", latency::ON_TOKIO_POSTGRES, BeAtMost(1.0))
            .over(latency::TEXTBOOK),
        Target::new(
            "one hot row at 4 lanes: % of calls that ran in vain",
            "hot-row",
            "hot-row-lost",
            hot::ONE_HOT,
            BeAtMost(5.0),
        ),
        Target::new("the engine's cost of a fresh message, µs", "engine", "engine", FRESH, BeAtMost(3.0)),
        Target::new("the engine's allocations a fresh message", "engine", "allocations", FRESH, BeAtMost(3.0)),
        Target::new(
            "the same of a handler that might publish, over none",
            "engine",
            "allocations",
            SILENT,
            BeAtMost(1.01),
        )
        .over(FRESH),
        Target::new("its instructions, over none", "instructions", "instructions", SILENT, BeAtMost(1.01)).over(FRESH),
        Target::new(
            "resident memory over the engine's messages, MiB",
            "memory",
            "memory",
            "resident memory at each tenth",
            BeAtMost(100.0),
        ),
        Target::new("50 M rows, per-message handler, over none", "growth", LARGEST_TABLE, GROWN_EACH, BeAtLeast(0.9))
            .over(EMPTY_EACH),
        Target::new("50 M rows, set-based, over none", "growth", LARGEST_TABLE, GROWN_SET, BeAtLeast(0.9))
            .over(EMPTY_SET),
    ]
}

/// Prints the targets that this run measured and, on request, the others; answers the measured ones.
pub(crate) fn print(tables: &[Table], with_unmeasured: bool) -> Vec<Value> {
    let (mut rows, mut is_headed) = (Vec::new(), false);
    for target in targets() {
        let measured = target.measured(tables);
        if measured.is_none() && !with_unmeasured {
            continue;
        }
        if !is_headed {
            println!("\nWhat it must reach");
            println!("  {:<19} {:<56} {:>16} {:>10}       command", "", "", "target", "measured");
            is_headed = true;
        }
        let (must, command) = (target.must.to_string(), format!("./bench --case {}", target.case));
        let (value, verdict) = match measured {
            Some(measured) if target.must.is_met_by(measured) => (number(measured), "met"),
            Some(measured) => (number(measured), "NOT"),
            None => ("not here".to_owned(), ""),
        };
        println!("  {:<19} {:<56} {must:>16} {value:>10}  {verdict:<3}  {command}", target.table, target.what);
        if let Some(measured) = measured {
            rows.push(json!({
                "table": target.table, "what": target.what, "target": must, "measured": measured,
                "met": target.must.is_met_by(measured), "command": command,
            }));
        }
    }
    rows
}
