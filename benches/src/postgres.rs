//! The measurements on PostgreSQL, line beside line: a loop written by hand, pgbench, or a worker of idem.

use std::{error::Error, time::Duration};

use idem_core::{Concurrency, DedupConsumer, Effects, Handler, Store, handler::BatchHandler};
use idem_sqlx::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{
    backlog,
    by_hand::ByHand,
    feed::Feed,
    pgbench::PgBench,
    report::{Line, RATE, Table},
    work::{TABLES, Work},
};

/// The result of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Messages in the time that was taken.
    pub(crate) messages: usize,
    pub(crate) took: Duration,
    /// Effects that must be in the database now, those before and after that time included.
    pub(crate) effects: usize,
}

/// Whether the handler gets one message or a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Each,
    Set,
}

/// A worker of idem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idem {
    pub(crate) shape: Shape,
    pub(crate) batch: usize,
    pub(crate) lanes: usize,
    pub(crate) handlers: Concurrency,
    pub(crate) feed: Feed,
}

impl Idem {
    /// The base case, which each table leaves along one axis: a handler a message, batches of 100, one lane, fresh
    /// messages with UUIDv4 keys.
    pub(crate) fn base(work: Work) -> Self {
        Self { shape: Shape::Each, batch: 100, lanes: 1, handlers: Concurrency::InOrder, feed: Feed::fresh(work) }
    }

    /// The fastest handler, in the batches that suit it.
    pub(crate) fn set(work: Work) -> Self {
        Self { shape: Shape::Set, batch: 500, ..Self::base(work) }
    }

    /// Runs a worker on records that are there already or not.
    pub(crate) async fn round<S: Store>(self, store: S, time: Duration) -> Result<Round, Box<dyn Error>>
    where
        Work: Handler<S> + BatchHandler<S>,
    {
        let (feed, work) = (self.feed, self.feed.work);
        let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).lanes(self.lanes);
        let consumer = consumer.handlers(self.handlers);
        let consumer = match self.shape {
            Shape::Each => consumer.handler(work),
            Shape::Set => consumer.batch_handler(work),
        };
        // A lane's first messages run alone until a batch's worth of them is through, and keys are uneven over lanes.
        let warm_up = (self.lanes * self.batch * 3 / 2).max(2_000);
        let make = Box::new(move |n| feed.message(n));
        backlog::consume_for(consumer.build()?, self.batch, warm_up, time, make).await
    }
}

/// A way to consume.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    ByHand(ByHand),
    PgBench(PgBench),
    Idem(Idem),
    /// The same on the other store.
    OnTokioPostgres(Idem),
}

impl Way {
    async fn round(self, work: Work, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        match self {
            Self::ByHand(by_hand) => by_hand.round(work, url, time).await,
            Self::PgBench(pgbench) => pgbench.round(work, url, time).await,
            Self::Idem(idem) => idem.round(store(url).await?, time).await,
            Self::OnTokioPostgres(idem) => idem.round(tokio_store(url).await?, time).await,
        }
    }
}

/// Measures each line in turn, round by round, on tables without a row, and counts the effects after each.
pub(crate) async fn compare(
    id: &str,
    title: &str,
    work: Work,
    lines: Vec<(String, Way)>,
    (url, rounds, time): (&str, usize, Duration),
) -> Result<Table, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut measured: Vec<Line> = lines.iter().map(|(name, _)| Line::new(name)).collect();
    for _ in 0..rounds {
        for ((name, way), line) in lines.iter().zip(&mut measured) {
            fresh(&mut connection).await?;
            let round = way.round(work, url, time).await?;
            let effects: i64 = sqlx::query_scalar(work.counted()).fetch_one(&mut connection).await?;
            if usize::try_from(effects)? != round.effects {
                return Err(format!("{name}: {effects} effects of {} messages", round.effects).into());
            }
            line.note(round.messages, round.took);
        }
    }
    remove(&mut connection).await?;
    let title = format!("PostgreSQL, {title}; {rounds} rounds of {:.1} s, interleaved", time.as_secs_f64());
    Ok(Table::print(id, title, RATE, measured))
}

/// Empty tables, and nothing left to write of the round before.
pub(crate) async fn fresh(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    reset_tables(connection).await?;
    checkpoint(connection).await
}

/// Empty tables.
pub(crate) async fn reset_tables(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLES).execute(connection).await?;
    Ok(())
}

pub(crate) async fn checkpoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("CHECKPOINT").execute(connection).await?;
    Ok(())
}

pub(crate) async fn remove(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let all = "DROP SCHEMA IF EXISTS idem_bench CASCADE; DROP SCHEMA IF EXISTS idem_bench_records CASCADE";
    sqlx::raw_sql(all).execute(connection).await?;
    Ok(())
}

/// Where the records of what is measured stand.
pub(crate) const RECORDS: &str = "idem_bench_records";

/// The store on a schema without a row.
pub(crate) async fn store(url: &str) -> Result<PostgresStore, Box<dyn Error>> {
    empty(url, RECORDS).await
}

/// The other store on the same; both keep the same tables.
pub(crate) async fn tokio_store(url: &str) -> Result<idem_tokio_postgres::PostgresStore, Box<dyn Error>> {
    store(url).await?;
    Ok(idem_tokio_postgres::PostgresOptions::parse(url)?.schema(RECORDS.parse()?).build()?)
}

/// The same in this schema.
pub(crate) async fn empty(url: &str, schema: &str) -> Result<PostgresStore, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))).execute(&mut connection).await?;
    let store = records(url, schema)?;
    store.migrate().await?;
    Ok(store)
}

/// The store on a schema as it is.
pub(crate) fn records(url: &str, schema: &str) -> Result<PostgresStore, Box<dyn Error>> {
    Ok(PostgresOptions::parse(url)?.schema(schema.parse()?).build()?)
}
