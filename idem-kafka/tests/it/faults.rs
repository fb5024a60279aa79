//! Brokers that fail and refuse (E2, E9, E21, E23, E25, J1, J9, the watchdog), injected by a mock cluster in this process.

use std::time::Duration;

use idem_core::{
    Source, SourceError,
    source::{REFUSAL_GRACE, Received},
};
use idem_kafka::{KafkaOptions, Reset};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    mocking::MockCluster,
    producer::{DefaultProducerContext, FutureProducer, FutureRecord},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::{
    cluster::{PATIENCE, eventually, fast},
    member::{Member, attach, join, payloads, within},
};

const TOPIC: &str = "purchases";

struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    brokers: String,
}

impl Mock {
    fn new() -> Self {
        Self::of(1)
    }

    fn of(partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, partitions, 1).unwrap();
        let brokers = cluster.bootstrap_servers();
        Self { cluster, brokers }
    }

    fn options(&self) -> KafkaOptions {
        // The mock cluster ends no membership sooner than a session.
        fast(KafkaOptions::new(&self.brokers, TOPIC, "ledger")).set("session.timeout.ms", "6000").reset(Reset::Earliest)
    }

    async fn put(&self, payloads: &[&str]) {
        let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", &self.brokers).create().unwrap();
        for payload in payloads {
            let record = FutureRecord::<str, str>::to(TOPIC).partition(0).payload(payload);
            producer.send(record, PATIENCE).await.unwrap();
        }
    }

    fn committed(&self) -> Option<i64> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("group.id", "ledger");
        let asking: BaseConsumer = config.create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(TOPIC, 0);
        match asking.committed_offsets(list, PATIENCE).unwrap().elements()[0].offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        }
    }

    fn fails(&self, api: RDKafkaApiKey, error: RDKafkaRespErr, times: usize) {
        self.cluster.request_errors(api, &vec![error; times]);
    }
}

