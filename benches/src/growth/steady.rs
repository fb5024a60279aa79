//! Steady state: cleanup removes as much as intake adds, until the whole table has been turned over three times.

use std::{error::Error, sync::Arc, time::Duration};

use idem_core::{
    BatchAnswer, BatchHandler, CancellationToken, CleanupSettings, DedupConsumer, Effects, HandlerError, Message,
    Retention, Tx, Worker,
};
use idem_sqlx::Postgres;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::Instant;

use super::fill::{GROWN, fill};
use crate::{
    backlog::Backlog,
    cases::At,
    feed::Feed,
    postgres::{empty, records},
    report::{Line, RATE, Table},
    work::Work,
};

/// More rows than this turn over too slowly to be waited for.
const ROWS_MAX: usize = 20_000_000;

const MINUTE: Duration = Duration::from_secs(60);

/// The names of the lines that the target is about.
pub(crate) const WITHOUT: &str = "without cleanup";
pub(crate) const WITH: &str = "with cleanup, third turnover";

/// Claims only, so that nothing but the table of records is measured.
struct Nothing;

impl BatchHandler<Postgres> for Nothing {
    async fn handle_batch(&self, _: &[&Message], _: &mut Tx<'_, Postgres>) -> Result<BatchAnswer, HandlerError> {
        Ok(BatchAnswer::all_handled())
    }
}

/// What was measured over one span: messages a second, and MB of table and indexes at its end.
type Measured = Vec<(f64, f64)>;

/// Claims as fast as it can, over one span after the other.
async fn claim(
    store: Postgres,
    first: usize,
    retention: Duration,
    cleanup: Option<CleanupSettings>,
    spans: &[Duration],
    connection: &mut PgConnection,
) -> Result<Measured, Box<dyn Error>> {
    let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).lanes(1);
    let consumer = consumer.batch_handler(Nothing).retention(Retention::For(retention)).build()?;
    let feed = Feed { first, ..Feed::fresh(Work::Insert) };
    let backlog = Arc::new(Backlog::new(usize::MAX, Box::new(move |n| feed.message(n))));
    let worker = Worker::builder_shared(consumer, Arc::clone(&backlog)).batch(500).cleanup(cleanup).build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone()));
    while backlog.settled() < 1_000 && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut measured = Vec::new();
    for span in spans {
        let (before, started) = (backlog.settled(), Instant::now());
        tokio::time::sleep(*span).await;
        let rate = (backlog.settled() - before) as f64 / started.elapsed().as_secs_f64();
        let size = format!("SELECT pg_total_relation_size('{GROWN}.processed_messages')::float8 / 1e6");
        measured.push((rate, sqlx::query_scalar(AssertSqlSafe(size)).fetch_one(&mut *connection).await?));
    }
    stop.cancel();
    running.await??;
    Ok(measured)
}

/// Fills a table of so many rows, of which as many expire in each second as are added, and turns it over three times.
pub(crate) async fn measure((url, _, _): At<'_>, rows: usize) -> Result<Vec<Table>, Box<dyn Error>> {
    let rows = rows.min(ROWS_MAX);
    let mut connection = PgConnection::connect(url).await?;
    let store = empty(url, GROWN).await?;
    let probe = claim(store, 0, MINUTE, None, &[Duration::from_secs(5)], &mut connection).await?;
    // A retention is at least a minute.
    let turnover = Duration::from_secs((rows as f64 / probe[0].0) as u64).max(MINUTE);
    fill(&mut connection, GROWN, 0..rows, turnover).await?;

    let part = 1 << 40;
    let without = claim(records(url, GROWN)?, part, turnover, None, &[MINUTE / 2], &mut connection).await?;
    let cleanup = CleanupSettings { every: Duration::from_secs(1), ..CleanupSettings::default() };
    let with = claim(records(url, GROWN)?, 2 * part, turnover, Some(cleanup), &[turnover; 3], &mut connection).await?;
    let names = [WITHOUT, "with cleanup, first turnover", "with cleanup, second turnover", WITH];
    let measured = || names.into_iter().zip(without.iter().chain(&with));
    let line = |name: &str, value| Line { name: name.to_owned(), rounds: vec![value] };
    let rates = measured().map(|(name, (rate, _))| line(name, *rate)).collect();
    let sizes = measured().map(|(name, (_, size))| line(name, *size)).collect();
    sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {GROWN} CASCADE"))).execute(&mut connection).await?;
    let title = format!("PostgreSQL, claims alone, batch 500, {rows} rows to begin with, {turnover:.0?} a turnover");
    Ok(vec![
        Table::print("steady", title, RATE, rates),
        Table::print("steady-size", "The same, what table and indexes take at the end of each", "MB", sizes),
    ])
}
