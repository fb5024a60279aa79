//! Measures idem beside what people write by hand, in one run. `./bench` runs it, and says what it takes.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a measurement prints, and waits while it samples"
)]

mod alone;
mod backlog;
mod by_hand;
mod calls;
mod cases;
mod drain;
mod engine;
mod events;
mod feed;
mod growth;
mod hot;
mod http;
mod inbox;
mod kafka;
mod latency;
mod network;
mod null;
mod options;
mod pgbench;
mod plots;
mod postgres;
mod relay;
mod report;
mod targets;
mod work;

use std::error::Error;

use self::{
    options::{Asked, Options},
    report::Table,
    work::Work,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Some((alone::FLAG, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        println!("{}", alone::measure(rest)?);
        return Ok(());
    }
    match options::parse(arguments)? {
        Asked::List => options::list(),
        Asked::Plots(file) => plots::write(&report::read(&file)?)?,
        Asked::Measure(options) => tokio::runtime::Runtime::new()?.block_on(run(&options))?,
    }
    Ok(())
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut tables = Vec::new();
    for case in &options.cases {
        tables.extend(measure(case, options).await?);
    }
    let targets = targets::print(&tables, options.is_whole);
    if let Some(file) = &options.json {
        report::write(file, &tables, &targets)?;
    }
    Ok(())
}

/// Measures one case; `options.rs` says what each is.
async fn measure(case: &str, options: &Options) -> Result<Vec<Table>, Box<dyn Error>> {
    let Options { rounds, size, .. } = *options;
    let url = if matches!(case, "engine" | "instructions" | "memory") { String::new() } else { url()? };
    let at = (url.as_str(), rounds, size.round);
    let http_at = (url.as_str(), rounds.min(size.http_rounds_max), size.http);
    Ok(match case {
        "engine" => engine::cost(rounds, size.engine).await?,
        "instructions" => vec![engine::instructions(20_000).await?],
        "memory" => {
            let title = format!("Resident memory over {} messages through the engine", size.memory);
            vec![alone::resident("memory", &title, &["engine", &size.memory.to_string()]).await?]
        }
        "insert" => vec![cases::work(Work::Insert, at).await?],
        "purchase" => vec![cases::work(Work::Purchase, at).await?],
        "alone" => calls::all(at).await?,
        "latency" => latency::single(&url, rounds, size.latency).await?,
        "hot-row" => hot::row(at).await?,
        "network-1ms" => network::works(at, &[1.0], &network::FEW).await?,
        "network" => network::works(at, &[0.0, 0.5, 1.0, 5.0], &network::ALL).await?,
        "kafka" => {
            let brokers = brokers()?;
            vec![
                kafka::insert(&url, &brokers, rounds, size.broker).await?,
                kafka::duplicates(&url, &brokers, rounds, size.duplicates).await?,
                kafka::memory(&url, &brokers, size.backlog).await?,
            ]
        }
        "events" => events::all(at).await?,
        "inbox" => inbox::all(&url, rounds, size.broker).await?,
        "relay" => relay::rate(&url, &brokers()?, rounds, size.relay).await?,
        "relay-times" => {
            let half_load = relay::half_load(&url, &brokers()?, rounds, size.half_load).await?;
            vec![half_load, relay::takeover(&url, &brokers()?, rounds * 2).await?]
        }
        "relay-backlog" => relay::backlog(&url, &brokers()?, rounds, size.relay * 2).await?,
        "relay-snapshot" => relay::snapshot(&url, &brokers()?, size.relay).await?,
        "http" => http::all(http_at).await?,
        "http-refused" => http::refused(http_at).await?,
        "http-latency" => http::latency(http_at).await?,
        "http-memory" => vec![http::memory(&url, options.minutes).await?],
        "growth" => growth::measure(at, options.rows).await?,
        _ => return Err(format!("there is no case {case}; ./bench --list names them all").into()),
    })
}

/// Where PostgreSQL is.
fn url() -> Result<String, &'static str> {
    std::env::var("IDEM_POSTGRES_URL").map_err(|_| "IDEM_POSTGRES_URL is not set; ./bench sets it")
}

/// Where Kafka is.
fn brokers() -> Result<String, &'static str> {
    std::env::var("IDEM_KAFKA_BROKERS").map_err(|_| "IDEM_KAFKA_BROKERS is not set; ./bench sets it")
}
