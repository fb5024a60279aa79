//! One topic, for where Kafka's own tools are not at hand: `topic-kafka BROKERS TOPIC create`, `… send RECORD-KEY PAYLOAD`,
//! `… delete`.

use std::{error::Error, time::Duration};

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    producer::{FutureProducer, FutureRecord},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
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
        _ => return Err(usage()),
    };
    for answer in answers {
        answer.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    Ok(())
}

fn usage() -> Box<dyn Error> {
    "usage: topic-kafka BROKERS TOPIC create|delete|send RECORD-KEY PAYLOAD".into()
}
