//! The works *insert* and *purchase* with a network between client and PostgreSQL: the loops that people write, and
//! handlers in order, at once, and set-based.

mod proxy;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem_core::{Concurrency, DedupConsumer, Effects, Message, Store, consumer::DedupConsumerBuilder};
use idem_tokio_postgres::{
    PostgresOptions,
    tokio_postgres::{self, Client, Config, NoTls},
};
use uuid::Uuid;

use self::proxy::{proxy, round_trip};
use crate::{
    cases::At,
    postgres::{Round, fresh, remove, store},
    report::{Line, RATE, Table},
    work::{CUSTOMERS, Work},
};

/// The names of the lines that targets are about.
pub(crate) const BY_HAND: &str = "by hand: begin, statements, commit, one connection";
pub(crate) const IN_ORDER: &str = "in order, one lane of 100";
pub(crate) const AUTOCOMMIT: &str = "by hand: the bare statements, autocommit, one connection";
pub(crate) const PIPELINED: &str = "pipelined, one lane of 100";
pub(crate) const SET: &str = "set-based handler, one lane of 500";

/// Measured beside each other for each delay and work. Ratios are against the first.
const CASES: [&str; 11] = [
    BY_HAND,
    AUTOCOMMIT,
    "by hand: begin, statements, commit, four connections",
    "idem-sqlx in order, one lane of 100",
    IN_ORDER,
    "in order, four lanes of 100",
    PIPELINED,
    "pipelined, four lanes of 100",
    "pipelined, four lanes of 500",
    SET,
    "set-based handler, four lanes of 500",
];

type Measured = Result<Round, Box<dyn Error>>;

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
async fn by_hand(work: Work, config: &Config, connections: usize, transaction: bool, time: Duration) -> Measured {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        clients.push(client);
    }
    let (started, mut done) = (Instant::now(), 0);
    let one = |(lane, client): (usize, Client)| {
        let customers = customers(lane, connections);
        tokio::spawn(async move { by_hand_on(work, &client, customers, transaction, time).await })
    };
    let loops: Vec<_> = clients.into_iter().enumerate().map(one).collect();
    for one in loops {
        done += one.await??;
    }
    Ok(Round { messages: done, took: started.elapsed(), effects: done })
}

async fn by_hand_on(
    work: Work,
    client: &Client,
    mut customer: impl FnMut() -> usize,
    transaction: bool,
    time: Duration,
) -> Result<usize, tokio_postgres::Error> {
    let (statements, end, mut done) = (Work::prepare(client).await?, Instant::now() + time, 0);
    while Instant::now() < end {
        if transaction {
            client.batch_execute("BEGIN").await?;
        }
        work.run_prepared(client, &statements, customer()).await?;
        if transaction {
            client.batch_execute("COMMIT").await?;
        }
        done += 1;
    }
    Ok(done)
}

/// A purchase keeps the messages of one customer in turn, as where lanes are by key.
fn message(work: Work, customer: usize) -> Message {
    let message = work.message(customer, Uuid::new_v4().to_string());
    match work {
        Work::Insert => message,
        Work::Purchase => message.with_ordering_key(Work::lane_of(customer)),
    }
}

/// Hands over batches in as many loops as there are lanes, which is what a worker does once it is warm.
async fn idem<S: Store>(
    work: Work,
    consumer: DedupConsumerBuilder<S>,
    lanes: usize,
    batch: usize,
    time: Duration,
) -> Measured {
    let consumer = consumer.effects(Effects::InTransaction).lanes(lanes).build()?;
    // Registers and connects.
    consumer.process(vec![message(work, 0)]).await?;
    let started = Instant::now();
    let (done, end) = (Arc::new(AtomicUsize::new(1)), started + time);
    let loops: Vec<_> = (0..lanes)
        .map(|lane| {
            let (consumer, done, mut customer) = (consumer.clone(), Arc::clone(&done), customers(lane, lanes));
            tokio::spawn(async move {
                while Instant::now() < end {
                    let messages: Vec<Message> = (0..batch).map(|_| message(work, customer())).collect();
                    let decisions = consumer.process(messages).await?;
                    let processed = decisions.iter().filter(|decided| decided.decision.is_processed()).count();
                    done.fetch_add(processed, Ordering::Relaxed);
                }
                Ok::<_, idem_core::StoreError>(())
            })
        })
        .collect();
    for one in loops {
        one.await??;
    }
    let done = done.load(Ordering::Relaxed);
    Ok(Round { messages: done, took: started.elapsed(), effects: done })
}

