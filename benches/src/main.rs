//! Measures idem beside what people write by hand, in one run. `./bench` runs it.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement prints, and waits while it samples")]

mod alone;
mod amqp;
mod backlog;
mod drain;
mod engine;
mod kafka;
mod network;
mod null;
mod postgres;
mod report;

use std::error::Error;

/// How much is measured.
struct Size {
    rounds: usize,
    messages: usize,
    engine_messages: usize,
    memory_messages: usize,
    duplicates: usize,
    backlog: usize,
    rabbitmq_backlog: usize,
}

const FULL: Size = Size {
    rounds: 5,
    messages: 20_000,
    engine_messages: 1_000_000,
    memory_messages: 5_000_000,
    duplicates: 500_000,
    backlog: 5_000_000,
    rabbitmq_backlog: 1_000_000,
};
const QUICK: Size = Size {
    rounds: 3,
    messages: 8_000,
    engine_messages: 300_000,
    memory_messages: 1_000_000,
    duplicates: 200_000,
    backlog: 1_000_000,
    rabbitmq_backlog: 200_000,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Some((alone::FLAG, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        println!("{}", alone::measure(rest).await?);
        return Ok(());
    }
    let (mut size, mut file, mut only) = (FULL, None, None);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => size = QUICK,
            "--network" | "--kafka" | "--rabbitmq" => only = Some(argument),
            "--json" => file = Some(arguments.next().ok_or("--json needs a file")?),
            other => {
                let known = "--quick, --network, --kafka, --rabbitmq and --json FILE";
                return Err(format!("{other} is unknown; there are {known}").into());
            }
        }
    }
    let url = url()?;
    let mut all = Vec::new();
    let is_asked_for = |part: &str| only.as_ref().is_none_or(|only| only == part);
    if only.is_none() {
        all.push(engine::cost(size.rounds, size.engine_messages).await?);
        let title = format!("Resident memory over {} messages through one worker", size.memory_messages);
        all.push(alone::resident(&title, &["engine", &size.memory_messages.to_string()]).await?);
        all.push(postgres::insert(&url, size.rounds, size.messages).await?);
    }
    if is_asked_for("--kafka") {
        let brokers = brokers()?;
        all.push(kafka::insert(&url, &brokers, size.rounds, size.messages).await?);
        all.push(kafka::duplicates(&url, &brokers, size.rounds, size.duplicates).await?);
        all.push(kafka::memory(&url, &brokers, size.backlog).await?);
    }
    if is_asked_for("--rabbitmq") {
        let broker = rabbitmq()?;
        all.push(amqp::insert(&url, &broker, size.rounds, size.messages).await?);
        all.push(amqp::memory(&url, &broker, size.rabbitmq_backlog).await?);
    }
    // It takes a quarter of an hour, so it is asked for by name.
    if only.as_deref() == Some("--network") {
        all.push(network::works(&url, size.rounds, &[0.0, 0.5, 1.0, 5.0]).await?);
    }
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

/// Where PostgreSQL is.
fn url() -> Result<String, &'static str> {
    std::env::var("IDEM_POSTGRES_URL").map_err(|_| "IDEM_POSTGRES_URL is not set; ./bench sets it")
}

/// Where Kafka is.
fn brokers() -> Result<String, &'static str> {
    std::env::var("IDEM_KAFKA_BROKERS").map_err(|_| "IDEM_KAFKA_BROKERS is not set; ./bench sets it")
}

/// Where RabbitMQ is.
fn rabbitmq() -> Result<String, &'static str> {
    std::env::var("IDEM_AMQP_URL").map_err(|_| "IDEM_AMQP_URL is not set; ./bench sets it")
}