/// Receives and acknowledges until `done`; revocations and an unreachable broker are taken as they come.
async fn work_until(member: &Member, mut done: impl FnMut() -> bool) {
    let work = async {
        while !tokio::task::block_in_place(&mut done) {
            let receive = tokio::time::timeout(Duration::from_millis(50), member.source.receive(100));
            match receive.await {
                Ok(Ok(Received::Deliveries(held))) => drop(member.try_acknowledge(held).await),
                Ok(Ok(Received::Revoked(_)) | Err(SourceError::Unavailable { .. })) | Err(_) => {}
                Ok(other) => panic!("{other:?}"),
            }
        }
    };
    within("being done", work).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e9_commits_that_are_refused_are_no_errors_and_are_sent_again() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION as ILLEGAL_GENERATION,
        RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS as REBALANCE_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID as UNKNOWN_MEMBER_ID,
    };
    // The last two also end the membership, which the mock cluster takes some seconds to begin again.
    for (error, times) in [(REBALANCE_IN_PROGRESS, 3), (ILLEGAL_GENERATION, 1), (UNKNOWN_MEMBER_ID, 1)] {
        let mock = Mock::new();
        mock.put(&["0", "1", "2"]).await;
        let member = join(mock.options()).await;
        let held = member.take(3).await;
        mock.fails(RDKafkaApiKey::OffsetCommit, error, times);
        member.try_acknowledge(held).await;
        work_until(&member, || mock.committed() == Some(3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e9_the_last_commit_of_a_close_is_sent_again() {
    let mock = Mock::new();
    mock.put(&["0", "1"]).await;
    let member = join(mock.options().commit_every(Duration::from_secs(300))).await;
    let held = member.take(2).await;
    member.acknowledge(held).await;
    mock.fails(RDKafkaApiKey::OffsetCommit, RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS, 1);
    member.close().await;
    assert_eq!(mock.committed(), Some(2));
}

/// D38: a group that does not take positions is not waited for without end, and has them once it does.
#[tokio::test(flavor = "multi_thread")]
async fn d38_a_flush_that_the_group_does_not_take_is_told_of() {
    let mock = Mock::new();
    mock.put(&["0", "1"]).await;
    let member = join(mock.options().commit_every(Duration::from_secs(300))).await;
    let held = member.take(2).await;
    member.acknowledge(held).await;
    mock.fails(RDKafkaApiKey::OffsetCommit, RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE, 100_000);
    let refused = within("flushing", member.source.flush()).await.unwrap_err();
    assert!(matches!(refused, SourceError::Unavailable { doing: "committing positions", .. }), "{refused:?}");
    mock.cluster.clear_request_errors(RDKafkaApiKey::OffsetCommit);
    mock.cluster.broker_down(1).unwrap();
    assert!(within("flushing", member.source.flush()).await.is_err());
    mock.cluster.broker_up(1).unwrap();
    member.flush().await;
    assert_eq!(mock.committed(), Some(2));
    within("closing", member.source.close(PATIENCE)).await;
    assert!(within("flushing", member.source.flush()).await.is_err(), "it is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_cannot_be_reached_are_unavailable_and_may_come_later() {
    let mock = Mock::new();
    mock.cluster.broker_down(1).unwrap();
    let refused = attach(mock.options()).await.err().unwrap();
    assert!(matches!(refused, SourceError::Unavailable { .. }), "{refused:?}");
    let source = mock.options().build().unwrap();
    assert!(within("attaching", source.attach()).await.is_err());
    mock.cluster.broker_up(1).unwrap();
    within("attaching", source.attach()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn j9_brokers_that_go_away_are_reported_and_waited_for() {
    let mock = Mock::new();
    mock.put(&["0"]).await;
    let member = join(mock.options()).await;
    let held = member.take(1).await;
    mock.cluster.broker_down(1).unwrap();
    match member.receive(1).await {
        Err(SourceError::Unavailable { .. }) => {}
        other => panic!("instead of a report came {other:?}"),
    }
    assert!(member.source.unreachable_for().is_some());
    mock.cluster.broker_up(1).unwrap();
    member.try_acknowledge(held).await;
    // Nothing comes that would show it.
    eventually("a broker that answers", || member.source.unreachable_for().is_none()).await;
    mock.put(&["1"]).await;
    work_until(&member, || mock.committed() == Some(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_refused_with_the_cure() {
    let mock = Mock::new();
    mock.fails(RDKafkaApiKey::OffsetFetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED, 20);
    let refused = attach(mock.options()).await.err().unwrap().to_string();
    assert!(refused.contains("group \"ledger\"") && refused.contains("Grant Read on the group"), "{refused}");
    let mock = Mock::new();
    mock.cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    let refused = attach(mock.options()).await.err().unwrap().to_string();
    assert!(refused.contains("topic \"purchases\"") && refused.contains("Grant Read and Describe"), "{refused}");
}

/// A right that is taken away while a worker runs is an outage at first, and then a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn e27_rights_that_are_taken_away_are_refused_after_a_grace() {
    let mock = Mock::new();
    let member = join(mock.options()).await;
    member.idle().await;
    mock.fails(RDKafkaApiKey::Fetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, 100_000);
    member.outage("Grant Read and Describe").await;
    let refusal = member.refusal().await.to_string();
    assert!(refusal.contains("topic \"purchases\""), "{refusal}");
}

/// E31, E32: a right that comes back within the grace ends nothing, although no record comes that would show it; the consumer
/// stays, and with it its partitions. When the right is taken away again, that has a grace of its own.
#[tokio::test(flavor = "multi_thread")]
async fn e31_e32_rights_that_come_back_disturb_nobody_and_may_go_again() {
    let mock = Mock::new();
    let member = join(mock.options()).await;
    member.idle().await;
    let refuse = || mock.fails(RDKafkaApiKey::Fetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, 2);
    refuse();
    member.outage("Grant Read and Describe").await;
    let replaced = tokio::time::timeout(REFUSAL_GRACE + Duration::from_secs(12), member.source.receive(0)).await;
    assert!(replaced.is_err(), "{replaced:?}");
    refuse();
    member.outage("Grant Read and Describe").await;
    mock.put(&["0"]).await;
    assert_eq!(payloads(&member.take(1).await), ["0"]);
}

/// The brokers answer nothing for minutes; without a deadline closing would take as long.
#[tokio::test(flavor = "multi_thread")]
async fn j1_closing_keeps_its_deadline_when_the_brokers_hang() {
    let mock = Mock::new();
    mock.put(&["0"]).await;
    let member = join(mock.options()).await;
    let held = member.take(1).await;
    mock.cluster.broker_round_trip_time(1, Duration::from_secs(600)).unwrap();
    member.acknowledge(held).await;
    // Far less than the brokers' answer takes.
    within("closing", member.source.close(Duration::from_millis(300))).await;
    assert!(matches!(member.receive(1).await, Ok(Received::End)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_delivers_nothing_is_replaced() {
    let mock = Mock::new();
    mock.put(&["0"]).await;
    let member = join(mock.options().stalled_after(Duration::from_secs(1))).await;
    let held = member.take(1).await;
    member.acknowledge(held).await;
    // Fetches fail in a way that the client keeps to itself.
    mock.fails(RDKafkaApiKey::Fetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, 100_000);
    let mut put = Vec::new();
    let revocation = within("a revocation", async {
        loop {
            // Only an end that moves proves that something is there.
            put.push((put.len() + 1).to_string());
            mock.put(&[put.last().unwrap()]).await;
            if let Ok(revocation) = tokio::time::timeout(Duration::from_millis(300), member.revocation()).await {
                return revocation;
            }
        }
    })
    .await;
    assert!(revocation.drained.is_none() && revocation.assignments.len() == 1, "{revocation:?}");
    mock.cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    eventually("the position", || mock.committed() == Some(1)).await;
    let held = within("the next message", async {
        loop {
            match member.receive(1).await {
                Ok(Received::Deliveries(held)) => return held,
                Ok(Received::Revoked(_)) | Err(SourceError::Unavailable { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    assert_eq!(payloads(&held), ["1"]);
}

/// B-M3: the client library reports it with each fetch, and the partition stands still.
#[tokio::test(flavor = "multi_thread")]
async fn e21_records_that_cannot_be_unpacked_are_told_of_with_the_cure() {
    let mock = Mock::new();
    mock.put(&["0"]).await;
    mock.fails(RDKafkaApiKey::Fetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE, 100_000);
    let member = join(mock.options()).await;
    let told = member.outage("zstd").await;
    assert!(told.contains("topic \"purchases\"") && told.contains("unpacked"), "{told}");
    mock.cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    assert_eq!(payloads(&member.take(1).await), ["0"]);
}

/// An unknown error is reported in the client library's words, once it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn e21_an_unknown_error_that_repeats_is_told_of() {
    let mock = Mock::new();
    mock.put(&["0"]).await;
    mock.fails(RDKafkaApiKey::Fetch, RDKafkaRespErr::RD_KAFKA_RESP_ERR_POLICY_VIOLATION, 100_000);
    let member = join(mock.options()).await;
    let told = member.outage("Policy violation").await;
    assert!(told.contains("consuming") && !told.contains("PolicyViolation"), "{told}");
}

/// B minor: the group answers, and takes no position.
#[tokio::test(flavor = "multi_thread")]
async fn e23_commits_that_are_never_taken_are_told_of() {
    let mock = Mock::new();
    mock.put(&["0", "1"]).await;
    let member = join(mock.options().stalled_after(Duration::from_secs(1))).await;
    let held = member.take(2).await;
    mock.fails(RDKafkaApiKey::OffsetCommit, RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE, 100_000);
    member.acknowledge(held).await;
    let told = member.outage("committing positions").await;
    assert!(told.contains("group \"ledger\"") && told.contains("duplicates"), "{told}");
    mock.cluster.clear_request_errors(RDKafkaApiKey::OffsetCommit);
    work_until(&member, || mock.committed() == Some(2)).await;
}

/// B minor: a coordinator that is far away, or throttles, needs longer than it is usually waited for.
#[tokio::test(flavor = "multi_thread")]
async fn e23_a_slow_coordinator_gets_the_positions_all_the_same() {
    let mock = Mock::new();
    mock.put(&["0", "1"]).await;
    let member = join(mock.options()).await;
    let held = member.take(2).await;
    mock.cluster.broker_round_trip_time(1, Duration::from_millis(1200)).unwrap();
    member.acknowledge(held).await;
    work_until(&member, || mock.committed() == Some(2)).await;
}

/// B minor: one after the other, the ends of so many partitions would take longer than a start may.
#[tokio::test(flavor = "multi_thread")]
async fn e25_a_group_starts_on_hundreds_of_partitions() {
    let mock = Mock::of(600);
    mock.cluster.broker_round_trip_time(1, Duration::from_millis(100)).unwrap();
    let member = join(mock.options()).await;
    mock.cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    mock.put(&["0"]).await;
    assert_eq!(payloads(&member.take(1).await), ["0"]);
    assert_eq!(member.source.partitions(), (0..600).collect::<Vec<_>>());
}
