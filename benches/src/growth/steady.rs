//! Steady state: cleanup removes as much as intake adds. A table that was turned over three times, with cleanup and
//! autovacuum at work, beside one that was never cleaned, round by round.

use std::{cell::Cell, convert::Infallible, error::Error, sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, CleanupSettings, DedupConsumer, Effects, Retention, Store as _, Worker,
    store::{Cleaner, Expiring, Removal, Removed},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use super::fill::{AT_ONCE, Filling, GROWN, warm_up};
use crate::{
    backlog::Backlog,
    cases::At,
    feed::Feed,
    postgres::{Idem, Shape, checkpoint, empty, records, remove, reset_tables},
    report::{Line, RATE, Table},
    work::Work,
};

const NEVER_CLEANED: &str = "idem_bench_never_cleaned";

/// Two tables of more rows than this do not stay in memory.
const ROWS_MAX: usize = 20_000_000;

const TURNOVERS: usize = 3;

/// How long a round is measured: most of a pass of autovacuum over 20 million rows.
const SPAN: Duration = Duration::from_secs(30);

/// The least that a consumer may have. Rows that are added in the rounds can be removed when their turn comes.
const RETENTION: Duration = Duration::from_secs(60);

/// All have expired, in the order in which they were added, so that cleanup removes them at the rate that it is asked for
/// and not at that of the clock. A minute's worth is 8,300 messages a second.
const EXPIRES: &str = "timestamptz '2000-01-01' + n / 500000 * interval '1 minute'";

/// The tables that targets are about, and their lines.
pub(crate) const EACH_TABLE: &str = "steady";
pub(crate) const SET_TABLE: &str = "steady-set";
pub(crate) const WITHOUT: &str = "never cleaned";
pub(crate) const WITH: &str = "turned over three times, cleanup and autovacuum at work";

/// Fills two tables, turns one of them over three times, and consumes on both.
pub(crate) async fn measure((url, rounds, _): At<'_>, rows: usize) -> Result<Vec<Table>, Box<dyn Error>> {
    let rows = rows.min(ROWS_MAX);
    let mut connection = PgConnection::connect(url).await?;
    for schema in [NEVER_CLEANED, GROWN] {
        empty(url, schema).await?;
        filling(schema).fill(&mut connection, 0..rows).await?;
    }
    let mut cleaner = Arc::new(records(url, GROWN)?).cleaner();
    let mut tables = vec![turnovers(&mut connection, &mut *cleaner, rows).await?];

    // The first change of a page after a checkpoint costs more, and must not be paid in one of the rounds.
    checkpoint(&mut connection).await?;
    for schema in [NEVER_CLEANED, GROWN] {
        warm_up(&mut connection, schema, rows).await?;
    }
    let cases = [
        (EACH_TABLE, "a handler a message, batch 100", Idem::base(Work::Insert)),
        (SET_TABLE, "set-based, batch 500", Idem::set(Work::Insert)),
    ];
    let mut measured = cases.map(|(_, name, _)| ([WITHOUT, WITH].map(Line::new), Line::new(name)));
    let mut first = 0;
    for _ in 0..rounds {
        for ((_, _, idem), ([without, with], removed)) in cases.into_iter().zip(&mut measured) {
            for (line, cleaner) in [(without, None), (with, Some(&mut *cleaner))] {
                first += 1 << 32;
                let idem = Idem { feed: Feed { first, ..idem.feed }, ..idem };
                let is_cleaned = cleaner.is_some();
                let (rate, share) = round(&mut connection, idem, url, cleaner).await?;
                line.rounds.push(rate);
                removed.rounds.extend(is_cleaned.then_some(share));
            }
        }
    }
    let mut shares = Vec::new();
    for ((id, name, _), (lines, share)) in cases.into_iter().zip(measured) {
        let title = format!("PostgreSQL, insert, {name}, {rows} rows in the table, {rounds} rounds of {SPAN:?}");
        tables.push(Table::print(id, title, RATE, lines.into()));
        shares.push(share);
    }
    tables.push(Table::print("steady-removed", "What cleanup removed meanwhile", "rows a message", shares));
    for schema in [NEVER_CLEANED, GROWN] {
        sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).execute(&mut connection).await?;
    }
    remove(&mut connection).await?;
    Ok(tables)
}

fn filling(schema: &str) -> Filling<'_> {
    Filling { schema, consumers: 1, expires: EXPIRES }
}

/// Adds as many rows as there are, and removes as many, three times; answers what table and indexes take meanwhile.
async fn turnovers(
    connection: &mut PgConnection,
    cleaner: &mut dyn Cleaner,
    rows: usize,
) -> Result<Table, Box<dyn Error>> {
    let (filling, mut lines) = (filling(GROWN), sizes(connection, "just filled").await?);
    for turnover in 1..=TURNOVERS {
        let (started, added) = (Instant::now(), turnover * rows..(turnover + 1) * rows);
        for from in added.clone().step_by(AT_ONCE) {
            let added = from..added.end.min(from + AT_ONCE);
            let removed = take(cleaner, added.len());
            tokio::try_join!(filling.insert(connection, added), removed)?;
        }
        let when = format!("turnover {turnover}, {:.0?}", started.elapsed());
        lines.extend(sizes(connection, &when).await?);
    }
    Ok(Table::print("steady-size", format!("Three turnovers of {rows} rows, what they leave behind"), "MB", lines))
}

