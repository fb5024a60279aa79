//! Partitions that come and go (E1, E2, E7, E8, E10, J1, J3, J7).

use std::{collections::HashMap, sync::Arc, time::Duration};

use idem_core::{
    Source,
    source::{Received, Settled},
};
use idem_kafka::KafkaOptions;
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer},
    producer::{BaseProducer, BaseRecord, Producer},
};
use tokio::sync::mpsc;

use crate::{
    cluster::{PATIENCE, Topic, config, eventually},
    member::{Deliveries, Member, join, payloads, places, split, within},
};

/// Both partitions have `each` messages.
async fn topic_of_two(each: i64) -> Topic {
    let topic = Topic::new(2).await;
    for offset in 0..each {
        for partition in 0..2 {
            assert_eq!(topic.put(partition, &format!("{partition}/{offset}")).await, offset);
        }
    }
    topic
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_j3_a_zombie_that_finishes_late_moves_no_position() {
    let topic = Topic::new(1).await;
    for number in 0..4 {
        topic.put(0, &number.to_string()).await;
    }
    // It hears of its end only at its next heartbeat.
    let zombie = join(topic.options().set("heartbeat.interval.ms", "3000")).await;
    let held = zombie.take(4).await;
    tokio::task::block_in_place(|| topic.expel());
    let successor = join(topic.options()).await;
    let mut again = successor.take(4).await;
    assert_eq!(payloads(&again), payloads(&held));
    let rest = again.split_off(2);
    successor.acknowledge(again).await;
    eventually("the successor's position", || topic.committed() == [Some(2)]).await;
    // The zombie still believes in its assignment, but its commits belong to a membership that is over.
    let answers = zombie.try_acknowledge(held).await;
    let revocation = zombie.revocation().await;
    assert!(revocation.drained.is_none(), "nobody waits for it");
    assert_eq!(topic.committed(), [Some(2)], "after {answers:?}");
    successor.acknowledge(rest).await;
    eventually("the rest", || topic.committed() == [Some(4)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_what_is_settled_after_a_revocation_is_stale_and_moves_no_position() {
    let topic = topic_of_two(3).await;
    let first = join(topic.options()).await;
    let held = first.take(6).await;
    let second = join(topic.options()).await;
    let revocation = first.revocation().await;
    let moved = moved_partition(&held, &revocation.assignments);
    revocation.drained.unwrap().send(()).unwrap();
    assert_eq!(places(&second.take(3).await), [(moved, 0), (moved, 1), (moved, 2)]);
    let (gone, kept) = split(held, moved);
    assert_eq!(first.try_acknowledge(gone).await, [Settled::Stale; 3]);
    assert_eq!(first.try_acknowledge(kept).await, [Settled::Settled; 3]);
    let mut expected = [Some(3), Some(3)];
    expected[usize::try_from(moved).unwrap()] = Some(0);
    eventually("the kept partition's position", || topic.committed() == expected).await;
}

/// The partition whose deliveries belong to the one assignment that ends.
fn moved_partition(held: &Deliveries, ending: &[idem_core::source::Assignment]) -> i32 {
    assert_eq!(ending.len(), 1, "only one of two partitions moves");
    let moved = held.iter().position(|delivery| delivery.assignment == ending[0]).unwrap();
    places(held)[moved].0
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_under_the_cooperative_protocol_kept_partitions_are_not_disturbed() {
    let topic = topic_of_two(2).await;
    let first = join(topic.options()).await;
    let held = first.take(4).await;
    let second = join(topic.options()).await;
    let revocation = first.revocation().await;
    let moved = moved_partition(&held, &revocation.assignments);
    let (gone, kept) = split(held, moved);
    first.acknowledge(gone).await;
    revocation.drained.unwrap().send(()).unwrap();
    second.idle().await;
    let keeping = kept[0].assignment;
    topic.put(1 - moved, "more").await;
    let more = first.take(1).await;
    assert_eq!(more[0].assignment, keeping);
    // The second leaves, and its partition comes back under another assignment.
    second.close().await;
    topic.put(moved, "back").await;
    let back = first.take(1).await;
    assert_eq!(places(&back), [(moved, 2)]);
    assert!(back[0].assignment != keeping && back[0].assignment != revocation.assignments[0]);
    for settled in [kept, more, back] {
        first.acknowledge(settled).await;
    }
    eventually("every position", || topic.committed() == [Some(3), Some(3)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_positions_are_committed_before_a_partition_is_let_go() {
    let topic = topic_of_two(3).await;
    // Only the revocation commits within this test.
    let first = join(topic.options().commit_every(Duration::from_secs(300))).await;
    let held = first.take(6).await;
    let second = join(topic.options()).await;
    let revocation = first.revocation().await;
    let moved = moved_partition(&held, &revocation.assignments);
    let (mut gone, _kept) = split(held, moved);
    let left = gone.pop().unwrap();
    // A running message is finished while the partition is still held, and counts.
    first.acknowledge(gone).await;
    revocation.drained.unwrap().send(()).unwrap();
    assert_eq!(places(&second.take(1).await), [(moved, 2)]);
    assert_eq!(first.try_acknowledge(vec![left]).await, [Settled::Stale]);
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_a_worker_that_does_not_answer_holds_its_partitions_no_longer_than_the_drain() {
    for strategy in ["cooperative-sticky", "range"] {
        let topic = topic_of_two(1).await;
        let options = |topic: &Topic| topic.options().set("partition.assignment.strategy", strategy);
        let first = join(options(&topic).drain(Duration::from_millis(200))).await;
        let held = first.take(2).await;
        let second = join(options(&topic)).await;
        let revocation = first.revocation().await;
        let again = second.take(1).await;
        let (gone, _) = split(held, places(&again)[0].0);
        assert_eq!(first.try_acknowledge(gone).await, [Settled::Stale], "{strategy}");
        drop(revocation);
    }
}

/// At a stop the worker no longer receives, so it would not answer a revocation.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_stopped_member_lets_go_once_what_it_has_in_hand_is_settled() {
    let topic = topic_of_two(1).await;
    let first = join(topic.options()).await;
    let held = first.take(2).await;
    first.source.stop();
    assert!(matches!(first.receive(1).await, Ok(Received::End)));
    let second = join(topic.options()).await;
    eventually("both members", || topic.members().len() == 2).await;
    first.acknowledge(held).await;
    let moved = within("the moved partition", async {
        loop {
            for partition in 0..2 {
                topic.put(partition, "later").await;
            }
            let receive = second.source.receive(1);
            if let Ok(received) = tokio::time::timeout(Duration::from_millis(300), receive).await {
                return received.unwrap();
            }
        }
    })
    .await;
    let Received::Deliveries(moved) = moved else { panic!("instead of a message came {moved:?}") };
    assert_eq!(payloads(&moved), ["later"], "what the first finished does not come again");
}

/// Receives and acknowledges until the source is stopped; the messages go to `seen`.
async fn work(member: Arc<Member>, seen: mpsc::UnboundedSender<String>) {
    loop {
        match member.source.receive(7).await.unwrap() {
            Received::Deliveries(held) => {
                payloads(&held).into_iter().for_each(|payload| seen.send(payload).unwrap());
                member.try_acknowledge(held).await;
            }
            // Everything is settled by now.
            Received::Revoked(revocation) => drop(revocation),
            Received::End => return,
            other => panic!("{other:?}"),
        }
    }
}

/// Members join and leave in good order while messages arrive: none is lost, and none is delivered twice.
async fn members_come_and_go(strategy: &str) {
    const ROUNDS: usize = 8;
    let topic = Topic::new(4).await;
    let options = || -> KafkaOptions { topic.options().set("partition.assignment.strategy", strategy) };
    let (seen, mut seeing) = mpsc::unbounded_channel();
    let start = || async {
        let member = Arc::new(join(options()).await);
        (Arc::clone(&member), tokio::spawn(work(member, seen.clone())))
    };
    let stays = start().await;
    let mut published = 0;
    for _ in 0..ROUNDS {
        let comes = start().await;
        for _ in 0..20 {
            topic.put(published % 4, &published.to_string()).await;
            published += 1;
        }
        comes.0.source.stop();
        within("the end of intake", comes.1).await.unwrap();
        within("closing", comes.0.source.close(PATIENCE)).await;
    }
    eventually("everything is settled", || topic.lag() == 0).await;
    stays.0.source.stop();
    within("the end of intake", stays.1).await.unwrap();
    let mut counts: HashMap<String, usize> = HashMap::new();
    while let Ok(payload) = seeing.try_recv() {
        *counts.entry(payload).or_default() += 1;
    }
    assert_eq!(counts.len(), usize::try_from(published).unwrap(), "{strategy}: every message is delivered");
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{strategy}: delivered more than once: {twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_e10_members_come_and_go_under_the_cooperative_protocol() {
    members_come_and_go("cooperative-sticky").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e8_e10_members_come_and_go_under_the_eager_protocol() {
    members_come_and_go("range").await;
}

/// The worker does not receive for longer than `max.poll.interval.ms`, with more waiting than the buffer takes.
#[tokio::test(flavor = "multi_thread")]
async fn e7_j7_a_slow_worker_stays_a_member_and_gets_a_backlog_whole_and_in_order() {
    const COUNT: usize = 90_000;
    let topic = Topic::new(1).await;
    tokio::task::block_in_place(|| publish_many(&topic, COUNT));
    let options = topic
        .options()
        .set("session.timeout.ms", "6000")
        .set("max.poll.interval.ms", "6000")
        .drain(Duration::from_secs(2));
    let member = join(options).await;
    let first = member.take(1).await;
    let before = topic.members();
    // The time itself is what is tested: it must pass the interval, in which librdkafka would give the member up.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(topic.members(), before);
    let mut next = 1;
    member.acknowledge(first).await;
    while next < COUNT {
        // Any revocation would fail this.
        let held = member.take(5_000.min(COUNT - next)).await;
        let expected: Vec<_> = (next..next + held.len()).map(|number| number.to_string()).collect();
        assert_eq!(payloads(&held), expected);
        next += held.len();
        member.acknowledge(held).await;
    }
    let end = i64::try_from(COUNT).unwrap();
    eventually("the position", || topic.committed() == [Some(end)]).await;
}

fn publish_many(topic: &Topic, count: usize) {
    let producer: BaseProducer = config().set("enable.idempotence", "true").create().unwrap();
    for number in 0..count {
        producer.send(BaseRecord::<str, str>::to(&topic.name).partition(0).payload(&number.to_string())).unwrap();
        producer.poll(Duration::ZERO);
    }
    producer.flush(PATIENCE).unwrap();
}

/// B-M3, E26: a member with other assignment strategies keeps this one out, for as long as it lives. That is reported, with
/// the cure, and the worker does not count as ready.
#[tokio::test(flavor = "multi_thread")]
async fn e21_e26_a_group_that_does_not_let_this_member_in_is_told_of_and_it_is_not_ready() {
    let topic = Topic::new(1).await;
    topic.put(0, "one").await;
    // Only members may commit once there is one, so the group has its position before.
    let mut start = TopicPartitionList::new();
    start.add_partition_offset(&topic.name, 0, Offset::Offset(0)).unwrap();
    tokio::task::block_in_place(|| topic.asking().commit(&start, CommitMode::Sync)).unwrap();
    let mut other = config();
    other
        .set("group.id", &topic.group)
        .set("partition.assignment.strategy", "range")
        .set("enable.auto.commit", "false");
    let other: BaseConsumer = other.create().unwrap();
    other.subscribe(&[&topic.name]).unwrap();
    eventually("the other member", || {
        drop(other.poll(Duration::from_millis(50)));
        topic.is_stable(1)
    })
    .await;
    let member = join(topic.options()).await;
    let told = member.outage("partition.assignment.strategy").await;
    assert!(told.contains(&topic.group) && !told.contains("InconsistentGroupProtocol"), "{told}");
    assert!(!member.source.takes_part() && member.source.partitions().is_empty());
    drop(other);
    assert_eq!(payloads(&member.take(1).await), ["one"]);
    assert!(member.source.takes_part());
    assert_eq!(member.source.partitions(), [0]);
}