/// One round of one case.
async fn round(work: Work, case: usize, url: &str, config: &Config, time: Duration) -> Measured {
    // Both stores keep the same tables.
    let sqlx = store(url).await?;
    let store = PostgresOptions::new(config.clone()).schema("idem_bench_records".parse()?).build()?;
    let consumer = || DedupConsumer::builder(store.clone(), "bench");
    let pipelined = |at_once| consumer().handler(work).handlers(Concurrency::Pipelined { at_once });
    match case {
        0 => by_hand(work, config, 1, true, time).await,
        1 => by_hand(work, config, 1, false, time).await,
        2 => by_hand(work, config, 4, true, time).await,
        3 => idem(work, DedupConsumer::builder(sqlx, "bench").handler(work), 1, 100, time).await,
        4 => idem(work, consumer().handler(work), 1, 100, time).await,
        5 => idem(work, consumer().handler(work), 4, 100, time).await,
        6 => idem(work, pipelined(100), 1, 100, time).await,
        7 => idem(work, pipelined(100), 4, 100, time).await,
        8 => idem(work, pipelined(500), 4, 500, time).await,
        9 => idem(work, consumer().batch_handler(work), 1, 500, time).await,
        _ => idem(work, consumer().batch_handler(work), 4, 500, time).await,
    }
}

/// One table of all delays: the median of each case, and how many times the first that is.
fn print_medians(work: Work, delays: &[f64], tables: &[Table]) {
    let columns = |column: &dyn Fn(usize) -> String| -> String {
        (0..delays.len()).map(|at| format!("{:>20}", column(at))).collect()
    };
    println!("\nPostgreSQL, {}: messages a second, and how many times the first line", work.name());
    println!("  {:<58}{}", "", columns(&|at| format!("{} ms added", delays[at])));
    for number in 0..tables[0].lines.len() {
        let median = |at: usize| {
            let lines = &tables[at].lines;
            let (median, first) = (lines[number].median(), lines[0].median());
            format!("{median:.0} {:>6.1}x", median / first)
        };
        println!("  {:<58}{}", tables[0].lines[number].name, columns(&median));
    }
}

/// Every case.
pub(crate) const ALL: [usize; CASES.len()] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// Those that targets are about.
pub(crate) const FEW: [usize; 4] = [0, 4, 6, 9];

/// These cases of both works at every delay, in milliseconds.
pub(crate) async fn works(
    (url, rounds, time): At<'_>,
    delays: &[f64],
    cases: &[usize],
) -> Result<Vec<Table>, Box<dyn Error>> {
    let mut all = Vec::new();
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect(url).await?;
    for work in Work::ALL {
        let mut tables = Vec::new();
        for delay in delays {
            let config = proxy(url, Duration::from_secs_f64(delay / 1000.0))?;
            let measured = round_trip(&config).await?;
            let through = format!("postgres://idem@127.0.0.1:{}/idem", config.get_ports().first().unwrap_or(&0));
            let mut lines: Vec<Line> = cases.iter().map(|case| Line::new(CASES[*case])).collect();
            for _ in 0..rounds {
                for (case, line) in cases.iter().zip(&mut lines) {
                    fresh(&mut admin).await?;
                    let round = round(work, *case, &through, &config, time).await?;
                    let effects: i64 = sqlx::query_scalar(work.counted()).fetch_one(&mut admin).await?;
                    if usize::try_from(effects)? != round.effects {
                        return Err(format!("{}: {effects} effects of {} messages", line.name, round.effects).into());
                    }
                    line.note(round.messages, round.took);
                }
            }
            let name = work.name();
            let title =
                format!("PostgreSQL, {name}, {delay} ms added to each round trip, which takes {measured:.2} ms");
            tables.push(Table::print(format!("network-{name}-{delay}"), title, RATE, lines));
        }
        print_medians(work, delays, &tables);
        all.extend(tables);
    }
    remove(&mut admin).await?;
    Ok(all)
}
