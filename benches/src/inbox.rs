//! The inbox beside a worker without one: rates, the log a message, statements, and the table over six turnovers with and without an old
//! snapshot open.

mod counting;

use std::{error::Error, sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, ConsumerName, DedupConsumer, Effects, Source, Worker,
    inbox::{Inbox, InboxSource, InboxStore as _, Receiver},
};
use idem_sqlx::PostgresStore;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use self::counting::Counting;
use crate::{
    backlog::Backlog,
    feed::Feed,
    postgres::{self, RECORDS, Shape, records},
    report::{Line, RATE, Table},
    work::{Work, body},
};

type Failed = Box<dyn Error>;

/// The lines that targets are about.
pub(crate) const DIRECT_SET: &str = "directly, set-based handler, batch 500, one lane";
pub(crate) const DIRECT_EACH: &str = "directly, a handler a message in order, batch 500, one lane";
pub(crate) const BOTH_SET: &str = "through the inbox, both parts at once, set-based";
pub(crate) const BOTH_EACH: &str = "through the inbox, both parts at once, in order";
pub(crate) const RECEIVE: &str = "receiving alone";
pub(crate) const PROCESS_SET: &str = "processing alone, set-based";
const PROCESS_EACH: &str = "processing alone, in order";
pub(crate) const BEYOND_PAYLOAD: &str = "receiving, beyond the payload";
pub(crate) const BEYOND_DIRECT: &str = "processing, beyond the same handler directly";
pub(crate) const GROWTH: &str = "the last of six turnovers over the third, no snapshot";
pub(crate) const LOOK: &str = "a look in the last turnover, a snapshot open since before the first";

const CONSUMER: &str = "bench";
const TURNOVERS: usize = 6;
/// Before it the table grows in any case: pages that one vacuum has emptied are used again after the next one.
const SETTLED: usize = 2;

/// One measurement on tables without a row.
struct Bench<'a> {
    url: &'a str,
    connection: PgConnection,
    store: Arc<PostgresStore>,
    inbox: Arc<Counting>,
}

/// What a part took.
#[derive(Clone, Copy)]
struct Took {
    time: Duration,
    /// Bytes of the server's log a message, all of the server's.
    log: f64,
    /// Statements on the inbox for a thousand messages.
    statements: f64,
}

impl<'a> Bench<'a> {
    async fn fresh(url: &'a str) -> Result<Self, Failed> {
        let mut connection = PgConnection::connect(url).await?;
        postgres::fresh(&mut connection).await?;
        let store = Arc::new(postgres::store(url).await?);
        let inbox = Arc::new(Counting::new(store.inbox()));
        Ok(Self { url, connection, store, inbox })
    }

    /// Runs a part, and answers what it took.
    async fn took(
        &mut self,
        messages: usize,
        part: impl AsyncFnOnce(&Self) -> Result<Duration, Failed>,
    ) -> Result<Took, Failed> {
        let now = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8";
        let (before, calls): (f64, _) =
            (sqlx::query_scalar(now).fetch_one(&mut self.connection).await?, self.inbox.calls());
        let time = part(self).await?;
        let after: f64 = sqlx::query_scalar(now).fetch_one(&mut self.connection).await?;
        let statements = (self.inbox.calls() - calls) as f64 * 1e3 / messages as f64;
        Ok(Took { time, log: (after - before) / messages as f64, statements })
    }

    async fn receive(&self, first: usize, messages: usize) -> Result<Duration, Failed> {
        let started = Instant::now();
        let receiver = Receiver::new(backlog(first, messages), Arc::clone(&self.inbox) as Arc<dyn Inbox>, name()?);
        let written = receiver.run(std::future::pending()).await?;
        if written != messages as u64 {
            return Err(format!("{written} of {messages} messages were written").into());
        }
        Ok(started.elapsed())
    }

    fn source(&self) -> Result<InboxSource, Failed> {
        Ok(InboxSource::new(Arc::clone(&self.inbox) as Arc<dyn Inbox>, name()?))
    }

    /// Handles so many messages of a source.
    async fn work<B: Source>(&self, source: B, shape: Shape, messages: usize) -> Result<Duration, Failed> {
        let consumer = DedupConsumer::builder(Arc::clone(&self.store), CONSUMER).lanes(1);
        let consumer = consumer.effects(Effects::InTransaction);
        let consumer = match shape {
            Shape::Each => consumer.handler(Work::Insert),
            Shape::Set => consumer.batch_handler(Work::Insert),
        };
        let worker = Worker::builder(consumer.build()?, source).batch(500).cleanup(None).build()?;
        let (view, stop) = (worker.view(), CancellationToken::new());
        let started = Instant::now();
        let task = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
        while view.summary().processed < messages as u64 {
            if task.is_finished() || started.elapsed() > Duration::from_secs(300) {
                return Err("the worker ended, or did not get there in five minutes".into());
            }
            sleep(Duration::from_millis(1)).await;
        }
        let time = started.elapsed();
        stop.cancel();
        task.await??;
        Ok(time)
    }
}

fn name() -> Result<ConsumerName, Failed> {
    Ok(ConsumerName::new(CONSUMER)?)
}

fn backlog(first: usize, messages: usize) -> Backlog {
    let feed = Feed { first, ..Feed::fresh(Work::Insert) };
    Backlog::new(messages, Box::new(move |n| feed.message(n)))
}

