//! The works *insert* and *purchase* with a network between client and PostgreSQL: the loops that people write, and
//! handlers in order, at once, and set-based.

mod proxy;
mod work;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_core::{Decision, DedupConsumer, DedupConsumerBuilder, Effects, Handlers, Message, Store};
use idem_tokio_postgres::{
    PostgresOptions,
    tokio_postgres::{self, Client, Config, NoTls},
};
use serde_json::{Value, json};

use self::{
    proxy::{proxy, round_trip},
    work::{CUSTOMERS, TABLES, Work},
};
use crate::{
    postgres::fresh,
    report::{self, Case},
};

/// Measured beside each other for each delay and work. Ratios are against the first.
const CASES: [&str; 11] = [
    "by hand: begin, statements, commit, one connection",
    "by hand: the bare statements, autocommit, one connection",
    "by hand: begin, statements, commit, four connections",
    "idem-sqlx in order, one lane of 100",
    "in order, one lane of 100",
    "in order, four lanes of 100",
    "pipelined, one lane of 100",
    "pipelined, four lanes of 100",
    "pipelined, four lanes of 500",
    "set-based handler, one lane of 500",
    "set-based handler, four lanes of 500",
];

/// How long one round of one case takes, about: what waits for each statement gets fewer messages.
const ROUND: Duration = Duration::from_secs(2);

/// How many messages there were, and how long they took.
type Measured = Result<(usize, Duration), Box<dyn Error>>;

/// The customers of one of several lanes, or connections, one after the other: no two have one in common, as where lanes
/// are by key.
fn customers(lane: usize, lanes: usize) -> impl FnMut() -> usize + Send + 'static {
    let mut n = 0;
    move || {
        n += 1;
        // A step without a factor in common with their number, so that all have their turn.
        lane + lanes * (n * 7919 % (CUSTOMERS / lanes))
    }
}

/// Runs until the time is over, on this many connections.
async fn by_hand(work: Work, config: &Config, connections: usize, transaction: bool) -> Measured {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        clients.push(client);
    }
    let (started, mut done) = (Instant::now(), 0);
    let one = |(lane, client): (usize, Client)| {
        let customers = customers(lane, connections);
        tokio::spawn(async move { by_hand_on(work, &client, customers, transaction).await })
    };
    let loops: Vec<_> = clients.into_iter().enumerate().map(one).collect();
    for one in loops {
        done += one.await??;
    }
    Ok((done, started.elapsed()))
}

async fn by_hand_on(
    work: Work,
    client: &Client,
    mut customer: impl FnMut() -> usize,
    transaction: bool,
) -> Result<usize, tokio_postgres::Error> {
    let (statements, end, mut done) = (work.prepare(client).await?, Instant::now() + ROUND, 0);
    while Instant::now() < end {
        if transaction {
            client.batch_execute("BEGIN").await?;
        }
        work.run(client, &statements, customer()).await?;
        if transaction {
            client.batch_execute("COMMIT").await?;
        }
        done += 1;
    }
    Ok(done)
}

/// Hands over batches in as many loops as there are lanes, which is what a worker does once it is warm.
async fn idem<S: Store>(work: Work, consumer: DedupConsumerBuilder<S>, lanes: usize, batch: usize) -> Measured {
    let consumer = consumer.effects(Effects::InTransaction).lanes(lanes).build()?;
    // Registers and connects.
    consumer.process(vec![work.message(0)]).await?;
    let started = Instant::now();
    let (done, end) = (Arc::new(AtomicUsize::new(1)), started + ROUND);
    let loops: Vec<_> = (0..lanes)
        .map(|lane| {
            let (consumer, done, mut customer) = (consumer.clone(), Arc::clone(&done), customers(lane, lanes));
            tokio::spawn(async move {
                while Instant::now() < end {
                    let messages: Vec<Message> = (0..batch).map(|_| work.message(customer())).collect();
                    let decisions = consumer.process(messages).await?;
                    let processed = decisions.iter().filter(|one| matches!(one, Decision::Processed(_))).count();
                    done.fetch_add(processed, Ordering::Relaxed);
                }
                Ok::<_, idem_core::StoreError>(())
            })
        })
        .collect();
    for one in loops {
        one.await??;
    }
    Ok((done.load(Ordering::Relaxed), started.elapsed()))
}

