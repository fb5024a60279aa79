//! The work *insert* with a network between client and PostgreSQL: a proxy holds every answer back, so that each round
//! trip takes that much longer.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use idem_core::{
    BatchAnswer, BatchHandler, Decision, DedupConsumer, DedupConsumerBuilder, Effects, Handler, HandlerError, Handlers,
    Message, Store, Tx,
};
use idem_tokio_postgres::{
    Postgres, PostgresOptions,
    tokio_postgres::{Client, Config, NoTls, config::Host},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    postgres::{Insert, body, fresh},
    report::{self, Case},
};

/// Measured beside each other for each delay.
const CASES: [&str; 8] = [
    "by hand: begin, insert, commit, one connection",
    "by hand: the bare statement, autocommit, one connection",
    "by hand: begin, insert, commit, four connections",
    "idem-sqlx in order, one lane of 100",
    "idem-tokio-postgres in order, one lane of 100",
    "idem-tokio-postgres pipelined, one lane of 100",
    "idem-tokio-postgres pipelined, four lanes of 500",
    "idem-tokio-postgres, set-based handler, one lane of 500",
];

/// How long one round of one case takes, about: those that wait for each statement get fewer messages.
const ROUND: Duration = Duration::from_secs(2);

fn message() -> Message {
    Message::new(body(1)).with_header("idempotencykey", Uuid::new_v4().to_string())
}

impl Handler<Postgres> for Insert {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, Postgres>) -> Result<(), HandlerError> {
        let body = std::str::from_utf8(message.payload().ok_or("no payload")?)?;
        tx.connection().execute(TEXT_INSERT, &[&Uuid::new_v4(), &body]).await?;
        Ok(())
    }
}

impl BatchHandler<Postgres> for Insert {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, Postgres>,
    ) -> Result<BatchAnswer, HandlerError> {
        let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::new_v4()).collect();
        let body = |message: &&Message| message.payload().map(|body| String::from_utf8_lossy(body).into_owned());
        let bodies: Vec<Option<String>> = messages.iter().map(body).collect();
        let rows =
            "INSERT INTO idem_bench.orders SELECT id, body::jsonb FROM unnest($1::uuid[], $2::text[]) AS o (id, body)";
        tx.connection().execute(rows, &[&ids, &bodies]).await?;
        Ok(BatchAnswer::all_handled())
    }
}

/// The same text with a parameter that a driver sends as a text.
const TEXT_INSERT: &str = "INSERT INTO idem_bench.orders (id, body) VALUES ($1, $2::text::jsonb)";

/// How many messages there were, and how long they took.
type Measured = Result<(usize, Duration), Box<dyn Error>>;

/// Runs until the time is over, on this many connections.
async fn by_hand(config: &Config, connections: usize, transaction: bool) -> Measured {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        clients.push(client);
    }
    let (started, mut done) = (Instant::now(), 0);
    let one = |client: Client| tokio::spawn(async move { by_hand_on(&client, transaction).await });
    let loops: Vec<_> = clients.into_iter().map(one).collect();
    for one in loops {
        done += one.await??;
    }
    Ok((done, started.elapsed()))
}

async fn by_hand_on(client: &Client, transaction: bool) -> Result<usize, idem_tokio_postgres::tokio_postgres::Error> {
    let (insert, end, mut done) = (client.prepare(TEXT_INSERT).await?, Instant::now() + ROUND, 0);
    while Instant::now() < end {
        if transaction {
            client.batch_execute("BEGIN").await?;
        }
        client.execute(&insert, &[&Uuid::new_v4(), &body(1)]).await?;
        if transaction {
            client.batch_execute("COMMIT").await?;
        }
        done += 1;
    }
    Ok(done)
}

