//! The same to Kafka (`IDEM_KAFKA_BROKERS`, as `./servers url kafka` prints it) and to SQS, the latter from a file of SQLite.

use std::{collections::BTreeSet, time::Duration};

use idem_core::Event;
use idem_testkit::sqs::{FakeSqs, QueueOptions};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::{Headers as _, Message as _},
};
use serde_json::{Value, json};
use sqlx::Connection as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use super::{ended, relay};
use crate::{
    fixture::{Fixture, PATIENCE},
    sqlite::File,
};

const EVENTS: usize = 20;

/// The id and the payload of each event, in the order of their numbers.
fn issued() -> Vec<(String, String)> {
    (0..EVENTS).map(|number| (format!("invoice-{number}"), number.to_string())).collect()
}

fn event(to: &str, payload: String) -> Event {
    Event::to(to).event_type("InvoiceIssued").ordering_key("billing").body(payload)
}

/// Runs a relay with this file until `waiting` answers 0.
async fn run(text: &str, variables: &[(&str, &str)], waiting: impl AsyncFn() -> Vec<String>) {
    let config = std::env::temp_dir().join(format!("idem-relay-{:016x}.toml", fastrand::u64(..)));
    std::fs::write(&config, text).unwrap();
    let relay = relay(&config, variables);
    let draining = async {
        while waiting().await != ["0"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let drained = tokio::time::timeout(PATIENCE, draining).await;
    let (summary, log) = ended(relay).await;
    drained.unwrap_or_else(|_| panic!("events wait:\n{log}"));
    assert_eq!(summary["published"], EVENTS, "{summary}\n{log}");
    std::fs::remove_file(&config).unwrap();
}

/// The id and the payload of so many records of the topic's one partition, in order.
fn records(brokers: &str, topic: &str) -> Vec<(String, String)> {
    let mut config = ClientConfig::new();
    let consumer: BaseConsumer =
        config.set("bootstrap.servers", brokers).set("group.id", "idem-cli-tests").create().unwrap();
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&from).unwrap();
    let (_, end) = consumer.fetch_watermarks(topic, 0, PATIENCE).unwrap();
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    (0..end)
        .map(|_| {
            let record = consumer.poll(PATIENCE).unwrap().unwrap();
            let id = record.headers().unwrap().iter().find(|header| header.key == "idempotencykey").unwrap();
            assert_eq!(record.key(), Some(&b"billing"[..]));
            (text(id.value), text(record.payload()))
        })
        .collect()
}

/// O2: events of a plain outbox in PostgreSQL are in the topic, each under the key that its writer gave it.
#[tokio::test(flavor = "multi_thread")]
async fn o2_a_relay_alone_brings_events_to_a_topic() {
    let fixture = Fixture::new().await;
    let brokers = std::env::var("IDEM_KAFKA_BROKERS").unwrap_or_else(|_| "127.0.0.1:29092".to_owned());
    let topic = &fixture.schema;
    let mut config = ClientConfig::new();
    let admin: AdminClient<DefaultClientContext> = config.set("bootstrap.servers", &brokers).create().unwrap();
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
    admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();

    let outbox = fixture.store.plain_outbox("billing", [topic.as_str()]).await.unwrap();
    let mut connection = fixture.admin.acquire().await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
    for (key, payload) in issued() {
        outbox.publish(&mut transaction, &key, event(topic, payload)).await.unwrap();
    }
    transaction.commit().await.unwrap();
    drop(connection);
    let text = format!(
        "database-url = {:?}\nschema = {:?}\n[kafka]\nbrokers = {brokers:?}\n[[destination]]\nname = {topic:?}\n",
        fixture.url, fixture.schema,
    );
    run(&text, &[], async || fixture.texts("SELECT count(*) FROM outbox").await).await;

    let (from, of) = (brokers, topic.clone());
    let came = tokio::task::spawn_blocking(move || records(&from, &of)).await.unwrap();
    assert_eq!(came, issued());
    admin.delete_topics(&[topic.as_str()], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    fixture.drop().await;
}

/// Takes the next message, if there is one.
async fn received(sqs: &FakeSqs, url: &str) -> Option<Value> {
    let address = sqs.endpoint().trim_start_matches("http://");
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    let body = json!({ "QueueUrl": url, "MessageAttributeNames": ["All"], "VisibilityTimeout": 600 }).to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut length, mut line) = (0, String::new());
    while stream.read_line(&mut line).await.unwrap() > 2 {
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim_end().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let mut body: Value = serde_json::from_slice(&body).unwrap();
    body["Messages"].as_array_mut().and_then(Vec::pop)
}

/// O2: the same from SQLite to a queue of SQS's.
#[tokio::test(flavor = "multi_thread")]
async fn o2_a_relay_alone_brings_events_from_sqlite_to_sqs() {
    let file = File::new();
    file.idem("migrate up").ok();
    let sqs = FakeSqs::start().await.unwrap();
    let url = sqs.create("invoices", QueueOptions::default()).url();

    let outbox = file.store().await.plain_outbox("billing", [url.as_str()]).await.unwrap();
    let mut connection = sqlx::SqliteConnection::connect(&file.url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    for (key, payload) in issued() {
        outbox.publish(&mut transaction, &key, event(&url, payload)).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let text = format!("database-url = {:?}\n[sqs]\n[[destination]]\nname = {url:?}\n", file.url);
    let variables = [
        ("AWS_ENDPOINT_URL", sqs.endpoint()),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    run(&text, &variables, async || file.texts("SELECT CAST(count(*) AS text) FROM idem_outbox").await).await;

    let mut came = Vec::new();
    while let Some(message) = received(&sqs, &url).await {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let id = &message["MessageAttributes"]["idempotencykey"]["StringValue"];
        came.push((text(id), text(&message["Body"])));
    }
    // Such a queue promises no order.
    assert_eq!(came.len(), EVENTS);
    assert_eq!(came.into_iter().collect::<BTreeSet<_>>(), issued().into_iter().collect());
}