/// The sizes of the table and its indexes, and the share of dead rows.
async fn sizes(connection: &mut PgConnection, when: &str) -> Result<Vec<Line>, Box<dyn Error>> {
    let sizes = format!(
        "SELECT pg_table_size(id)::float8 / 1e6, pg_indexes_size(id)::float8 / 1e6,
             (pg_table_size(id) * pg_stat_get_dead_tuples(id)
                  / greatest(pg_stat_get_live_tuples(id) + pg_stat_get_dead_tuples(id), 1))::float8 / 1e6
         FROM (SELECT '{GROWN}.processed_messages'::regclass AS id) AS measured"
    );
    let (table, indexes, dead) = sqlx::query_as(AssertSqlSafe(sizes)).fetch_one(connection).await?;
    let line = |(what, size)| Line { name: format!("{when}: {what}"), rounds: vec![size] };
    Ok([("table", table), ("indexes", indexes), ("dead rows, of the table", dead)].map(line).to_vec())
}

/// A step of cleanup, as a worker takes it.
async fn step(cleaner: &mut dyn Cleaner) -> Result<usize, Box<dyn Error>> {
    let CleanupSettings { rows_max, step_timeout: timeout, .. } = CleanupSettings::default();
    let removal = Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max, timeout };
    match cleaner.remove(&removal).await? {
        Removed::Rows(rows) => Ok(usize::try_from(rows)?),
        Removed::Elsewhere => Err("another cleaner is at work".into()),
    }
}

/// Removes at least so many rows.
async fn take(cleaner: &mut dyn Cleaner, rows: usize) -> Result<(), Box<dyn Error>> {
    let mut removed = 0;
    while removed < rows {
        match step(cleaner).await? {
            0 => return Err("nothing has expired".into()),
            some => removed += some,
        }
    }
    Ok(())
}

/// Removes a step's worth of rows each time that as many messages are through.
async fn keep_up(
    cleaner: &mut dyn Cleaner,
    backlog: &Backlog,
    removed: &Cell<usize>,
) -> Result<Infallible, Box<dyn Error>> {
    loop {
        if backlog.settled() > removed.get() {
            removed.set(removed.get() + step(cleaner).await?);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Consumes, with cleanup on the one table or without it on the other. Answers messages a second, and how many rows were
/// removed for each message.
async fn round(
    connection: &mut PgConnection,
    Idem { shape, batch, feed, .. }: Idem,
    url: &str,
    cleaner: Option<&mut dyn Cleaner>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let schema = if cleaner.is_some() { GROWN } else { NEVER_CLEANED };
    reset_tables(connection).await?;
    vacuum_only(connection, schema).await?;
    let consumer = DedupConsumer::builder(records(url, schema)?, "bench").effects(Effects::InTransaction).lanes(1);
    let consumer = match shape {
        Shape::Each => consumer.handler(feed.work),
        Shape::Set => consumer.batch_handler(feed.work),
    };
    let consumer = consumer.retention(Retention::For(RETENTION)).build()?;
    let backlog = Arc::new(Backlog::new(usize::MAX, Box::new(move |n| feed.message(n))));
    let worker = Worker::builder_shared(consumer, Arc::clone(&backlog)).batch(batch).cleanup(None).build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    while backlog.settled() < Feed::KEYS && !running.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    let removed = Cell::new(0);
    let (rate, share) = match cleaner {
        None => rate(&backlog, &removed).await,
        Some(cleaner) => {
            let measured = async {
                until_vacuum(connection).await?;
                Ok::<_, sqlx::Error>(rate(&backlog, &removed).await)
            };
            tokio::select! {
                measured = measured => measured?,
                never = keep_up(cleaner, &backlog, &removed) => match never? {},
            }
        }
    };
    stop.cancel();
    running.await??;
    Ok((rate, share))
}

async fn rate(backlog: &Backlog, removed: &Cell<usize>) -> (f64, f64) {
    let (settled, gone, started) = (backlog.settled(), removed.get(), Instant::now());
    sleep(SPAN).await;
    let (messages, gone) = ((backlog.settled() - settled) as f64, (removed.get() - gone) as f64);
    (messages / started.elapsed().as_secs_f64(), gone / messages)
}

/// Lets autovacuum at the one table, and ends what it does at the other: it would be in the wrong round.
async fn vacuum_only(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    for other in [NEVER_CLEANED, GROWN] {
        let is_on = other == schema;
        let set = format!("ALTER TABLE {other}.processed_messages SET (autovacuum_enabled = {is_on})");
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Waits until autovacuum is at work on the table that is cleaned. It looks once a minute; a table with little to do is
/// measured without it.
async fn until_vacuum(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let is_at_work = format!(
        "SELECT EXISTS (SELECT FROM pg_stat_progress_vacuum WHERE relid = '{GROWN}.processed_messages'::regclass)"
    );
    for _ in 0..90 {
        if sqlx::query_scalar(AssertSqlSafe(is_at_work.clone())).fetch_one(&mut *connection).await? {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
