//! One message a call: what an endpoint or a receive loop of one's own does, at 1, 16 and 64 callers.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::{Decision, DedupConsumer, Effects, Handler, Store};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::{sync::Mutex, task::JoinSet, time::Instant};

use crate::{
    by_hand::ByHand,
    cases::At,
    feed::Feed,
    pgbench::{Claims, PgBench},
    postgres::{Round, fresh, remove, store, tokio_store},
    report::{Line, RATE, Table},
    work::{CUSTOMERS, Work},
};

/// The names of the lines that targets are about.
pub(crate) const KEPT: &str = "(b) textbook, connections that are kept";
pub(crate) const POOL: &str = "(b) textbook, a pool of as many";
pub(crate) const PGBENCH: &str = "(c) pgbench: begin, claim, handler, commit";
pub(crate) const IDEM: &str = "idem, process_one";
pub(crate) const ON_TOKIO_POSTGRES: &str = "idem, process_one, on tokio-postgres";
pub(crate) const SHARED: &str = "idem, process_one, units shared";
pub(crate) const SHARED_ON_TOKIO_POSTGRES: &str = "idem, process_one, units shared, on tokio-postgres";

#[derive(Clone, Copy)]
enum Caller {
    Kept,
    Pool,
    PgBench(Claims),
    Idem { is_shared: bool },
    OnTokioPostgres { is_shared: bool },
}

const CALLERS: [(&str, Caller); 9] = [
    (KEPT, Caller::Kept),
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

async fn compare(callers: usize, (url, rounds, time): At<'_>) -> Result<[Table; 2], Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut rates: Vec<Line> = CALLERS.iter().map(|(name, _)| Line::new(*name)).collect();
    let mut wal = rates.clone();
    for _ in 0..rounds {
        for (place, (name, caller)) in CALLERS.into_iter().enumerate() {
            fresh(&mut connection).await?;
            let begun = written(&mut connection).await?;
            let round = caller.round(callers, url, time).await?;
            let bytes = written(&mut connection).await? - begun;
            let effects: i64 = sqlx::query_scalar(Work::Insert.counted()).fetch_one(&mut connection).await?;
            if usize::try_from(effects)? != round.effects {
                return Err(format!("{name}: {effects} effects of {} messages", round.effects).into());
            }
            rates[place].note(round.messages, round.took);
            wal[place].rounds.push(bytes as f64 / round.messages as f64);
        }
    }
    remove(&mut connection).await?;
    let title = format!("PostgreSQL, insert of 200-byte JSON, one message a call, {callers} callers");
    let rounds = format!("{rounds} rounds of {:.1} s, interleaved", time.as_secs_f64());
    Ok([
        Table::print(table(callers), format!("{title}; {rounds}"), RATE, rates),
        Table::print(
            format!("alone-{callers}-wal"),
            "The same, the log that the server writes",
            "bytes a message",
            wal,
        ),
    ])
}

async fn written(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetch_one(connection).await
}

impl Caller {
    async fn round(self, callers: usize, url: &str, time: Duration) -> Result<Round, Box<dyn Error>> {
        match self {
            Self::PgBench(claims) => PgBench { clients: callers, claims }.round(Work::Insert, url, time).await,
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
                calls(callers, time, call).await
            }
            Self::Pool => {
                let pool: PgPool = PgPoolOptions::new().max_connections(u32::try_from(callers)?).connect(url).await?;
                let own = pool.clone();
                let call = move |_, n| {
                    let pool = own.clone();
                    async move { ByHand::TextbookOnPool.transaction(pool.begin().await?, Work::Insert, customer(n)).await }
                };
                let round = calls(callers, time, call).await;
                pool.close().await;
                round
            }
            Self::Idem { is_shared } => idem(store(url).await?, callers, is_shared, time).await,
            Self::OnTokioPostgres { is_shared } => idem(tokio_store(url).await?, callers, is_shared, time).await,
        }
    }
}

fn customer(n: usize) -> usize {
    n * 7_919 % CUSTOMERS
}

async fn idem<S: Store>(store: S, callers: usize, is_shared: bool, time: Duration) -> Result<Round, Box<dyn Error>>
where
    Work: Handler<S>,
{
    let consumer = DedupConsumer::builder(store, "bench").effects(Effects::InTransaction).handler(Work::Insert);
    let consumer = if is_shared { consumer.shares_units(64) } else { consumer };
    let consumer = consumer.lanes(callers).build()?;
    consumer.start().await?;
    let feed = Feed::fresh(Work::Insert);
    calls(callers, time, move |_, n| {
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

/// Calls side by side, each caller one after the other, for the time.
async fn calls<C, E>(
    callers: usize,
    time: Duration,
    call: impl Fn(usize, usize) -> C + Send + Sync + 'static,
) -> Result<Round, Box<dyn Error>>
where
    C: Future<Output = Result<(), E>> + Send,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let (call, started, mut running) = (Arc::new(call), Instant::now(), JoinSet::new());
    for caller in 0..callers {
        let call = Arc::clone(&call);
        running.spawn(async move {
            let mut done = 0;
            while started.elapsed() < time {
                call(caller, caller + done * callers).await.map_err(Into::into)?;
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
