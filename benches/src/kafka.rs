//! From Kafka to PostgreSQL: by hand and through idem, on one topic, with one connection each; and backlogs of nothing but
//! duplicates.

use std::{error::Error, time::Duration};

use idem_core::{DedupConsumer, consumer::DedupConsumerBuilder};
use idem_kafka::{KafkaOptions, Reset};
use idem_sqlx::PostgresStore;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer},
    message::Message as _,
    producer::{BaseRecord, Producer, ThreadedProducer},
    types::RDKafkaErrorCode as Code,
};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    alone,
    drain::drain,
    postgres::{fresh, store},
    report::{Line, RATE, Table},
    work::{CUSTOMERS, INSERT, Work, body},
};

const MINUTE: Duration = Duration::from_secs(60);

/// The keys of a backlog of duplicates; all of them fit into the cache.
const KEYS: usize = 2_000;

/// A topic of four partitions that is removed again.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) brokers: String,
    messages: usize,
}

impl Topic {
    /// One without a message.
    pub(crate) async fn empty(brokers: &str) -> Result<Self, Box<dyn Error>> {
        let topic = Self::named(brokers, &format!("idem-bench-{}", Uuid::new_v4()));
        let new = NewTopic::new(&topic.name, 4, TopicReplication::Fixed(1));
        for created in topic.admin()?.create_topics([&new], &AdminOptions::new()).await? {
            created.map_err(|(topic, code)| format!("{topic}: {code}"))?;
        }
        Ok(topic)
    }

    /// One that is there.
    pub(crate) fn named(brokers: &str, name: &str) -> Self {
        Self { name: name.to_owned(), brokers: brokers.to_owned(), messages: 0 }
    }

    /// Checks that it holds exactly so many messages: none lost, and no copies.
    pub(crate) async fn holds(&self, messages: usize) -> Result<(), Box<dyn Error>> {
        let consumer: BaseConsumer = self.config().create()?;
        let name = self.name.clone();
        let there = tokio::task::spawn_blocking(move || {
            let watermarks = |partition| Ok(consumer.fetch_watermarks(&name, partition, MINUTE)?.1);
            (0..4).map(watermarks).sum::<Result<i64, rdkafka::error::KafkaError>>()
        });
        match there.await?? {
            there if usize::try_from(there)? == messages => Ok(()),
            there => Err(format!("the topic holds {there} messages, and not {messages}").into()),
        }
    }

