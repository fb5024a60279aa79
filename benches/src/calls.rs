//! One message a call: the load of an endpoint or of a user's own receive loop, at 1, 16 and 64 callers.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::{Decision, DedupConsumer, Effects, Handler, Store};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::{sync::Mutex, task::JoinSet, time::Instant};

use crate::{
    alone,
    by_hand::{ByHand, OnTokioPostgres},
    cases::At,
    feed::Feed,
    pgbench::{Claims, PgBench},
    postgres::{Round, fresh, remove, store, tokio_store},
    report::{Line, RATE, Table},
    work::{CUSTOMERS, Work},
};

/// The names of the lines that targets are about.
pub(crate) const KEPT: &str = "(b) textbook, connections that are kept";
pub(crate) const KEPT_ON_TOKIO_POSTGRES: &str = "(b) the same on tokio-postgres";
pub(crate) const POOL: &str = "(b) textbook, a pool of as many";
pub(crate) const PGBENCH: &str = "(c) pgbench: begin, claim, handler, commit";
pub(crate) const IDEM: &str = "idem, process_one";
pub(crate) const ON_TOKIO_POSTGRES: &str = "idem, process_one, on tokio-postgres";
pub(crate) const SHARED: &str = "idem, process_one, units shared";
pub(crate) const SHARED_ON_TOKIO_POSTGRES: &str = "idem, process_one, units shared, on tokio-postgres";

/// A line of the table: pgbench by its own clock, all others by calls.
#[derive(Clone, Copy)]
enum Measured {
    PgBench(Claims),
    Calls(Caller),
}

#[derive(Clone, Copy)]
enum Caller {
    Kept,
    KeptOnTokioPostgres,
    Pool,
    Idem { is_shared: bool },
    OnTokioPostgres { is_shared: bool },
}

const LINES: [(&str, Measured); 11] = [
    (KEPT, Measured::Calls(Caller::Kept)),
    (KEPT_ON_TOKIO_POSTGRES, Measured::Calls(Caller::KeptOnTokioPostgres)),
    (POOL, Measured::Calls(Caller::Pool)),
    ("(c) pgbench: the bare handler's statement", Measured::PgBench(Claims::Bare)),
    ("(c) pgbench: begin, handler, commit", Measured::PgBench(Claims::Nothing)),
    (PGBENCH, Measured::PgBench(Claims::AsTheTextbook)),
    ("(c) pgbench: the statements of idem", Measured::PgBench(Claims::AsIdem)),
    (IDEM, Measured::Calls(Caller::Idem { is_shared: false })),
    (ON_TOKIO_POSTGRES, Measured::Calls(Caller::OnTokioPostgres { is_shared: false })),
    (SHARED, Measured::Calls(Caller::Idem { is_shared: true })),
    (SHARED_ON_TOKIO_POSTGRES, Measured::Calls(Caller::OnTokioPostgres { is_shared: true })),
];

pub(crate) fn table(callers: usize) -> String {
    format!("alone-{callers}")
}

pub(crate) async fn all(at: At<'_>) -> Result<Vec<Table>, Box<dyn Error>> {
    let mut tables = Vec::new();
    for callers in [1, 16, 64] {
        tables.extend(compare(callers, at).await?);
    }
    tables.push(allocations(at.0).await?);
    Ok(tables)
}

async fn compare(callers: usize, (url, rounds, time): At<'_>) -> Result<[Table; 3], Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut rates: Vec<Line> = LINES.iter().map(|(name, _)| Line::new(*name)).collect();
    let (mut wal, mut processor) = (rates.clone(), rates.clone());
    processor.retain(|line| !line.name.contains("pgbench"));
    for _ in 0..rounds {
        for (place, (name, measured)) in LINES.into_iter().enumerate() {
            fresh(&mut connection).await?;
            let (round, used) = measured.round(callers, url, time, &mut Meter(&mut connection)).await?;
            let effects: i64 = sqlx::query_scalar(Work::Insert.counted()).fetch_one(&mut connection).await?;
            if usize::try_from(effects)? != round.effects {
                return Err(format!("{name}: {effects} effects of {} messages", round.effects).into());
            }
            rates[place].note(round.messages, round.took);
            wal[place].rounds.push(used.wal as f64 / round.messages as f64);
            if let Some(line) = processor.iter_mut().find(|line| line.name == name) {
                line.rounds.push(used.processor.as_secs_f64() * 1e6 / round.messages as f64);
            }
        }
    }
    remove(&mut connection).await?;
    let title = format!("PostgreSQL, insert of 200-byte JSON, one message a call, {callers} callers");
    let rounds = format!("{rounds} rounds of {:.1} s, interleaved", time.as_secs_f64());
    let (id, server) = (table(callers), "The same, the log that the server writes");
    Ok([
        Table::print(id.clone(), format!("{title}; {rounds}"), RATE, rates),
        Table::print(format!("{id}-wal"), server, "bytes a message", wal),
        Table::print(format!("{id}-client"), "The same, processor time of the client", "µs a message", processor),
    ])
}

