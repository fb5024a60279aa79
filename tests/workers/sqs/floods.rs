//! Everything at once.

use aws_sdk_sqs::{primitives::Blob, types::MessageAttributeValue};

use super::{
    fixture::{Database, Fixture, count, until},
    flood::{Flooded, Published, flood},
    input::{Input, Value},
    queue::{Attributes, Queue},
    worker::Worker,
};

/// A fixture, and a queue for dead letters.
struct Flood {
    fixture: Fixture,
    aside: Queue,
}

/// How many attributes a message may have.
const ATTRIBUTES_MAX: usize = 10;

impl Flooded for Flood {
    fn database(&self) -> &Database {
        &self.fixture
    }

    fn start(&self, more: &[&str]) -> Worker {
        self.fixture.start(more)
    }

    fn aside(&self) -> [String; 2] {
        ["--dead-letter-queue-url".to_owned(), self.aside.url.clone()]
    }

    /// SQS has texts of some characters, and not an empty one. Attributes have no order, and a name and a value always.
    fn carried(&self, mut input: Input) -> Option<Input> {
        let payload = input.payload.take()?;
        if payload.is_empty() || !std::str::from_utf8(&payload).is_ok_and(is_sendable) {
            return None;
        }
        input.headers.retain(|(name, value)| {
            let is_value = match value {
                Value::Bytes(bytes) => !bytes.is_empty() && std::str::from_utf8(bytes).map_or(true, is_sendable),
                Value::Absent | Value::Tables(_) => false,
            };
            is_value && is_name(name)
        });
        let mut input = Input { payload: Some(payload), group: None, ..input }.with_headers_by_name();
        input.headers.truncate(ATTRIBUTES_MAX);
        Some(input)
    }

    async fn put(&self, inputs: &[Input]) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let message =
            |input: &Input| (text(input.payload.as_deref().unwrap_or_default()), String::new(), attributes(input));
        self.fixture.queue.send_with_attributes(inputs.iter().map(message).collect()).await;
    }

    async fn published(&self) -> Vec<Published> {
        self.aside.messages().await.into_iter().map(letter).collect()
    }

    /// Messages in hand are kept from others for 20 s at a time, by the server's clock and so by that of the database.
    async fn outlast_pause(&self, _worker: &Worker, _before: &str) {
        let text = "SELECT bool_and(now() > at + interval '21 s') FROM idem.controls";
        let is_over = async || sqlx::query_scalar(text).fetch_one(self.fixture.pool()).await.expect("the control");
        until("the end of a visibility", is_over).await;
    }

    async fn create_again(&mut self) {
        self.fixture.queue = self.fixture.queue.create_again().await;
    }
}

fn is_sendable(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\t' | '\n' | '\r') || (c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}')))
}

fn is_name(name: &str) -> bool {
    name.len() <= 256 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Texts as what they are, and other bytes as such.
fn attributes(input: &Input) -> Attributes {
    let attribute = |(name, value): &(String, Value)| {
        let Value::Bytes(bytes) = value else { return None };
        let attribute = match std::str::from_utf8(bytes) {
            Ok(text) => MessageAttributeValue::builder().data_type("String").string_value(text),
            Err(_) => MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new(bytes.clone())),
        };
        Some((name.clone(), attribute.build().expect("an attribute")))
    };
    input.headers.iter().filter_map(attribute).collect()
}

fn letter((text, attributes): (String, Attributes)) -> Published {
    let value = |value: MessageAttributeValue| match (value.string_value, value.binary_value) {
        (Some(text), _) => Value::Bytes(text.into_bytes()),
        (None, Some(bytes)) => Value::Bytes(bytes.into_inner()),
        (None, None) => Value::Absent,
    };
    let mut headers: Vec<_> = attributes.into_iter().map(|(name, attribute)| (name, value(attribute))).collect();
    headers.sort_by(|(one, _), (other, _)| one.cmp(other));
    Published { payload: Some(text.into_bytes()), headers, key: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn j26_each_input_ends_in_the_ledger_or_whole_in_the_dead_letters() {
    let fixture = Fixture::new("flood", "").await;
    let aside = Queue::create(&fixture.queue.server, &format!("{}-aside", fixture.name)).await;
    let mut flooded = Flood { fixture, aside };
    flood(&mut flooded, count(20_000, 500)).await;
    flooded.aside.delete().await;
    flooded.fixture.remove().await;
}