/// All of it, over so many messages a round.
pub(crate) async fn all(url: &str, rounds: usize, messages: usize) -> Result<Vec<Table>, Failed> {
    let mut tables = rates(url, rounds, messages).await?;
    let [alone, snapshot] = [turnovers(url, messages, false).await?, turnovers(url, messages, true).await?];
    let growth = |of: &[Turnover]| {
        of.get(SETTLED).zip(of.last()).map_or(f64::NAN, |(third, last)| last.megabytes / third.megabytes)
    };
    let line = |name: &str, value| Line { name: name.to_owned(), rounds: vec![value] };
    let sizes =
        vec![line(GROWTH, growth(&alone)), line("the same, a snapshot open since before the first", growth(&snapshot))];
    tables.push(Table::print("inbox-size", "The inbox over six turnovers: table and index", "ratio", sizes));
    let look = |of: &[Turnover]| of.last().map_or(f64::NAN, |last| last.look);
    let looks = vec![line("a look in the last turnover, no snapshot", look(&alone)), line(LOOK, look(&snapshot))];
    tables.push(Table::print("inbox-look", "A look at what is next", "milliseconds", looks));
    postgres::remove(&mut PgConnection::connect(url).await?).await?;
    Ok(tables)
}

async fn rates(url: &str, rounds: usize, messages: usize) -> Result<Vec<Table>, Failed> {
    let names = [DIRECT_SET, DIRECT_EACH, RECEIVE, PROCESS_SET, PROCESS_EACH, BOTH_SET, BOTH_EACH];
    let mut rates = names.map(Line::new);
    let [mut payload, mut direct] = [BEYOND_PAYLOAD, BEYOND_DIRECT].map(Line::new);
    let mut statements = [RECEIVE, PROCESS_SET].map(Line::new);
    for _ in 0..rounds {
        let mut logs = [0.0; 2];
        for (place, shape) in [Shape::Set, Shape::Each].into_iter().enumerate() {
            let mut bench = Bench::fresh(url).await?;
            let took = bench
                .took(messages, async |bench: &Bench<'_>| bench.work(backlog(0, messages), shape, messages).await)
                .await?;
            rates[place].note(messages, took.time);
            logs[place] = took.log;
        }
        for (place, shape) in [Shape::Set, Shape::Each].into_iter().enumerate() {
            let mut bench = Bench::fresh(url).await?;
            let received = bench.took(messages, async |bench: &Bench<'_>| bench.receive(0, messages).await).await?;
            let worked = bench
                .took(messages, async |bench: &Bench<'_>| bench.work(bench.source()?, shape, messages).await)
                .await?;
            rates[3 + place].note(messages, worked.time);
            direct.rounds.push(worked.log - logs[place]);
            if shape == Shape::Set {
                rates[2].note(messages, received.time);
                payload.rounds.push(received.log - body(0).len() as f64);
                statements[0].rounds.push(received.statements);
                statements[1].rounds.push(worked.statements);
            }
        }
        for (place, shape) in [Shape::Set, Shape::Each].into_iter().enumerate() {
            let bench = Bench::fresh(url).await?;
            // So that the worker finds it.
            bench.inbox.open(&name()?, Some("backlog"), idem_core::inbox::INBOX_SLOTS).await?;
            let (received, worked) =
                tokio::join!(bench.receive(0, messages), bench.work(bench.source()?, shape, messages));
            received?;
            rates[5 + place].note(messages, worked?);
        }
    }
    let title =
        format!("The inbox: {messages} messages with a row of 200-byte JSON each; {rounds} rounds, interleaved");
    let log = "The inbox: the server's log. Other clients of the server write to it too".to_owned();
    Ok(vec![
        Table::print("inbox-rate", title, RATE, rates.to_vec()),
        Table::print("inbox-log", log, "bytes a message", vec![payload, direct]),
        Table::print("inbox-statements", "The inbox: statements on it", "for a thousand messages", statements.to_vec()),
    ])
}

/// One turnover: the size of the table and its index, and the time of a look at what is next.
struct Turnover {
    megabytes: f64,
    look: f64,
}

/// Receives and processes so many messages, six times, with the vacuum that autovacuum would do by then.
async fn turnovers(url: &str, messages: usize, is_open: bool) -> Result<Vec<Turnover>, Failed> {
    let mut bench = Bench::fresh(url).await?;
    let mut reader = PgConnection::connect(url).await?;
    if is_open {
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1").execute(&mut reader).await?;
    }
    let mut turnovers = Vec::new();
    for turnover in 0..TURNOVERS {
        bench.receive(turnover * messages, messages).await?;
        bench.inbox.millis_a_look();
        bench.work(bench.source()?, Shape::Set, messages).await?;
        let look = bench.inbox.millis_a_look();
        sqlx::raw_sql(AssertSqlSafe(format!("VACUUM {RECORDS}.inbox"))).execute(&mut bench.connection).await?;
        let size = format!("SELECT pg_total_relation_size('{RECORDS}.inbox'::regclass)::float8 / 1e6");
        let megabytes = sqlx::query_scalar(AssertSqlSafe(size)).fetch_one(&mut bench.connection).await?;
        turnovers.push(Turnover { megabytes, look });
        bench.store = Arc::new(records(bench.url, RECORDS)?);
    }
    reader.close().await?;
    let each = |value: fn(&Turnover) -> f64| turnovers.iter().map(value).collect::<Vec<f64>>();
    let name = if is_open { "a snapshot open" } else { "no snapshot" };
    println!("\n{TURNOVERS} turnovers of {messages} messages, {name}");
    println!("  table and index, MB:        {:>7.1?}", each(|turnover| turnover.megabytes));
    println!("  a look at what is next, ms: {:>7.2?}", each(|turnover| turnover.look));
    Ok(turnovers)
}
