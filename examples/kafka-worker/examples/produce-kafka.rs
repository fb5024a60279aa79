//! The producer of the demonstration: creates a topic and sends 69,659 real purchases, with the mistakes that producers
//! make. `produce-kafka BROKERS TOPIC PARTITIONS MESSAGES_A_SECOND`

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a person looks at it")]

use std::{error::Error, process::ExitCode, time::Duration};

use ledger::demo::{PURCHASES, Record, records};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    producer::{BaseRecord, Producer, ThreadedProducer},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("produce-kafka: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, partitions, rate] = &arguments[..] else {
        return Err("usage: produce-kafka BROKERS TOPIC PARTITIONS MESSAGES_A_SECOND".into());
    };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true").set("linger.ms", "10");
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let new = NewTopic::new(topic, partitions.parse()?, TopicReplication::Fixed(1));
    for created in admin.create_topics([&new], &AdminOptions::new()).await? {
        created.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    let (records, rate) = (records(PURCHASES)?, rate.parse::<usize>()?);
    let producer: ThreadedProducer<_> = config.create()?;
    println!("sending {} messages to {topic}", records.len());
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for some in records.chunks((rate / 10).max(1)) {
        tick.tick().await;
        for Record { customer, payload, .. } in some {
            producer.send(BaseRecord::to(topic).key(customer).payload(payload)).map_err(|(error, _)| error)?;
        }
    }
    producer.flush(Duration::from_secs(60))?;
    Ok(())
}
