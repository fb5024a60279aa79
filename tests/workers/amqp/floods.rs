//! Everything at once.

use lapin::types::{AMQPValue, ByteArray, FieldTable};

use super::{
    fixture::{Database, Fixture, count, until},
    flood::{Flooded, Published, flood},
    input::{Input, Value},
    queue::Queue,
    worker::Worker,
};

/// A fixture, and a queue for dead letters.
struct Flood {
    fixture: Fixture,
    aside: Queue,
}

/// By these headers of producers the broker does something.
const BROKERS_OWN: [&str; 2] = ["CC", "BCC"];

/// The limits of idem's reading: tables in each other, the headers themselves among them, and values in them.
const DEPTH_MAX: usize = 64;
const VALUES_MAX: usize = 4_096;

impl Flooded for Flood {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        self.fixture.start(more)
    }

    fn aside(&self) -> [String; 2] {
        ["--dead-letter-queue".to_owned(), self.aside.name.clone()]
    }

    /// A message always has a payload, and headers stand in no order. Their names are short.
    fn carried(&self, mut input: Input) -> Option<Input> {
        input.headers.retain(|(name, _)| name.len() < 256 && !BROKERS_OWN.contains(&name.as_str()));
        let payload = Some(input.payload.unwrap_or_default());
        Some(Input { payload, group: None, ..input }.with_headers_by_name())
    }

    fn is_readable(&self, input: &Input) -> bool {
        let is_shallow = |(_, value): &(String, Value)| !matches!(value, Value::Tables(depth) if *depth >= DEPTH_MAX);
        input.headers.len() <= VALUES_MAX && input.headers.iter().all(is_shallow)
    }

    async fn put(&self, inputs: &[Input]) {
        let has_tables = |input: &&Input| input.headers.iter().any(|(_, value)| matches!(value, Value::Tables(_)));
        let (nested, flat): (Vec<&Input>, Vec<&Input>) = inputs.iter().partition(has_tables);
        let payload = |input: &&Input| input.payload.clone().unwrap_or_default();
        let flat: Vec<_> = flat.into_iter().map(|input| (payload(&input), table(input))).collect();
        self.fixture.queue.send_with_headers(flat.iter().map(|(payload, table)| (&payload[..], table.clone()))).await;
        for input in nested {
            let text = String::from_utf8(payload(&input)).expect("text, for the management API");
            self.fixture.queue.publish_with_headers(&json(input), &text).await;
        }
    }

    async fn published(&self) -> Vec<Published> {
        let header = |(name, value): (&lapin::types::ShortString, &AMQPValue)| (name.to_string(), read(value));
        let letter = |(payload, headers): (Vec<u8>, FieldTable)| Published {
            payload: Some(payload),
            headers: headers.inner().iter().map(header).collect(),
            key: None,
        };
        self.aside.take().await.into_iter().map(letter).collect()
    }

    async fn outlast_pause(&self, worker: &Worker, before: &str) {
        until("what goes back", async || worker.logged()[before.len()..].contains("intake is closed for long")).await;
    }

    async fn create_again(&mut self) {
        self.fixture.queue.delete().await;
        self.fixture.queue = Queue::create(&self.fixture.name, &[]).await;
    }
}

/// Headers without tables. Bytes of an even number have the type of bytes, and others that of texts, which may be any bytes.
fn table(input: &Input) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in &input.headers {
        let value = match value {
            Value::Bytes(bytes) if bytes.len() % 2 == 0 && std::str::from_utf8(bytes).is_err() => {
                AMQPValue::ByteArray(ByteArray::from(bytes.clone()))
            }
            Value::Bytes(bytes) => AMQPValue::LongString(bytes.clone().into()),
            Value::Absent | Value::Tables(_) => AMQPValue::Void,
        };
        table.insert(name.as_str().into(), value);
    }
    table
}

/// Headers for the management API: the client library would write tables in each other by recursion.
fn json(input: &Input) -> String {
    let one = |(name, value): &(String, Value)| {
        let value = match value {
            Value::Tables(depth) => format!("{}{{}}{}", r#"{"t":"#.repeat(depth - 1), "}".repeat(depth - 1)),
            Value::Bytes(bytes) => serde_json::json!(String::from_utf8_lossy(bytes)).to_string(),
            Value::Absent => "null".to_owned(),
        };
        format!("{}:{value}", serde_json::json!(name))
    };
    format!("{{{}}}", input.headers.iter().map(one).collect::<Vec<_>>().join(","))
}

fn read(value: &AMQPValue) -> Value {
    if let AMQPValue::FieldTable(table) = value {
        let inner = table.inner().get("t").map(read);
        return Value::Tables(if let Some(Value::Tables(depth)) = inner { depth + 1 } else { 1 });
    }
    if let AMQPValue::ByteArray(bytes) = value {
        return Value::Bytes(bytes.as_slice().to_vec());
    }
    match value.as_long_string() {
        Some(text) => Value::Bytes(text.as_bytes().to_vec()),
        None => {
            assert_eq!(value, &AMQPValue::Void, "nobody sent this");
            Value::Absent
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j26_each_input_ends_in_the_ledger_or_whole_in_the_dead_letters() {
    let fixture = Fixture::new("flood").await;
    let aside = Queue::create(&format!("{}-aside", fixture.name), &[]).await;
    let mut flooded = Flood { fixture, aside };
    flood(&mut flooded, count(20_000, 500)).await;
    flooded.aside.delete().await;
    flooded.fixture.remove().await;
}