    /// One with so many messages, of which each key comes as often as it takes.
    async fn create(brokers: &str, messages: usize, keys: usize) -> Result<Self, Box<dyn Error>> {
        let topic = Self { messages, ..Self::empty(brokers).await? };
        let producer: ThreadedProducer<_> = topic.config().set("linger.ms", "20").create()?;
        for n in 0..messages {
            let key = format!("order-{}", n % keys);
            let payload = body(n % keys % CUSTOMERS).replacen('{', &format!(r#"{{"idempotencykey":"{key}","#), 1);
            while let Err((error, _)) = producer.send(BaseRecord::to(&topic.name).key(&key).payload(&payload)) {
                if error.rdkafka_error_code() != Some(Code::QueueFull) {
                    return Err(error.into());
                }
                producer.flush(MINUTE)?;
            }
        }
        producer.flush(MINUTE)?;
        Ok(topic)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, Box<dyn Error>> {
        Ok(self.config().create()?)
    }

    pub(crate) async fn remove(self) -> Result<(), Box<dyn Error>> {
        self.admin()?.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }

    /// Poll, one transaction a message, commit the offset, as people write it. Timed from the first message, so that
    /// joining the group, which both must, is left out.
    async fn by_hand(&self, connection: &mut PgConnection) -> Result<Duration, Box<dyn Error>> {
        let mut config = self.config();
        config.set("group.id", Uuid::new_v4().to_string()).set("auto.offset.reset", "earliest");
        let consumer: BaseConsumer = config.set("enable.auto.commit", "false").create()?;
        consumer.subscribe(&[&self.name])?;
        let (mut started, mut handled) = (None, 0);
        while handled < self.messages {
            // It also comes back for a rebalance, without a message.
            let Some(message) = consumer.poll(MINUTE) else { continue };
            let message = message?;
            started.get_or_insert_with(Instant::now);
            let mut tx = connection.begin().await?;
            let payload = std::str::from_utf8(message.payload().unwrap_or_default())?;
            sqlx::query(INSERT).bind(Uuid::new_v4()).bind(payload).execute(&mut *tx).await?;
            tx.commit().await?;
            consumer.commit_message(&message, CommitMode::Async)?;
            handled += 1;
        }
        let took = started.map(|started| started.elapsed()).unwrap_or_default();
        // Its end waits for the answer to every commit, which takes minutes and is not measured.
        drop(std::thread::spawn(move || drop(consumer)));
        Ok(took)
    }

    /// Through a worker of a new group.
    async fn idem(
        &self,
        consumer: DedupConsumerBuilder<PostgresStore>,
        batch: usize,
        cache: Option<Duration>,
    ) -> Result<(Duration, Vec<usize>), Box<dyn Error>> {
        let group = Uuid::new_v4().to_string();
        let source = KafkaOptions::new(&self.brokers, &self.name, &group).reset(Reset::Earliest).build()?;
        drain(source, consumer, batch, cache, self.messages).await
    }
}

/// End to end, the work *insert*.
pub(crate) async fn insert(url: &str, brokers: &str, rounds: usize, messages: usize) -> Result<Table, Box<dyn Error>> {
    let topic = Topic::create(brokers, messages, messages).await?;
    let mut connection = PgConnection::connect(url).await?;
    let mut lines = [
        Line::new("by hand: poll, begin, insert, commit, commit the offset"),
        Line::new("idem, per-message handler, batches of 100, one lane"),
        Line::new("idem, set-based handler, batches of 500, one lane"),
    ];
    for _ in 0..rounds {
        for (number, line) in lines.iter_mut().enumerate() {
            fresh(&mut connection).await?;
            let took = match number {
                0 => topic.by_hand(&mut connection).await?,
                1 => {
                    topic
                        .idem(
                            DedupConsumer::builder(store(url).await?, "bench").lanes(1).handler(Work::Insert),
                            100,
                            None,
                        )
                        .await?
                        .0
                }
                _ => {
                    let consumer =
                        DedupConsumer::builder(store(url).await?, "bench").lanes(1).batch_handler(Work::Insert);
                    topic.idem(consumer, 500, None).await?.0
                }
            };
            let rows: i64 =
                sqlx::query_scalar("SELECT count(*) FROM idem_bench.orders").fetch_one(&mut connection).await?;
            if rows != i64::try_from(messages)? {
                return Err(format!("{}: {rows} rows for {messages} messages", line.name).into());
            }
            line.note(messages, took);
        }
    }
    topic.remove().await?;
    let title = format!(
        "Kafka to PostgreSQL, insert of 200-byte JSON, {messages} messages a round, {rounds} rounds interleaved"
    );
    Ok(Table::print("kafka", title, RATE, lines.into()))
}

/// Nothing but duplicates, after the first of each of 2,000 keys.
pub(crate) async fn duplicates(
    url: &str,
    brokers: &str,
    rounds: usize,
    messages: usize,
) -> Result<Table, Box<dyn Error>> {
    let topic = Topic::create(brokers, messages, KEYS).await?;
    let mut connection = PgConnection::connect(url).await?;
    let mut lines = [
        Line::new("duplicates, asked of PostgreSQL in batches of 500"),
        Line::new("duplicates, from the cache of committed keys"),
    ];
    for _ in 0..rounds {
        for (cache, line) in [None, Some(5 * MINUTE)].into_iter().zip(&mut lines) {
            fresh(&mut connection).await?;
            let consumer = DedupConsumer::builder(store(url).await?, "bench").batch_handler(Work::Insert);
            line.note(messages, topic.idem(consumer, 500, cache).await?.0);
        }
    }
    topic.remove().await?;
    let title = format!("Kafka, a backlog of {messages} duplicates of {KEYS} messages, {rounds} rounds interleaved");
    Ok(Table::print("kafka-duplicates", title, RATE, lines.into()))
}

/// Resident memory over a long backlog, which the brokers hand over as fast as they can.
pub(crate) async fn memory(url: &str, brokers: &str, messages: usize) -> Result<Table, Box<dyn Error>> {
    let topic = Topic::create(brokers, messages, KEYS).await?;
    fresh(&mut PgConnection::connect(url).await?).await?;
    let title = format!("Resident memory over a backlog of {messages} messages from Kafka");
    let measured = alone::resident("kafka-memory", &title, &["kafka", &topic.name, &messages.to_string()]).await?;
    topic.remove().await?;
    Ok(measured)
}

/// The same in the process that is measured.
pub(crate) async fn resident(topic: &str, messages: usize) -> Result<Value, Box<dyn Error>> {
    let topic = Topic { messages, ..Topic::named(&crate::brokers()?, topic) };
    let consumer = DedupConsumer::builder(store(&crate::url()?).await?, "bench").batch_handler(Work::Insert);
    let (took, resident) = topic.idem(consumer, 500, Some(5 * MINUTE)).await?;
    Ok(alone::answer(&resident, messages, took.as_secs_f64()))
}