/// Hands over batches in as many loops as there are lanes, which is what a worker does once it is warm.
async fn idem<S: Store>(consumer: DedupConsumerBuilder<S>, lanes: usize, batch: usize) -> Measured {
    let consumer = consumer.effects(Effects::InTransaction).lanes(lanes).build()?;
    let batch = move || (0..batch).map(|_| message()).collect::<Vec<_>>();
    // Registers and connects.
    consumer.process(batch()).await?;
    let started = Instant::now();
    let (done, end) = (Arc::new(AtomicUsize::new(0)), started + ROUND);
    let loops: Vec<_> = (0..lanes)
        .map(|_| {
            let (consumer, done) = (consumer.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                while Instant::now() < end {
                    let decisions = consumer.process(batch()).await?;
                    done.fetch_add(
                        decisions.iter().filter(|one| matches!(one, Decision::Processed(_))).count(),
                        Ordering::Relaxed,
                    );
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
async fn round(case: usize, url: &str, config: &Config) -> Measured {
    // Both stores keep the same tables.
    let sqlx = crate::postgres::store(url).await?;
    let store = PostgresOptions::new(config.clone()).schema("idem_bench_records".parse()?).build()?;
    let consumer = || DedupConsumer::builder(store.clone(), "bench");
    match case {
        0 => by_hand(config, 1, true).await,
        1 => by_hand(config, 1, false).await,
        2 => by_hand(config, 4, true).await,
        3 => idem(DedupConsumer::builder(sqlx, "bench").handler(Insert), 1, 100).await,
        4 => idem(consumer().handler(Insert), 1, 100).await,
        5 => idem(consumer().handler(Insert).handlers(Handlers::pipelined()), 1, 100).await,
        6 => idem(consumer().handler(Insert).handlers(Handlers::Pipelined { at_once: 500 }), 4, 500).await,
        _ => idem(consumer().batch_handler(Insert), 1, 500).await,
    }
}

/// Every case at every delay, in milliseconds.
pub(crate) async fn insert(url: &str, rounds: usize, delays: &[f64]) -> Result<Value, Box<dyn Error>> {
    let mut tables = Vec::new();
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect(url).await?;
    for delay in delays {
        let config = proxy(url, Duration::from_secs_f64(delay / 1000.0))?;
        let measured = round_trip(&config).await?;
        let through = format!("postgres://idem@127.0.0.1:{}/idem", config.get_ports().first().unwrap_or(&0));
        let mut cases = CASES.map(Case::new);
        for _ in 0..rounds {
            for (number, case) in cases.iter_mut().enumerate() {
                fresh(&mut admin).await?;
                let (messages, took) = round(number, &through, &config).await?;
                let rows: i64 =
                    sqlx::query_scalar("SELECT count(*) FROM idem_bench.orders").fetch_one(&mut admin).await?;
                // A batch before the clock starts is there too.
                if !(messages..=messages + 500).contains(&usize::try_from(rows)?) {
                    return Err(format!("{}: {rows} rows for {messages} messages", case.name).into());
                }
                case.note(messages, took);
            }
        }
        let title = format!("PostgreSQL, insert, {delay} ms added to each round trip, which takes {measured:.2} ms");
        tables.push(report::print(&title, &cases));
    }
    sqlx::raw_sql("DROP SCHEMA idem_bench CASCADE; DROP SCHEMA idem_bench_records CASCADE").execute(&mut admin).await?;
    Ok(json!({ "title": "PostgreSQL, insert, over a network", "delays": tables }))
}

/// How to reach the server through a proxy that holds each of its answers back for `delay`. It has threads of its own,
/// because the runtime's timer rounds up to whole milliseconds and one more.
fn proxy(url: &str, delay: Duration) -> Result<Config, Box<dyn Error>> {
    let server: Config = url.parse()?;
    let Some(Host::Tcp(host)) = server.get_hosts().first() else { return Err("the server is reached over TCP".into()) };
    let address = format!("{host}:{}", server.get_ports().first().copied().unwrap_or(5432));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut config = Config::new();
    config.host("127.0.0.1").port(listener.local_addr()?.port());
    config.user(server.get_user().unwrap_or("idem")).dbname(server.get_dbname().unwrap_or("idem"));
    // They end with their connections, and the process ends the listener.
    thread::spawn(move || {
        for client in listener.incoming() {
            let _ = client.and_then(|client| pass(client, TcpStream::connect(&address)?, delay));
        }
    });
    Ok(config)
}

fn pass(client: TcpStream, server: TcpStream, delay: Duration) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = (client.try_clone()?, client);
    let (mut from_server, mut to_server) = (server.try_clone()?, server);
    let (queue, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Both)
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer) {
            let _ = queue.send((Instant::now() + delay, buffer[..read].to_vec()));
        }
    });
    thread::spawn(move || {
        while let Ok((at, bytes)) = due.recv() {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() {
                break;
            }
        }
        to_client.shutdown(Shutdown::Both)
    });
    Ok(())
}

/// What one round trip takes through the proxy, in milliseconds: the median of a hundred.
async fn round_trip(config: &Config) -> Result<f64, Box<dyn Error>> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let statement = client.prepare("SELECT 1").await?;
    let mut times = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        client.query_one(&statement, &[]).await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[50])
}
