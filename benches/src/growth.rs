//! Whether the table of records stays fast while it grows: a grown schema beside an empty one, round by round, so that a
//! machine that drifts is no table that slows down; sizes, WAL, and a partitioned variant.

pub(crate) mod fill;

use std::error::Error;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use self::fill::{Filling, GROWN, PARTITIONED, claims, partition, warm_up};
use crate::{
    by_hand::ByHand,
    cases::At,
    feed::Feed,
    postgres::{Idem, Round, checkpoint, empty, records, remove, reset_tables, store},
    report::{Line, RATE, Table},
    work::Work,
};

/// The steps at which it is measured, as far as they are asked for.
const STEPS: [usize; 3] = [1_000_000, 20_000_000, 50_000_000];

/// Evenly over a retention.
const EXPIRES: &str = "now() + random() * interval '7 days'";

/// The partitioned variant grows as far as this, which is enough to tell.
const PARTITIONED_MAX: usize = 20_000_000;

/// More memory than any machine has.
const UNBOUND: &str = "1T";

/// The names of the lines that the targets are about, in their table.
pub(crate) const LARGEST_TABLE: &str = "growth-50000000";
pub(crate) const EMPTY_SET: &str = "no rows, set-based, batch 500";
pub(crate) const GROWN_SET: &str = "grown, set-based, batch 500";
pub(crate) const EMPTY_EACH: &str = "no rows, per-message handler, batch 100";
pub(crate) const GROWN_EACH: &str = "grown, per-message handler, batch 100";

const LINES: [&str; 6] = [
    EMPTY_SET,
    GROWN_SET,
    EMPTY_EACH,
    GROWN_EACH,
    "grown, claims of 500 alone",
    "grown and partitioned by hash, claims of 500 alone",
];

/// Measures at each step up to `rows`, and removes everything again.
pub(crate) async fn measure(at: At<'_>, rows: usize) -> Result<Vec<Table>, Box<dyn Error>> {
    let (url, rounds, _) = at;
    let mut connection = PgConnection::connect(url).await?;
    empty(url, GROWN).await?;
    partition(&mut connection).await?;
    let (mut tables, mut keys, mut filled) = (Vec::new(), 0, 0);
    let steps = STEPS.into_iter().filter(|step| *step < rows).chain([rows]);
    let bound = bound();
    for step in steps {
        // Within the bound, the fill would take half an hour.
        if let Some((file, _)) = &bound {
            std::fs::write(file, UNBOUND)?;
        }
        filling(GROWN).fill(&mut connection, filled..step).await?;
        let has_partitions = step <= PARTITIONED_MAX;
        if has_partitions {
            filling(PARTITIONED).fill(&mut connection, filled..step).await?;
        }
        filled = step;
        // Before the rounds, which add rows of their own.
        let sizes = sizes(&mut connection, step).await?;
        if let Some((file, memory)) = &bound {
            // Pages that are not written yet cannot be given up.
            checkpoint(&mut connection).await?;
            std::fs::write(file, memory)?;
        }
        warm_up(&mut connection, GROWN, step).await?;
        if has_partitions {
            warm_up(&mut connection, PARTITIONED, step).await?;
        }
        let mut lines = LINES.map(Line::new);
        for _ in 0..rounds {
            for (number, line) in lines.iter_mut().enumerate().filter(|(number, _)| *number < 5 || has_partitions) {
                reset_tables(&mut connection).await?;
                let round = round(&mut connection, number, keys, at).await?;
                keys += round.effects + 100_000;
                line.note(round.messages, round.took);
            }
        }
        let title = format!("PostgreSQL, insert, {step} rows in the table of records beside none, {rounds} rounds");
        let lines: Vec<Line> = lines.into_iter().filter(|line| !line.rounds.is_empty()).collect();
        tables.push(Table::print(format!("growth-{step}"), title, RATE, lines));
        tables.push(sizes);
    }
    tables.push(wal(&mut connection, keys, at).await?);
    forecast(tables.iter().rfind(|table| table.id.starts_with("growth-size")), filled);
    for schema in [GROWN, PARTITIONED] {
        sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).execute(&mut connection).await?;
    }
    remove(&mut connection).await?;
    Ok(tables)
}

/// Where `./bench` was asked to bound all that the server keeps in memory: the file that does it, and the bound.
fn bound() -> Option<(String, String)> {
    Some((std::env::var("IDEM_BENCH_MEMORY_FILE").ok()?, std::env::var("IDEM_BENCH_MEMORY").ok()?))
}

