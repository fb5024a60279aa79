//! The producer of the demonstration: creates a topic and sends 69,659 real purchases, with the mistakes that producers
//! make. `produce BROKERS TOPIC PARTITIONS MESSAGES_A_SECOND`

#![allow(clippy::print_stdout, reason = "a person looks at it")]

use std::{error::Error, io::Read, time::Duration};

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    producer::{BaseRecord, Producer, ThreadedProducer},
};
use serde_json::json;

/// See the quickstart's `data/README.md` for where it comes from.
const DATA: &[u8] = include_bytes!("../../quickstart/data/purchases.csv.gz");

/// What is sent: the record key, which keeps a customer's purchases in order, and the payload.
type Record = (String, String);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, partitions, rate] = &arguments[..] else {
        return Err("usage: produce BROKERS TOPIC PARTITIONS MESSAGES_A_SECOND".into());
    };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true").set("linger.ms", "10");
    let admin: AdminClient<DefaultClientContext> = config.create()?;
    let new = NewTopic::new(topic, partitions.parse()?, TopicReplication::Fixed(1));
    for created in admin.create_topics([&new], &AdminOptions::new()).await? {
        created.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    let (records, rate) = (records()?, rate.parse::<usize>()?);
    let producer: ThreadedProducer<_> = config.create()?;
    println!("sending {} messages to {topic}", records.len());
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for some in records.chunks((rate / 10).max(1)) {
        tick.tick().await;
        for (key, payload) in some {
            producer.send(BaseRecord::to(topic).key(key).payload(payload)).map_err(|(error, _)| error)?;
        }
    }
    producer.flush(Duration::from_secs(60))?;
    Ok(())
}

/// Every message, in order. The key of a purchase is the number of its line, because 255 of them equal another in every
/// column.
fn records() -> Result<Vec<Record>, Box<dyn Error>> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(DATA).read_to_string(&mut text)?;
    let mut purchases = Vec::new();
    for (number, line) in text.lines().skip(1).enumerate() {
        let [customer, day, cds, dollars] = line.split(',').collect::<Vec<_>>()[..] else {
            return Err(format!("line {} is no purchase", number + 2).into());
        };
        let cents: i64 = dollars.replace('.', "").parse()?;
        purchases.push((day, customer, format!("cdnow-{:05}", number + 1), cds.parse::<u32>()?, cents));
    }
    purchases.sort_by_key(|(day, ..)| *day);
    // What comes later than its turn, by the position after which it comes.
    let mut stream: Vec<(usize, Record)> = Vec::new();
    for (position, (day, customer, key, cds, cents)) in purchases.into_iter().enumerate() {
        let payload = |cents: i64| {
            json!({ "idempotencykey": key, "customer": customer, "day": day, "cds": cds, "cents": cents }).to_string()
        };
        let record = |cents| (customer.to_owned(), payload(cents));
        // The confirmation did not arrive in time, so the producer sends the same message a second time.
        if position % 50 == 7 {
            stream.push((position + 150, record(cents)));
        }
        // A bug sends another amount under the key of an earlier purchase. The first one must win.
        if position % 1_000 == 500 {
            stream.push((position + 75, record(cents + 500)));
        }
        // Messages that nobody can read, and some without a key.
        if position % 6_000 == 3_000 {
            let without_key = json!({ "customer": customer, "day": day, "cds": cds, "cents": cents }).to_string();
            let broken = if position % 18_000 == 3_000 { without_key } else { "{\"customer\":".to_owned() };
            stream.push((position, (customer.to_owned(), broken)));
        }
        stream.push((position, record(cents)));
    }
    stream.sort_by_key(|(position, _)| *position);
    Ok(stream.into_iter().map(|(_, record)| record).collect())
}