/// The resources that a round used, without its preparation.
struct Used {
    wal: i64,
    processor: Duration,
}

struct Meter<'c>(&'c mut PgConnection);

impl Meter<'_> {
    async fn around<E>(
        &mut self,
        round: impl Future<Output = Result<Round, E>>,
    ) -> Result<(Round, Used), Box<dyn Error>>
    where
        Box<dyn Error>: From<E>,
    {
        let (wal, processor) = (self.written().await?, processor()?);
        let round = round.await?;
        let used = self::processor()?.saturating_sub(processor);
        Ok((round, Used { wal: self.written().await? - wal, processor: used }))
    }

    async fn written(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetch_one(&mut *self.0).await
    }
}

/// The time that this process has used of all processors, by a clock of 10 ms.
fn processor() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat names no program")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(10 * ticks))
}

impl Measured {
    async fn round(
        self,
        callers: usize,
        url: &str,
        time: Duration,
        meter: &mut Meter<'_>,
    ) -> Result<(Round, Used), Box<dyn Error>> {
        let caller = match self {
            Self::PgBench(claims) => {
                if claims == Claims::AsIdem {
                    store(url).await?;
                }
                return meter.around(PgBench { clients: callers, claims }.round(Work::Insert, url, time)).await;
            }
            Self::Calls(caller) => caller,
        };
        let ready = Arc::new(caller.ready(callers, url).await?);
        // A third of the time counts for nothing: connections are made in it, statements are prepared, and the server learns what
        // it keeps of each session.
        let warmed = side_by_side(callers, WARMING, time / 3, &ready).await?;
        let (round, used) = meter.around(side_by_side(callers, 0, time, &ready)).await?;
        Ok((Round { effects: warmed.messages + round.messages, ..round }, used))
    }
}

/// The connections or the engine that calls are made on, one message each.
enum Ready {
    Kept(Vec<Mutex<PgConnection>>),
    KeptOnTokioPostgres(Vec<Mutex<OnTokioPostgres>>),
    Pool(PgPool),
    Idem(DedupConsumer<idem_sqlx::PostgresStore>, Feed),
    OnTokioPostgres(DedupConsumer<idem_tokio_postgres::PostgresStore>, Feed),
}

impl Caller {
    async fn ready(self, callers: usize, url: &str) -> Result<Ready, Box<dyn Error>> {
        Ok(match self {
            Self::Kept => {
                let mut held = Vec::new();
                for _ in 0..callers {
                    held.push(Mutex::new(PgConnection::connect(url).await?));
                }
                Ready::Kept(held)
            }
            Self::KeptOnTokioPostgres => {
                let mut held = Vec::new();
                for _ in 0..callers {
                    held.push(Mutex::new(OnTokioPostgres::connect(url).await?));
                }
                Ready::KeptOnTokioPostgres(held)
            }
            Self::Pool => {
                Ready::Pool(PgPoolOptions::new().max_connections(u32::try_from(callers)?).connect(url).await?)
            }
            Self::Idem { is_shared } => {
                Ready::Idem(consumer(store(url).await?, callers, is_shared).await?, Feed::fresh(Work::Insert))
            }
            Self::OnTokioPostgres { is_shared } => {
                let consumer = consumer(tokio_store(url).await?, callers, is_shared).await?;
                Ready::OnTokioPostgres(consumer, Feed::fresh(Work::Insert))
            }
        })
    }
}