/// One round of one case.
async fn round(work: Work, case: usize, url: &str, config: &Config) -> Measured {
    // Both stores keep the same tables.
    let sqlx = crate::postgres::store(url).await?;
    let store = PostgresOptions::new(config.clone()).schema("idem_bench_records".parse()?).build()?;
    let consumer = || DedupConsumer::builder(store.clone(), "bench");
    let pipelined = |at_once| consumer().handler(work).handlers(Handlers::Pipelined { at_once });
    match case {
        0 => by_hand(work, config, 1, true).await,
        1 => by_hand(work, config, 1, false).await,
        2 => by_hand(work, config, 4, true).await,
        3 => idem(work, DedupConsumer::builder(sqlx, "bench").handler(work), 1, 100).await,
        4 => idem(work, consumer().handler(work), 1, 100).await,
        5 => idem(work, consumer().handler(work), 4, 100).await,
        6 => idem(work, pipelined(100), 1, 100).await,
        7 => idem(work, pipelined(100), 4, 100).await,
        8 => idem(work, pipelined(500), 4, 500).await,
        9 => idem(work, consumer().batch_handler(work), 1, 500).await,
        _ => idem(work, consumer().batch_handler(work), 4, 500).await,
    }
}

/// A delay in milliseconds, and what was measured at it.
type At = (f64, [Case; CASES.len()]);

/// One table of all delays: the median of each case, and how many times the first that is.
fn print_medians(work: Work, measured_at: &[At]) {
    let columns = |column: &dyn Fn(&At) -> String| -> String {
        measured_at.iter().map(|at| format!("{:>20}", column(at))).collect()
    };
    println!("\nPostgreSQL, {}: messages a second, and how many times the first line", work.name());
    println!("  {:<58}{}", "", columns(&|(delay, _)| format!("{delay} ms added")));
    for (number, name) in CASES.iter().enumerate() {
        let median = |(_, cases): &At| {
            let (median, first) = (cases[number].median(), cases[0].median());
            format!("{median:.0} {:>6.1}x", median / first)
        };
        println!("  {name:<58}{}", columns(&median));
    }
}

/// Every case of both works at every delay, in milliseconds.
pub(crate) async fn works(url: &str, rounds: usize, delays: &[f64]) -> Result<Value, Box<dyn Error>> {
    let mut tables = Vec::new();
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect(url).await?;
    for work in Work::ALL {
        let mut measured_at = Vec::new();
        for delay in delays {
            let config = proxy(url, Duration::from_secs_f64(delay / 1000.0))?;
            let measured = round_trip(&config).await?;
            let through = format!("postgres://idem@127.0.0.1:{}/idem", config.get_ports().first().unwrap_or(&0));
            let mut cases = CASES.map(Case::new);
            for _ in 0..rounds {
                for (number, case) in cases.iter_mut().enumerate() {
                    fresh(&mut admin).await?;
                    sqlx::raw_sql(TABLES).execute(&mut admin).await?;
                    let (messages, took) = round(work, number, &through, &config).await?;
                    let effects: i64 = sqlx::query_scalar(work.counted()).fetch_one(&mut admin).await?;
                    if usize::try_from(effects)? != messages {
                        return Err(format!("{}: {effects} effects of {messages} messages", case.name).into());
                    }
                    case.note(messages, took);
                }
            }
            let name = work.name();
            let title =
                format!("PostgreSQL, {name}, {delay} ms added to each round trip, which takes {measured:.2} ms");
            tables.push(report::print(&title, &cases));
            measured_at.push((*delay, cases));
        }
        print_medians(work, &measured_at);
    }
    sqlx::raw_sql("DROP SCHEMA idem_bench CASCADE; DROP SCHEMA idem_bench_records CASCADE").execute(&mut admin).await?;
    Ok(json!({ "title": "PostgreSQL over a network", "tables": tables }))
}
