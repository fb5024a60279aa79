//! From RabbitMQ to PostgreSQL: by hand and through idem, from one quorum queue, with one connection each; and a long backlog.

use std::{error::Error, time::Duration};

use futures_util::{StreamExt, future::try_join_all};
use idem_amqp::AmqpOptions;
use idem_core::{DedupConsumer, DedupConsumerBuilder};
use idem_sqlx::PostgresStore;
use lapin::{
    BasicProperties, Channel, Connection as Broker, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
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

/// How many messages are published before the broker is waited for.
const PUBLISHED_AT_ONCE: usize = 1_000;

/// A durable quorum queue that is removed again.
struct Queue {
    url: String,
    name: ShortString,
    channel: Channel,
    _connection: Broker,
}

impl Queue {
    async fn declare(url: &str) -> Result<Self, Box<dyn Error>> {
        let name = format!("idem-bench-{}", Uuid::new_v4());
        let queue = Self::open(url, &name).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        queue.channel.queue_declare(queue.name.clone(), durable, arguments).await?;
        queue.channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(queue)
    }

    async fn open(url: &str, name: &str) -> Result<Self, Box<dyn Error>> {
        let connection = Broker::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let name = ShortString::try_new(name).map_err(|error| error.to_string())?;
        Ok(Self { url: url.to_owned(), name, channel, _connection: connection })
    }

    /// Publishes so many messages, of which each key comes as often as it takes.
    async fn fill(&self, messages: usize, keys: usize) -> Result<(), Box<dyn Error>> {
        let numbers: Vec<usize> = (0..messages).collect();
        for some in numbers.chunks(PUBLISHED_AT_ONCE) {
            let mut confirms = Vec::with_capacity(some.len());
            for n in some {
                let key = format!(r#"{{"idempotencykey":"order-{}","#, n % keys);
                let payload = body(n % keys % CUSTOMERS).replacen('{', &key, 1);
                let persistent = BasicProperties::default().with_delivery_mode(2);
                let options = BasicPublishOptions::default();
                let name = self.name.clone();
                confirms
                    .push(self.channel.basic_publish("".into(), name, options, payload.as_bytes(), persistent).await?);
            }
            try_join_all(confirms).await?;
        }
        Ok(())
    }

    async fn remove(self) -> Result<(), Box<dyn Error>> {
        self.channel.queue_delete(self.name, QueueDeleteOptions::default()).await?;
        Ok(())
    }

    /// Consume, one transaction a message, acknowledge, as people write it; with idem's prefetch.
    async fn by_hand(&self, connection: &mut PgConnection, messages: usize) -> Result<Duration, Box<dyn Error>> {
        let consuming = Self::open(&self.url, self.name.as_str()).await?;
        consuming.channel.basic_qos(AmqpOptions::PREFETCH, BasicQosOptions::default()).await?;
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = consuming.channel.basic_consume(self.name.clone(), "".into(), options, none).await?;
        let started = Instant::now();
        for _ in 0..messages {
            let delivery = consumer.next().await.ok_or("the subscription ended")??;
            let mut tx = connection.begin().await?;
            let payload = std::str::from_utf8(&delivery.data)?;
            sqlx::query(INSERT).bind(Uuid::new_v4()).bind(payload).execute(&mut *tx).await?;
            tx.commit().await?;
            consuming.channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default()).await?;
        }
        Ok(started.elapsed())
    }

    async fn idem(
        &self,
        consumer: DedupConsumerBuilder<PostgresStore>,
        batch: usize,
        cache: Option<Duration>,
        messages: usize,
    ) -> Result<(Duration, Vec<usize>), Box<dyn Error>> {
        let source = AmqpOptions::new(&self.url, self.name.as_str()).build()?;
        drain(source, consumer, batch, cache, messages).await
    }
}

/// End to end, the work *insert*.
pub(crate) async fn insert(url: &str, broker: &str, rounds: usize, messages: usize) -> Result<Table, Box<dyn Error>> {
    let queue = Queue::declare(broker).await?;
    let mut connection = PgConnection::connect(url).await?;
    let mut lines = [
        Line::new("by hand: consume, begin, insert, commit, acknowledge"),
        Line::new("idem, per-message handler, batches of 100, one lane"),
        Line::new("idem, set-based handler, batches of 300, one lane"),
    ];
    for _ in 0..rounds {
        for (number, line) in lines.iter_mut().enumerate() {
            fresh(&mut connection).await?;
            queue.fill(messages, messages).await?;
            let consumer =
                || async { Ok::<_, Box<dyn Error>>(DedupConsumer::builder(store(url).await?, "bench").lanes(1)) };
            let took = match number {
                0 => queue.by_hand(&mut connection, messages).await?,
                1 => queue.idem(consumer().await?.handler(Work::Insert), 100, None, messages).await?.0,
                _ => queue.idem(consumer().await?.batch_handler(Work::Insert), 300, None, messages).await?.0,
            };
            let rows: i64 =
                sqlx::query_scalar("SELECT count(*) FROM idem_bench.orders").fetch_one(&mut connection).await?;
            if rows != i64::try_from(messages)? {
                return Err(format!("{}: {rows} rows for {messages} messages", line.name).into());
            }
            line.note(messages, took);
        }
    }
    queue.remove().await?;
    let title = format!(
        "RabbitMQ to PostgreSQL, insert of 200-byte JSON, {messages} messages a round, {rounds} rounds interleaved"
    );
    Ok(Table::print("rabbitmq", title, RATE, lines.into()))
}

/// Resident memory over a long backlog.
pub(crate) async fn memory(url: &str, broker: &str, messages: usize) -> Result<Table, Box<dyn Error>> {
    let queue = Queue::declare(broker).await?;
    queue.fill(messages, KEYS).await?;
    fresh(&mut PgConnection::connect(url).await?).await?;
    let title = format!("Resident memory over a backlog of {messages} messages from RabbitMQ");
    let measured =
        alone::resident("rabbitmq-memory", &title, &["rabbitmq", queue.name.as_str(), &messages.to_string()]).await?;
    queue.remove().await?;
    Ok(measured)
}

/// The same in the process that is measured.
pub(crate) async fn resident(queue: &str, messages: usize) -> Result<Value, Box<dyn Error>> {
    let queue = Queue::open(&crate::rabbitmq()?, queue).await?;
    let consumer = DedupConsumer::builder(store(&crate::url()?).await?, "bench").batch_handler(Work::Insert);
    let (took, resident) = queue.idem(consumer, 300, Some(5 * MINUTE), messages).await?;
    Ok(alone::answer(&resident, messages, took.as_secs_f64()))
}
