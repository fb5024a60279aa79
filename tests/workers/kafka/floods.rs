//! Everything at once.

use rdkafka::{
    message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage},
    producer::FutureRecord,
};

use super::{
    fixture::{Database, Fixture, count, until},
    flood::{Flooded, Published, flood},
    input::{Input, Value},
    topic::Topic,
    worker::Worker,
};

/// A fixture, and a topic for dead letters.
struct Flood {
    fixture: Fixture,
    aside: Topic,
}

impl Flooded for Flood {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        self.fixture.start(&[&["--reset", "earliest", "--in-flight", "300"], more].concat())
    }

    fn aside(&self) -> [String; 2] {
        ["--dead-letter-topic".to_owned(), self.aside.name.clone()]
    }

    /// Headers may repeat and have an order, and there are no tables.
    fn carried(&self, mut input: Input) -> Option<Input> {
        input.headers.retain(|(_, value)| !matches!(value, Value::Tables(_)));
        Some(input)
    }

    async fn put(&self, inputs: &[Input]) {
        for input in inputs {
            let mut record = FutureRecord::<[u8], [u8]>::to(&self.fixture.topic.name);
            if let Some(key) = &input.group {
                record = record.key(key);
            }
            if let Some(payload) = &input.payload {
                record = record.payload(payload);
            }
            if !input.headers.is_empty() {
                record = record.headers(headers(input));
            }
            self.fixture.topic.send_record(record);
        }
        self.fixture.topic.flush().await;
    }

    async fn published(&self) -> Vec<Published> {
        self.aside.records().await.iter().map(letter).collect()
    }

    /// Kafka leaves a member that polls what it has, however long it pauses, so the group takes it: another member comes and
    /// goes.
    async fn outlast_pause(&self, _worker: &Worker, _before: &str) {
        let another = self.start(&[]);
        until("another member", async || another.joined()).await;
        let ended = another.stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }

    async fn create_again(&mut self) {
        self.fixture.topic = self.fixture.topic.create_again().await;
    }
}

fn headers(input: &Input) -> OwnedHeaders {
    input.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        let value = match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Absent | Value::Tables(_) => None,
        };
        headers.insert(Header { key, value })
    })
}

fn letter(record: &OwnedMessage) -> Published {
    let value = |value: Option<&[u8]>| value.map_or(Value::Absent, |bytes| Value::Bytes(bytes.to_vec()));
    let headers = record
        .headers()
        .map(|headers| headers.iter().map(|header| (header.key.to_owned(), value(header.value))).collect::<Vec<_>>());
    Published {
        payload: record.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        key: record.key().map(<[u8]>::to_vec),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j26_each_input_ends_in_the_ledger_or_whole_in_the_dead_letters() {
    let fixture = Fixture::new("flood", 3).await;
    let aside = Topic::create(&fixture.topic.brokers, &format!("{}-aside", fixture.name), 1).await;
    let mut flooded = Flood { fixture, aside };
    flood(&mut flooded, count(20_000, 500)).await;
    flooded.fixture.remove().await;
}