fn filling(schema: &str) -> Filling<'_> {
    Filling { schema, consumers: 1, expires: EXPIRES }
}

async fn round(
    connection: &mut PgConnection,
    number: usize,
    first: usize,
    (url, _, time): At<'_>,
) -> Result<Round, Box<dyn Error>> {
    let (set, each) = (Idem::set(Work::Insert), Idem::base(Work::Insert));
    let (idem, store) = match number {
        0 => (set, store(url).await?),
        1 => (set, records(url, GROWN)?),
        2 => (each, store(url).await?),
        3 => (each, records(url, GROWN)?),
        4 => return Ok(claims(connection, GROWN, |_, took| took >= time).await?),
        _ => return Ok(claims(connection, PARTITIONED, |_, took| took >= time).await?),
    };
    Idem { feed: Feed { first, ..idem.feed }, ..idem }.round(store, time).await
}

/// The sizes of the table and its indexes.
async fn sizes(connection: &mut PgConnection, rows: usize) -> Result<Table, Box<dyn Error>> {
    let relations = "SELECT relname, pg_relation_size(oid) FROM pg_class
        WHERE relnamespace = 'idem_bench_grown'::regnamespace
          AND (relname = 'processed_messages'
               OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'idem_bench_grown.processed_messages'::regclass))
        ORDER BY relkind DESC, relname";
    let mut lines = Vec::new();
    for row in sqlx::query(relations).fetch_all(connection).await? {
        let (name, bytes): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        lines.push(Line { name, rounds: vec![bytes as f64 / 1e6] });
    }
    Ok(Table::print(format!("growth-size-{rows}"), format!("What {rows} rows take"), "MB", lines))
}

/// How much is written ahead for a message.
async fn wal(connection: &mut PgConnection, first: usize, (url, _, time): At<'_>) -> Result<Table, Box<dyn Error>> {
    let by_hand = [
        ("(a) by hand: begin, handler, commit", ByHand::Transaction),
        ("(b) textbook: begin, claim, handler, commit", ByHand::Textbook),
    ];
    let mut lines = Vec::new();
    for (name, by_hand) in by_hand {
        reset_tables(connection).await?;
        let before = written(connection).await?;
        let round = by_hand.round(Work::Insert, url, time).await?;
        lines.push(a_message(name, round, written(connection).await? - before));
    }
    let set = Idem::set(Work::Insert);
    for (number, name) in
        [EMPTY_SET, GROWN_SET, "grown, set-based, batch 500, after a checkpoint"].into_iter().enumerate()
    {
        reset_tables(connection).await?;
        if number == 2 {
            checkpoint(connection).await?;
        }
        let store = if number == 0 { store(url).await? } else { records(url, GROWN)? };
        let before = written(connection).await?;
        let feed = Feed { first: first + number * 1_000_000, ..set.feed };
        let round = Idem { feed, ..set }.round(store, time).await?;
        lines.push(a_message(name, round, written(connection).await? - before));
    }
    Ok(Table::print(
        "growth-wal",
        "What is written ahead, the order's own row included",
        "bytes of WAL a message",
        lines,
    ))
}

fn a_message(name: &str, round: Round, bytes: f64) -> Line {
    Line { name: name.to_owned(), rounds: vec![bytes / round.effects as f64] }
}

/// Bytes of the server's log so far, of whoever writes to it.
pub(crate) async fn written(connection: &mut PgConnection) -> Result<f64, sqlx::Error> {
    let written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
    sqlx::query_scalar(written).fetch_one(connection).await
}

/// Prints the size that a rate and a retention lead to, at the measured size of a row.
fn forecast(sizes: Option<&Table>, rows: usize) {
    let Some(sizes) = sizes.filter(|_| rows > 0) else { return };
    let bytes = sizes.lines.iter().map(Line::median).sum::<f64>() * 1e6 / rows as f64;
    println!("\nRate and retention: rows, and GB at the measured {bytes:.0} bytes a row with its indexes");
    println!("  {:<24} {:>22} {:>22} {:>22}", "", "2 hours", "24 hours", "7 days");
    for rate in [10.0, 100.0, 1_000.0, 10_000.0] {
        let cell = |hours: f64| {
            let rows = rate * hours * 3600.0;
            format!("{:.2} M, {:.1} GB", rows / 1e6, rows * bytes / 1e9)
        };
        let name = format!("{rate} messages a second");
        println!("  {name:<24} {:>22} {:>22} {:>22}", cell(2.0), cell(24.0), cell(168.0));
    }
}
