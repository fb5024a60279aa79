//! A group that has members on another topic, as where one group stands for all topics of an application.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use idem_core::SourceError;
use idem_kafka::{KafkaOptions, Reset};
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::{
    cluster::{BROKERS, Topic, config, eventually, fast},
    member::{attach, join, payloads, places},
};

/// A member of another program, which consumes another topic in the same group and goes on polling.
struct Foreign {
    stop: Arc<AtomicBool>,
    polling: Option<JoinHandle<()>>,
}

impl Foreign {
    async fn join(group: &str, topic: &Topic) -> Self {
        let mut config = config();
        config.set("group.id", group).set("partition.assignment.strategy", "cooperative-sticky");
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.subscribe(&[&topic.name]).unwrap();
        let (stop, has_joined) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let polling = std::thread::spawn({
            let (stop, has_joined) = (Arc::clone(&stop), Arc::clone(&has_joined));
            move || {
                while !stop.load(Ordering::SeqCst) {
                    drop(consumer.poll(Duration::from_millis(50)));
                    if consumer.assignment().is_ok_and(|assigned| assigned.count() > 0) {
                        has_joined.store(true, Ordering::SeqCst);
                    }
                }
            }
        });
        eventually("the other member has its topic", || has_joined.load(Ordering::SeqCst)).await;
        Self { stop, polling: Some(polling) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(polling) = self.polling.take() {
            drop(polling.join());
        }
    }
}

/// Two topics, of which a member of the group consumes the first.
async fn two_topics() -> (Topic, Topic, Foreign) {
    let other = Topic::new(2).await;
    let mut topic = Topic::new(2).await;
    topic.group.clone_from(&other.group);
    let foreign = Foreign::join(&topic.group, &other).await;
    (other, topic, foreign)
}

/// B24: such a group takes positions from its members alone, so the start is committed by the one that a partition is given to.
#[tokio::test(flavor = "multi_thread")]
async fn b24_a_group_with_members_on_another_topic_starts_on_this_one() {
    let (_other, topic, _foreign) = two_topics().await;
    for number in 0..4 {
        topic.put(number % 2, &number.to_string()).await;
    }
    let refused = attach(fast(KafkaOptions::new(&*BROKERS, &topic.name, &topic.group))).await.err().unwrap();
    assert!(matches!(&refused, SourceError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("has no position"), "{refused}");
    let member = join(topic.options()).await;
    let held = member.take(4).await;
    assert_eq!(topic.committed(), [Some(0), Some(0)], "the start, before anything is acknowledged");
    let mut seen = payloads(&held);
    seen.sort_unstable();
    assert_eq!(seen, ["0", "1", "2", "3"]);
    member.acknowledge(held).await;
    eventually("all is committed", || topic.committed() == [Some(2), Some(2)]).await;
    member.close().await;
    topic.put(0, "next").await;
    let member = join(fast(KafkaOptions::new(&*BROKERS, &topic.name, &topic.group))).await;
    assert_eq!(payloads(&member.take(1).await), ["next"]);
}

/// B24: a member that dies before it has acknowledged anything leaves the start behind, and `latest` means no later end.
#[tokio::test(flavor = "multi_thread")]
async fn b24_the_end_at_which_such_a_group_starts_is_kept_over_a_crash() {
    let (_other, topic, _foreign) = two_topics().await;
    topic.put(0, "before").await;
    let member = join(topic.options().reset(Reset::Latest)).await;
    topic.put(0, "first").await;
    let held = member.take(1).await;
    assert_eq!((places(&held), payloads(&held)), (vec![(0, 1)], vec!["first".to_owned()]));
    drop(held);
    drop(member);
    topic.put(0, "second").await;
    let member = join(topic.options().reset(Reset::Latest)).await;
    assert_eq!(payloads(&member.take(2).await), ["first", "second"]);
}