impl Ready {
    async fn call(&self, caller: usize, n: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
        let customer = n * 7_919 % CUSTOMERS;
        match self {
            Self::Kept(held) => {
                ByHand::Textbook.transaction(held[caller].lock().await.begin().await?, Work::Insert, customer).await?;
            }
            Self::KeptOnTokioPostgres(held) => held[caller].lock().await.insert(customer).await?,
            Self::Pool(pool) => {
                ByHand::TextbookOnPool.transaction(pool.begin().await?, Work::Insert, customer).await?;
            }
            Self::Idem(consumer, feed) => processed(&consumer.process_one(feed.message(n)).await?.decision)?,
            Self::OnTokioPostgres(consumer, feed) => processed(&consumer.process_one(feed.message(n)).await?.decision)?,
        }
        Ok(())
    }
}

fn processed(decision: &Decision) -> Result<(), String> {
    if matches!(decision, Decision::Processed(_)) { Ok(()) } else { Err(format!("{decision:?}")) }
}

async fn consumer<S: Store>(store: S, callers: usize, is_shared: bool) -> Result<DedupConsumer<S>, Box<dyn Error>>
where
    Work: Handler<S>,
{
    let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).handler(Work::Insert);
    let consumer = if is_shared { consumer.coalesce_calls(64) } else { consumer };
    let consumer = consumer.lanes(callers).build()?;
    consumer.start().await?;
    Ok(consumer)
}

/// The number of calls for the table of allocations.
const COUNTED: usize = 2_000;

/// The allocations of one caller, in a process of its own on one thread, because allocations are counted by thread.
async fn allocations(url: &str) -> Result<Table, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut lines = Vec::new();
    for (name, measured) in LINES {
        if let Measured::Calls(Caller::Idem { is_shared: true } | Caller::OnTokioPostgres { is_shared: true })
        | Measured::PgBench(_) = measured
        {
            continue;
        }
        fresh(&mut connection).await?;
        let measured = alone::run(&["calls-on-one-thread", name, url]).await?;
        let count = measured["allocations"].as_f64().ok_or("no allocations")?;
        lines.push(Line { name: name.to_owned(), rounds: vec![count / COUNTED as f64] });
    }
    remove(&mut connection).await?;
    let title = "The same by one caller, what the client allocates, the making of the message included";
    Ok(Table::print("alone-allocations", title, "allocations a message", lines))
}

/// Counts what calls allocate on this thread, once they are warm.
pub(crate) fn on_one_thread(name: &str, url: &str) -> Result<Value, Box<dyn Error>> {
    let named = LINES.into_iter().find(|(line, _)| *line == name);
    let Some((_, Measured::Calls(caller))) = named else { return Err(format!("{name} makes no calls").into()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ready = runtime.block_on(caller.ready(1, url))?;
    let all = async |first| {
        for n in first..first + COUNTED {
            ready.call(0, n).await?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    runtime.block_on(all(WARMING)).map_err(|error| error as Box<dyn Error>)?;
    let mut ended = Ok(());
    let counted = allocation_counter::measure(|| ended = runtime.block_on(all(0)));
    ended.map_err(|error| error as Box<dyn Error>)?;
    Ok(json!({ "allocations": counted.count_total }))
}

/// The number of the first message that nothing counts: none of those that count comes as far.
const WARMING: usize = 1 << 32;

/// The calls that are done in the time, with messages of these numbers and up.
async fn side_by_side(
    callers: usize,
    first: usize,
    time: Duration,
    ready: &Arc<Ready>,
) -> Result<Round, Box<dyn Error>> {
    let (started, mut running) = (Instant::now(), JoinSet::new());
    for caller in 0..callers {
        let ready = Arc::clone(ready);
        running.spawn(async move {
            let mut done = 0;
            while started.elapsed() < time {
                ready.call(caller, first + caller + done * callers).await?;
                done += 1;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(done)
        });
    }
    let mut messages = 0;
    while let Some(done) = running.join_next().await {
        messages += done?.map_err(|error| error as Box<dyn Error>)?;
    }
    Ok(Round { messages, took: started.elapsed(), effects: messages })
}
