//! One topic, for where Kafka's own tools are not at hand: `topic-kafka BROKERS TOPIC create`, `… send RECORD-KEY PAYLOAD`,
//! `… read`, which prints all records with their headers, `… delete`.

#![allow(clippy::print_stderr, reason = "its terminal is its log")]

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    message::{Headers as _, Message as _},
    producer::{FutureProducer, FutureRecord},
};

/// How long the broker may take for anything.
const WITHIN: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("topic-kafka: {error}");
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [brokers, topic, what @ ..] = &arguments[..] else { return Err(usage()) };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", *brokers).set("enable.idempotence", "true");
    let (admin, options) = (config.create::<AdminClient<DefaultClientContext>>()?, AdminOptions::new());
    let answers = match what {
        ["create"] => {
            // Together with its segment a record stays for less than the 7 days for which idem keeps its key by default.
            let topic = NewTopic::new(topic, 6, TopicReplication::Fixed(1));
            let topic = topic.set("retention.ms", "518400000").set("segment.ms", "43200000");
            admin.create_topics([&topic], &options).await?
        }
        ["delete"] => admin.delete_topics(&[topic], &options).await?,
        ["send", key, payload] => {
            let producer: FutureProducer = config.create()?;
            let sent = producer.send(FutureRecord::to(topic).key(*key).payload(*payload), Duration::from_secs(30));
            sent.await.map_err(|(error, _)| error)?;
            Vec::new()
        }
        ["read"] => {
            let (brokers, topic) = ((*brokers).to_owned(), (*topic).to_owned());
            tokio::task::spawn_blocking(move || read(&brokers, &topic)).await??;
            Vec::new()
        }
        _ => return Err(usage()),
    };
    for answer in answers {
        answer.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    Ok(())
}

/// Prints the records of the topic: a line each, its headers before its payload.
fn read(brokers: &str, topic: &str) -> Result<(), KafkaError> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "topic-kafka").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create()?;
    let metadata = consumer.fetch_metadata(Some(topic), WITHIN)?;
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id());
    for partition in partitions {
        let (begin, end) = consumer.fetch_watermarks(topic, partition, WITHIN)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(topic, partition, Offset::Offset(begin))?;
        consumer.assign(&from)?;
        let mut next = begin;
        while next < end {
            let Some(record) = consumer.poll(WITHIN) else { break };
            let record = record?;
            next = record.offset() + 1;
            let mut line = String::new();
            for header in record.headers().into_iter().flat_map(|headers| headers.iter()) {
                line += &format!("{}={} ", header.key, String::from_utf8_lossy(header.value.unwrap_or_default()));
            }
            line += &String::from_utf8_lossy(record.payload().unwrap_or_default());
            if writeln!(io::stdout(), "{line}").is_err() {
                // A reader such as `head` has read enough.
                return Ok(());
            }
        }
    }
    Ok(())
}

fn usage() -> Box<dyn Error> {
    "usage: topic-kafka BROKERS TOPIC create|delete|read|send RECORD-KEY PAYLOAD".into()
}
