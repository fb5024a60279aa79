//! The broker that the tests use: topics of their own on it, and the requests to it beside the source.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::{Message, SourceError};
use idem_kafka::{KafkaOptions, Reset};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    message::{Header, OwnedHeaders},
    metadata::MetadataPartition,
    producer::{FutureProducer, FutureRecord},
    types::RDKafkaErrorCode,
};

use tokio::sync::OnceCell;

use crate::wire;

/// How long a test waits for anything: the machine may be busy with the rest of the suite.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) static BROKERS: LazyLock<String> =
    LazyLock::new(|| std::env::var("IDEM_KAFKA_BROKERS").unwrap_or_else(|_| "127.0.0.1:29092".to_owned()));

static ADMIN: LazyLock<AdminClient<DefaultClientContext>> = LazyLock::new(|| config().create().unwrap());

static PRODUCER: LazyLock<FutureProducer> =
    LazyLock::new(|| config().set("linger.ms", "0").set("message.max.bytes", "2000000").create().unwrap());

static COORDINATOR: OnceCell<()> = OnceCell::const_new();

/// Waits until the broker coordinates groups, which a new one begins to do when it is first asked for it.
async fn coordinator() {
    eventually("the group coordinator", || {
        let mut list = TopicPartitionList::new();
        list.add_partition("idem-no-such-topic", 0);
        let asking: BaseConsumer = config().set("group.id", "idem-coordinator").create().unwrap();
        asking.committed_offsets(list, PATIENCE).is_ok()
    })
    .await;
}

pub(crate) fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &*BROKERS).set("topic.metadata.refresh.interval.ms", "100");
    config
}

/// A name that no other test has, in this run or another.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Process ids come again; a hasher's seed does not.
    let seed = RandomState::new().build_hasher().finish();
    format!("{what}-{}-{count}-{seed:016x}", std::process::id())
}

/// A topic with a group of its own, removed when it is dropped.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) group: String,
}

impl Topic {
    pub(crate) async fn new(partitions: i32) -> Self {
        Self::with(partitions, &[]).await
    }

    pub(crate) async fn with(partitions: i32, settings: &[(&str, &str)]) -> Self {
        COORDINATOR.get_or_init(coordinator).await;
        let topic = Self { name: unique("idem-test"), group: unique("idem-group") };
        topic.create(partitions, settings).await;
        topic
    }

    pub(crate) async fn create(&self, partitions: i32, settings: &[(&str, &str)]) {
        let mut new =
            NewTopic::new(&self.name, partitions, TopicReplication::Fixed(1)).set("max.message.bytes", "2000000");
        for (name, value) in settings {
            new = new.set(name, value);
        }
        ADMIN.create_topics([&new], &options()).await.unwrap().remove(0).unwrap();
        self.until_partitions(Some(partitions)).await;
    }

