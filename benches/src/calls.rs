//! One message a call: what an endpoint or a receive loop of one's own does, at 1, 16 and 64 callers.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::{Decision, DedupConsumer, Effects, Handler, Store};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::{sync::Mutex, task::JoinSet, time::Instant};

use crate::{
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

#[derive(Clone, Copy)]
enum Caller {
    Kept,
    KeptOnTokioPostgres,
    Pool,
    PgBench(Claims),
    Idem { is_shared: bool },
    OnTokioPostgres { is_shared: bool },
}

const CALLERS: [(&str, Caller); 10] = [
    (KEPT, Caller::Kept),
    (KEPT_ON_TOKIO_POSTGRES, Caller::KeptOnTokioPostgres),
    (POOL, Caller::Pool),
    ("(c) pgbench: begin, handler, commit", Caller::PgBench(Claims::Nothing)),
    (PGBENCH, Caller::PgBench(Claims::AsTheTextbook)),
    ("(c) pgbench: the statements of idem", Caller::PgBench(Claims::AsIdem)),
    (IDEM, Caller::Idem { is_shared: false }),
    (ON_TOKIO_POSTGRES, Caller::OnTokioPostgres { is_shared: false }),
    (SHARED, Caller::Idem { is_shared: true }),
    (SHARED_ON_TOKIO_POSTGRES, Caller::OnTokioPostgres { is_shared: true }),
];

pub(crate) fn table(callers: usize) -> String {
    format!("alone-{callers}")
}

pub(crate) async fn all(at: At<'_>) -> Result<Vec<Table>, Box<dyn Error>> {
    let mut tables = Vec::new();
    for callers in [1, 16, 64] {
        tables.extend(compare(callers, at).await?);
    }
    Ok(tables)
}

async fn compare(callers: usize, (url, rounds, time): At<'_>) -> Result<[Table; 3], Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut rates: Vec<Line> = CALLERS.iter().map(|(name, _)| Line::new(*name)).collect();
    let (mut wal, mut processor) = (rates.clone(), rates.clone());
    processor.retain(|line| !line.name.contains("pgbench"));
    for _ in 0..rounds {
        for (place, (name, caller)) in CALLERS.into_iter().enumerate() {
            fresh(&mut connection).await?;
            let (round, used) = caller.round(callers, url, time, &mut Meter(&mut connection)).await?;
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

/// What a round used, without what prepared it.
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

/// What this process has used of all processors, by a clock of 10 ms.
fn processor() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat names no program")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(10 * ticks))
}

impl Caller {
    async fn round(
        self,
        callers: usize,
        url: &str,
        time: Duration,
        meter: &mut Meter<'_>,
    ) -> Result<(Round, Used), Box<dyn Error>> {
        match self {
            Self::PgBench(claims) => {
                if claims == Claims::AsIdem {
                    store(url).await?;
                }
                meter.around(PgBench { clients: callers, claims }.round(Work::Insert, url, time)).await
            }
            Self::Kept => {
                let mut held = Vec::new();
                for _ in 0..callers {
                    held.push(Arc::new(Mutex::new(PgConnection::connect(url).await?)));
                }
                let call = move |caller: usize, n| {
                    let held = Arc::clone(&held[caller]);
                    async move {
                        ByHand::Textbook.transaction(held.lock().await.begin().await?, Work::Insert, customer(n)).await
                    }
                };
                calls(callers, time, meter, call).await
            }
            Self::KeptOnTokioPostgres => {
                let mut held = Vec::new();
                for _ in 0..callers {
                    held.push(Arc::new(Mutex::new(OnTokioPostgres::connect(url).await?)));
                }
                let call = move |caller: usize, n| {
                    let held = Arc::clone(&held[caller]);
                    async move { held.lock().await.insert(customer(n)).await }
                };
                calls(callers, time, meter, call).await
            }
            Self::Pool => {
                let pool: PgPool = PgPoolOptions::new().max_connections(u32::try_from(callers)?).connect(url).await?;
                let own = pool.clone();
                let call = move |_, n| {
                    let pool = own.clone();
                    async move { ByHand::TextbookOnPool.transaction(pool.begin().await?, Work::Insert, customer(n)).await }
                };
                let round = calls(callers, time, meter, call).await;
                pool.close().await;
                round
            }
            Self::Idem { is_shared } => idem(store(url).await?, callers, is_shared, time, meter).await,
            Self::OnTokioPostgres { is_shared } => idem(tokio_store(url).await?, callers, is_shared, time, meter).await,
        }
    }
}

fn customer(n: usize) -> usize {
    n * 7_919 % CUSTOMERS
}

async fn idem<S: Store>(
    store: S,
    callers: usize,
    is_shared: bool,
    time: Duration,
    meter: &mut Meter<'_>,
) -> Result<(Round, Used), Box<dyn Error>>
where
    Work: Handler<S>,
{
    let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).handler(Work::Insert);
    let consumer = if is_shared { consumer.shares_units(64) } else { consumer };
    let consumer = consumer.lanes(callers).build()?;
    consumer.start().await?;
    let feed = Feed::fresh(Work::Insert);
    calls(callers, time, meter, move |_, n| {
        let (consumer, message) = (consumer.clone(), feed.message(n));
        async move {
            match consumer.process_one(message).await? {
                (_, Decision::Processed(_)) => Ok::<_, Box<dyn Error + Send + Sync>>(()),
                (_, other) => Err(format!("{other:?}").into()),
            }
        }
    })
    .await
}

/// Calls side by side, each caller one after the other, for the time: after a third of it that nothing counts, in which
/// connections are made, statements are prepared and the server learns what it keeps of each session.
async fn calls<C, E>(
    callers: usize,
    time: Duration,
    meter: &mut Meter<'_>,
    call: impl Fn(usize, usize) -> C + Send + Sync + 'static,
) -> Result<(Round, Used), Box<dyn Error>>
where
    C: Future<Output = Result<(), E>> + Send,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let call = Arc::new(call);
    let warmed = side_by_side(callers, WARMING, time / 3, &call).await?;
    let (round, used) = meter.around(side_by_side(callers, 0, time, &call)).await?;
    Ok((Round { effects: warmed.messages + round.messages, ..round }, used))
}

/// The number of the first message that nothing counts: none of those that count comes as far.
const WARMING: usize = 1 << 32;

/// What the callers get done in the time, with messages of these numbers and up.
async fn side_by_side<C, E>(
    callers: usize,
    first: usize,
    time: Duration,
    call: &Arc<impl Fn(usize, usize) -> C + Send + Sync + 'static>,
) -> Result<Round, Box<dyn Error>>
where
    C: Future<Output = Result<(), E>> + Send,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let (started, mut running) = (Instant::now(), JoinSet::new());
    for caller in 0..callers {
        let call = Arc::clone(call);
        running.spawn(async move {
            let mut done = 0;
            while started.elapsed() < time {
                call(caller, first + caller + done * callers).await.map_err(Into::into)?;
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
