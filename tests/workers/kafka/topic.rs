//! A topic, its producer, and the broker's view of a group.

use std::{collections::BTreeMap, time::Duration};

use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer},
    message::{Message as _, OwnedMessage, ToBytes},
    producer::{FutureProducer, FutureRecord},
};
use tokio::time::Instant;

use super::purchase::Purchase;

const PATIENCE: Duration = Duration::from_secs(180);

/// Where the broker is: `IDEM_KAFKA_BROKERS`, else what `./servers up kafka` starts.
pub(crate) fn brokers() -> String {
    std::env::var("IDEM_KAFKA_BROKERS").unwrap_or_else(|_| "127.0.0.1:29092".to_owned())
}

pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) brokers: String,
    partitions: i32,
    producer: FutureProducer,
}

impl Topic {
    pub(crate) async fn create(brokers: &str, name: &str, partitions: i32) -> Self {
        let client = |config: &mut ClientConfig| config.set("bootstrap.servers", brokers).clone();
        let admin: AdminClient<DefaultClientContext> = client(&mut ClientConfig::new()).create().expect("a client");
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let created = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(PATIENCE))).await;
        created.expect("the broker answers: ./servers up kafka")[0].as_ref().expect("a new topic");
        let producer = client(&mut ClientConfig::new())
            .set("enable.idempotence", "true")
            .set("linger.ms", "20")
            .create()
            .expect("a producer");
        Self { name: name.to_owned(), brokers: brokers.to_owned(), partitions, producer }
    }

    /// Deletes the topic and creates it again under its name, as an operator does: its offsets begin anew.
    pub(crate) async fn create_again(&self) -> Self {
        let mut config = ClientConfig::new();
        let admin: AdminClient<DefaultClientContext> =
            config.set("bootstrap.servers", &self.brokers).create().expect("a client");
        let deleted = admin.delete_topics(&[&self.name], &AdminOptions::new().operation_timeout(Some(PATIENCE))).await;
        deleted.expect("the broker answers")[0].as_ref().expect("the topic goes");
        let topic = NewTopic::new(&self.name, self.partitions, TopicReplication::Fixed(1));
        let probe = AdminOptions::new().validate_only(true);
        // It is gone only after a while, and until then its name is taken.
        super::database::until("the topic to be gone", async || {
            admin.create_topics([&topic], &probe).await.expect("the broker answers")[0].is_ok()
        })
        .await;
        Self::create(&self.brokers, &self.name, self.partitions).await
    }

    /// The payloads of all records of the first partition, in order.
    pub(crate) async fn payloads(&self) -> Vec<String> {
        let text = |record: &OwnedMessage| String::from_utf8_lossy(record.payload().unwrap_or_default()).into_owned();
        self.records().await.iter().map(text).collect()
    }

    /// All records of the first partition, in order.
    pub(crate) async fn records(&self) -> Vec<OwnedMessage> {
        let end = self.ends().await[&0];
        let (consumer, name) = (self.member_less("idem-tests-payloads"), self.name.clone());
        tokio::task::spawn_blocking(move || {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&name, 0, Offset::Beginning).expect("an offset");
            consumer.assign(&list).expect("a partition");
            let mut records = Vec::new();
            while i64::try_from(records.len()).expect("a count") < end {
                records.push(consumer.poll(PATIENCE).expect("a record").expect("a record").detach());
            }
            records
        })
        .await
        .expect("no panic")
    }

    /// Sends purchases, those of one customer in order, and waits until the broker has all of them.
    pub(crate) async fn send(&self, purchases: impl IntoIterator<Item = Purchase>) {
        for purchase in purchases {
            self.send_text(&purchase.customer, &purchase.json());
        }
        self.flush().await;
    }

    /// Sends any text, without waiting.
    pub(crate) fn send_text(&self, key: &str, text: &str) {
        self.send_record(FutureRecord::to(&self.name).key(key).payload(text));
    }

    /// Sends any record, without waiting.
    pub(crate) fn send_record<K: ToBytes + ?Sized, P: ToBytes + ?Sized>(&self, mut record: FutureRecord<'_, K, P>) {
        while let Err((error, back)) = self.producer.send_result(record) {
            assert_eq!(error.rdkafka_error_code(), Some(rdkafka::types::RDKafkaErrorCode::QueueFull), "{error}");
            // Its queue is full, so it is given the time to send some.
            rdkafka::producer::Producer::flush(&self.producer, PATIENCE).expect("the broker takes the messages");
            record = back;
        }
    }

    pub(crate) async fn flush(&self) {
        let producer = self.producer.clone();
        let flush = move || rdkafka::producer::Producer::flush(&producer, PATIENCE);
        tokio::task::spawn_blocking(flush).await.expect("no panic").expect("the broker takes the messages");
    }

    /// The group's committed offset by partition, where there is one.
    pub(crate) async fn committed(&self, group: &str) -> BTreeMap<i32, i64> {
        let (consumer, partitions) = (self.member_less(group), self.all());
        tokio::task::spawn_blocking(move || {
            let committed = consumer.committed_offsets(partitions, PATIENCE).expect("the group's offsets");
            let offset = |(&(_, partition), offset): (&(String, i32), &Offset)| Some((partition, offset.to_raw()?));
            committed.to_topic_map().iter().filter_map(offset).filter(|(_, offset)| *offset >= 0).collect()
        })
        .await
        .expect("no panic")
    }

    /// The end of each partition.
    pub(crate) async fn ends(&self) -> BTreeMap<i32, i64> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (consumer, name, partitions) =
                (self.member_less("idem-tests-ends"), self.name.clone(), self.partitions);
            let end =
                move |partition| consumer.fetch_watermarks(&name, partition, PATIENCE).map(|(_, end)| (partition, end));
            let asked = tokio::task::spawn_blocking(move || (0..partitions).map(end).collect());
            match asked.await.expect("no panic") {
                Ok(ends) => return ends,
                // A broker that has just come back does not lead its partitions yet.
                Err(error) => assert!(Instant::now() < until, "its offsets: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Moves the group's committed offsets, as an operator does while the group has no members.
    pub(crate) async fn move_to(&self, group: &str, offsets: &BTreeMap<i32, i64>) {
        let (consumer, mut list) = (self.member_less(group), TopicPartitionList::new());
        for (partition, offset) in offsets {
            list.add_partition_offset(&self.name, *partition, Offset::Offset(*offset)).expect("an offset");
        }
        let commit = move || consumer.commit(&list, CommitMode::Sync);
        tokio::task::spawn_blocking(commit).await.expect("no panic").expect("the group is empty");
    }

    /// Adds partitions, so that there are `count`.
    pub(crate) async fn add_partitions(&self, count: usize) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().expect("a client");
        let added = admin.create_partitions([&NewPartitions::new(&self.name, count)], &AdminOptions::new()).await;
        added.expect("the broker answers")[0].as_ref().expect("more partitions");
    }

    fn all(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.name, 0, self.partitions - 1);
        list
    }

    /// A client that asks about a group without being a member.
    fn member_less(&self, group: &str) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", group).set("enable.auto.commit", "false");
        config.create().expect("a client")
    }
}