    /// Removes the records of a partition before `offset`, as retention does.
    pub(crate) async fn truncate(&self, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.name, partition, Offset::Offset(offset)).unwrap();
        ADMIN.delete_records(&list, &options()).await.unwrap();
        eventually("the truncation", || {
            self.asking().fetch_watermarks(&self.name, partition, PATIENCE).unwrap().0 == offset
        })
        .await;
    }

    pub(crate) async fn delete(&self) {
        ADMIN.delete_topics(&[&self.name], &options()).await.unwrap().remove(0).unwrap();
        self.until_partitions(None).await;
    }

    /// Waits until the broker says so.
    async fn until_partitions(&self, expected: Option<i32>) {
        eventually("the topic's partitions", || {
            let metadata = ADMIN.inner().fetch_metadata(Some(&self.name), PATIENCE).unwrap();
            let topic = &metadata.topics()[0];
            let leads = |partition: &&MetadataPartition| {
                // A leader that is named may not know it yet.
                partition.leader() >= 0 && ADMIN.inner().fetch_watermarks(&self.name, partition.id(), PATIENCE).is_ok()
            };
            let leaders = topic.partitions().iter().filter(leads).count();
            let found = topic.error().is_none().then_some(i32::try_from(leaders).unwrap());
            found == expected
        })
        .await;
    }

    pub(crate) async fn add_partition(&self) {
        let count = self.partitions().len();
        let new = NewPartitions::new(&self.name, count + 1);
        ADMIN.create_partitions([&new], &options()).await.unwrap().remove(0).unwrap();
        self.until_partitions(Some(i32::try_from(count + 1).unwrap())).await;
    }

    pub(crate) fn partitions(&self) -> Vec<i32> {
        let metadata = ADMIN.inner().fetch_metadata(Some(&self.name), PATIENCE).unwrap();
        metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect()
    }

    /// Fast where the defaults are slow, so that tests need not wait.
    pub(crate) fn options(&self) -> KafkaOptions {
        fast(KafkaOptions::new(&*BROKERS, &self.name, &self.group)).reset(Reset::Earliest)
    }

    pub(crate) async fn publish(&self, message: Message) -> Result<(), SourceError> {
        if message.id().is_some() {
            let cure = "Use a header".to_owned();
            return Err(SourceError::Refused { problem: "Kafka has no message ids".to_owned(), cure });
        }
        let headers = message
            .headers()
            .iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value }));
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.name).headers(headers);
        if let Some(payload) = message.payload() {
            record = record.payload(payload);
        }
        if let Some(key) = message.record_key() {
            record = record.key(key);
        }
        match PRODUCER.send(record, PATIENCE).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(SourceError::Unavailable { doing: "publishing", source: Box::new(error) }),
        }
    }

    /// To one partition, with a payload and nothing else. Answers the offset.
    pub(crate) async fn put(&self, partition: i32, payload: &str) -> i64 {
        loop {
            let record = FutureRecord::<str, str>::to(&self.name).partition(partition).payload(payload);
            match PRODUCER.send(record, PATIENCE).await {
                Ok(delivered) => return delivered.offset,
                // The producer does not know a partition that was just added.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::UnknownPartition), _)) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
    }

    /// The group's committed offsets, by partition.
    pub(crate) fn committed(&self) -> Vec<Option<i64>> {
        self.committed_in(&self.partitions())
    }

    /// The same of these, also where there is no such topic.
    pub(crate) fn committed_in(&self, partitions: &[i32]) -> Vec<Option<i64>> {
        let asking = self.asking();
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(&self.name, *partition);
        }
        let committed = asking.committed_offsets(list, PATIENCE).unwrap();
        let offset = |partition: &i32| match committed.find_partition(&self.name, *partition).unwrap().offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        partitions.iter().map(offset).collect()
    }

    /// How many records the group has not finished.
    pub(crate) fn lag(&self) -> u64 {
        let asking = self.asking();
        let lag = |(partition, committed): (i32, &Option<i64>)| {
            let (low, high) = asking.fetch_watermarks(&self.name, partition, PATIENCE).unwrap();
            u64::try_from(high - committed.unwrap_or(low)).unwrap()
        };
        (0..).zip(&self.committed()).map(lag).sum()
    }

    /// A consumer with the group's name that is no member of it.
    pub(crate) fn asking(&self) -> BaseConsumer {
        config().set("group.id", &self.group).create().unwrap()
    }

    /// The ids of the group's members.
    pub(crate) fn members(&self) -> Vec<String> {
        let groups = ADMIN.inner().fetch_group_list(Some(&self.group), PATIENCE).unwrap();
        let members =
            groups.groups().iter().flat_map(|group| group.members().iter().map(|member| member.id().to_owned()));
        members.collect()
    }

    /// Whether the group has so many members, and each of them its partitions.
    pub(crate) fn is_stable(&self, members: usize) -> bool {
        let groups = ADMIN.inner().fetch_group_list(Some(&self.group), PATIENCE).unwrap();
        groups.groups().iter().any(|group| group.state() == "Stable" && group.members().len() == members)
    }

    /// Takes every member out of the group behind its back, as a session time-out does.
    pub(crate) fn expel(&self) {
        for member in self.members() {
            wire::leave(&self.group, &member);
        }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let name = self.name.clone();
        // On a thread of its own, because a runtime may not be blocked; a topic that is left over is gone with the
        // broker.
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(ADMIN.delete_topics(&[&name], &options()));
        })
        .join();
    }
}

/// Fast where the defaults are slow; but a busy machine costs no member its session.
pub(crate) fn fast(options: KafkaOptions) -> KafkaOptions {
    options
        .commit_every(Duration::from_millis(20))
        .set("heartbeat.interval.ms", "100")
        .set("session.timeout.ms", "45000")
        .set("topic.metadata.refresh.interval.ms", "100")
        .set("fetch.wait.max.ms", "20")
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
}

/// Asks until the answer is yes.
pub(crate) async fn eventually(what: &str, mut yes: impl FnMut() -> bool) {
    let asked = async {
        while !tokio::task::block_in_place(&mut yes) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asked).await.is_ok(), "{what}: not within {PATIENCE:?}");
}
