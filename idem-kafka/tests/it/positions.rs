//! Where a group starts, goes on, and refuses to go on (D5, E3, E4, E5, E6, E13).

use std::time::Duration;

use idem_core::{Source, SourceError};
use idem_kafka::{KafkaOptions, Reset};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    producer::{BaseProducer, BaseRecord, Producer},
};

use crate::{
    cluster::{BROKERS, PATIENCE, Topic, config, eventually, fast, unique},
    member::{attach, join, payloads, places, split},
};

async fn committed(topic: &Topic, expected: &[Option<i64>]) {
    eventually(&format!("committed positions {expected:?}"), || topic.committed() == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_finishing_out_of_order_commits_no_further_than_the_lowest_unfinished() {
    let topic = Topic::new(1).await;
    for number in 0..10 {
        topic.put(0, &number.to_string()).await;
    }
    let member = join(topic.options()).await;
    let mut held = member.take(10).await;
    let (last, third) = (held.pop().unwrap(), held.remove(3));
    member.acknowledge(held).await;
    committed(&topic, &[Some(3)]).await;
    member.acknowledge(vec![last]).await;
    member.acknowledge(vec![third]).await;
    committed(&topic, &[Some(10)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_members_of_one_group_each_commit_their_own_lowest_unfinished() {
    let topic = Topic::new(2).await;
    for number in 0..12 {
        topic.put(number % 2, &number.to_string()).await;
    }
    let first = join(topic.options()).await;
    let held = first.take(12).await;
    // Of partition 0 the second message is left, of partition 1 none.
    let (left, done): (Vec<_>, Vec<_>) =
        held.into_iter().map(|delivery| vec![delivery]).partition(|one| places(one) == [(0, 1)]);
    for one in done.into_iter().rev() {
        first.acknowledge(one).await;
    }
    committed(&topic, &[Some(1), Some(6)]).await;
    drop(left);
    drop(first);
    let second = join(topic.options()).await;
    assert_eq!(places(&second.take(5).await), [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]);
}

/// A transaction of `count` records, which is committed or aborted.
fn transaction(topic: &Topic, producer: &BaseProducer, count: usize, commits: bool) {
    producer.begin_transaction().unwrap();
    for number in 0..count {
        let payload = format!("{number} {}", if commits { "committed" } else { "aborted" });
        producer.send(BaseRecord::<str, str>::to(&topic.name).partition(0).payload(&payload)).unwrap();
    }
    // Otherwise an abort only drops what is still queued here.
    producer.flush(PATIENCE).unwrap();
    if commits { producer.commit_transaction(PATIENCE) } else { producer.abort_transaction(PATIENCE) }.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_e12_aborted_transactions_have_no_effect_and_their_gaps_are_not_waited_for() {
    let topic = Topic::new(1).await;
    let transactional: BaseProducer = config().set("transactional.id", unique("idem")).create().unwrap();
    tokio::task::block_in_place(|| {
        transactional.init_transactions(PATIENCE).unwrap();
        transaction(&topic, &transactional, 5, false);
        transaction(&topic, &transactional, 2, true);
        transaction(&topic, &transactional, 3, false);
    });
    let member = join(topic.options()).await;
    let held = member.take(2).await;
    assert_eq!(payloads(&held), ["0 committed", "1 committed"]);
    // Five aborted records and their marker come before, and the same after two records and their marker.
    assert_eq!(places(&held), [(0, 6), (0, 7)]);
    member.acknowledge(held).await;
    member.idle().await;
    // Behind the last record stand its marker, three aborted records and theirs, and after the next one its marker.
    committed(&topic, &[Some(13)]).await;
    tokio::task::block_in_place(|| transaction(&topic, &transactional, 1, true));
    let held = member.take(1).await;
    assert_eq!(places(&held), [(0, 13)]);
    member.acknowledge(held).await;
    committed(&topic, &[Some(15)]).await;
}

/// D38: a process that dies right after a flush takes nothing back that it covers, whenever positions are due.
#[tokio::test(flavor = "multi_thread")]
async fn d38_what_is_flushed_is_committed_at_once() {
    let topic = Topic::new(2).await;
    for number in 0..6 {
        topic.put(number % 2, &number.to_string()).await;
    }
    let member = join(topic.options().commit_every(Duration::from_secs(300))).await;
    let (mut first, mut second) = split(member.take(6).await, 0);
    let rest = first.split_off(2);
    let now = || tokio::task::block_in_place(|| topic.committed());
    member.acknowledge(first).await;
    member.flush().await;
    assert_eq!(now(), [Some(2), Some(0)]);
    // An earlier record holds the position.
    let held = second.remove(0);
    member.acknowledge(second).await;
    member.flush().await;
    assert_eq!(now(), [Some(2), Some(0)]);
    member.acknowledge(vec![held]).await;
    member.acknowledge(rest).await;
    member.flush().await;
    assert_eq!(now(), [Some(3), Some(3)]);
    // Nothing is new.
    member.flush().await;
}

/// B-M9: the markers of a transactional producer behind its last record are no lag, and when they have expired nothing was
/// lost.
#[tokio::test(flavor = "multi_thread")]
async fn e22_positions_pass_what_is_behind_the_last_record_and_its_end_is_no_loss() {
    let topic = Topic::new(1).await;
    let transactional: BaseProducer = config().set("transactional.id", unique("idem")).create().unwrap();
    tokio::task::block_in_place(|| {
        transactional.init_transactions(PATIENCE).unwrap();
        transaction(&topic, &transactional, 2, true);
        transaction(&topic, &transactional, 30, false);
    });
    let member = join(topic.options()).await;
    let mut held = member.take(2).await;
    let first = held.remove(0);
    member.acknowledge(held).await;
    // At its end, and yet the record in hand holds the position.
    committed(&topic, &[Some(0)]).await;
    member.acknowledge(vec![first]).await;
    member.idle().await;
    committed(&topic, &[Some(34)]).await;
    assert_eq!(topic.lag(), 0);
    member.close().await;
    topic.truncate(0, 34).await;
    let member = join(topic.options()).await;
    topic.put(0, "next").await;
    assert_eq!(places(&member.take(1).await), [(0, 34)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_the_gaps_of_a_compacted_topic_are_not_waited_for() {
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("max.compaction.lag.ms", "100"),
    ];
    let topic = Topic::with(1, &settings).await;
    let key = |number: usize| ["a", "b"][number % 2];
    let message = |number: usize| idem_core::Message::new(number.to_string()).with_record_key(key(number));
    for number in 0..20 {
        topic.publish(message(number)).await.unwrap();
    }
    // The cleaner leaves the last segment alone, so something must follow; and how often it runs is the broker's own affair.
    let mut number = 20;
    let reading = Topic { name: topic.name.clone(), group: unique("idem-compacted") };
    loop {
        topic.publish(message(number)).await.unwrap();
        number += 1;
        let first = join(reading.options()).await;
        let places = places(&first.take(1).await);
        drop(first);
        if places[0].1 > 0 {
            break;
        }
        assert!(number < 500, "the topic was never compacted");
    }
    let member = join(topic.options()).await;
    assert_eq!(member.attached.redelivery_horizon, None);
    let warnings = &member.attached.warnings;
    assert!(warnings[0].contains("cleanup.policy=compact"), "{warnings:?}");
    let mut seen = Vec::new();
    while seen.last() != Some(&(0, i64::try_from(number).unwrap() - 1)) {
        let held = member.take(1).await;
        seen.extend(places(&held));
        member.acknowledge(held).await;
    }
    assert!(seen.len() < number, "there were no gaps");
    committed(&topic, &[Some(i64::try_from(number).unwrap())]).await;
    member.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_position_whose_records_are_gone_is_refused_and_nothing_is_skipped() {
    let topic = Topic::new(1).await;
    for number in 0..10 {
        topic.put(0, &number.to_string()).await;
    }
    let member = join(topic.options()).await;
    let mut held = member.take(3).await;
    member.acknowledge(held.split_off(0)).await;
    member.close().await;
    committed(&topic, &[Some(3)]).await;
    topic.truncate(0, 5).await;
    // The reset is for groups that know nothing of the topic; it must not hide this.
    let member = join(topic.options().reset(Reset::Latest)).await;
    let refusal = member.refusal().await.to_string();
    assert!(refusal.contains(&format!("{}/0/3 (it has 5 to 10)", topic.name)), "{refusal}");
    assert!(refusal.contains("--reset-offsets"), "{refusal}");
    member.close().await;
    committed(&topic, &[Some(3)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_position_beyond_the_end_is_refused() {
    let topic = Topic::new(1).await;
    topic.put(0, "0").await;
    operator_moves_to(&topic, 7);
    let refusal = join(topic.options()).await.refusal().await.to_string();
    assert!(refusal.contains(&format!("{}/0/7 (it has 0 to 1)", topic.name)), "{refusal}");
}

/// As `kafka-consumer-groups --reset-offsets` does while the group has no members.
fn operator_moves_to(topic: &Topic, offset: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic.name, 0, Offset::Offset(offset)).unwrap();
    tokio::task::block_in_place(|| topic.asking().commit(&list, CommitMode::Sync)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_position_that_an_operator_moved_is_where_it_starts() {
    let topic = Topic::new(1).await;
    for number in 0..10 {
        topic.put(0, &number.to_string()).await;
    }
    let member = join(topic.options()).await;
    let held = member.take(10).await;
    let before: Vec<_> = held.iter().map(|delivery| delivery.message.id().unwrap().to_owned()).collect();
    member.acknowledge(held).await;
    member.close().await;
    for (offset, count) in [(2, 8), (9, 1)] {
        operator_moves_to(&topic, offset);
        let member = join(topic.options()).await;
        let again = member.take(count).await;
        assert_eq!(places(&again)[0], (0, offset));
        let ids: Vec<_> = again.iter().map(|delivery| delivery.message.id().unwrap()).collect();
        assert_eq!(ids, before[10 - count..], "a rewind delivers the same messages");
        member.close().await;
        committed(&topic, &[Some(offset)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e13_a_topic_created_again_while_the_group_was_away_is_unknown_to_it() {
    let topic = Topic::new(1).await;
    topic.put(0, "old").await;
    let member = join(topic.options()).await;
    let held = member.take(1).await;
    let (origin, id) = identity(&held);
    member.acknowledge(held).await;
    member.close().await;
    committed(&topic, &[Some(1)]).await;
    topic.delete().await;
    topic.create(1, &[]).await;
    topic.put(0, "new").await;
    let without_reset = fast(KafkaOptions::new(&*BROKERS, &topic.name, &topic.group));
    let refused = attach(without_reset).await.err().unwrap().to_string();
    assert!(refused.contains("has no position") && refused.contains("reset earliest"), "{refused}");
    let member = join(topic.options()).await;
    let held = member.take(1).await;
    assert_eq!(payloads(&held), ["new"]);
    let again = identity(&held);
    assert_eq!(again.0, origin, "the same offset is used again");
    assert_ne!(again.1, id, "and the message id tells the two apart");
}

fn identity(held: &crate::member::Deliveries) -> (String, String) {
    (held[0].message.origin().as_str().to_owned(), held[0].message.id().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn e13_a_topic_created_again_under_a_running_member_is_refused_and_nothing_is_skipped() {
    let topic = Topic::new(1).await;
    for number in 0..3 {
        topic.put(0, &number.to_string()).await;
    }
    let member = join(topic.options()).await;
    let held = member.take(3).await;
    member.acknowledge(held).await;
    committed(&topic, &[Some(3)]).await;
    topic.delete().await;
    // Until the coordinator has forgotten it, a commit would count for the new topic, unnoticed.
    eventually("the coordinator to forget", || topic.committed_in(&[0]) == [None]).await;
    topic.create(1, &[]).await;
    // More than before, so that the old position lies within the new topic.
    for number in 0..6 {
        topic.put(0, &format!("new {number}")).await;
    }
    let mut handled = Vec::new();
    let handles = async {
        loop {
            match member.receive(1000).await {
                Ok(idem_core::source::Received::Deliveries(held)) => {
                    handled.extend(payloads(&held));
                    member.try_acknowledge(held).await;
                }
                Ok(idem_core::source::Received::Revoked(_)) | Err(SourceError::Unavailable { .. }) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => return error.to_string(),
            }
        }
    };
    // Records keep coming: that the position is gone is noticed when there is another one to commit.
    let produce = async {
        for number in 6.. {
            topic.put(0, &format!("new {number}")).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let refusal = crate::member::within("a refusal", async {
        tokio::select! {
            refusal = handles => refusal,
            () = produce => unreachable!("it never ends"),
        }
    })
    .await;
    assert!(refusal.contains("was deleted") && refusal.contains("reset earliest"), "{refusal}");
    member.close().await;
    // Usually the group has no position in the new topic. It has one where the member was assigned the new partition before
    // it was refused, and then from its beginning.
    let member = join(topic.options()).await;
    let held = member.take(1).await;
    let next: usize = payloads(&held)[0].strip_prefix("new ").unwrap().parse().unwrap();
    assert!((0..next).all(|number| handled.contains(&format!("new {number}"))), "{handled:?}, and then new {next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_knows_nothing_is_refused_without_a_reset_and_nothing_is_created() {
    let topic = Topic::new(2).await;
    let options = fast(KafkaOptions::new(&*BROKERS, &topic.name, &topic.group));
    let refused = attach(options).await.err().unwrap();
    let text = refused.to_string();
    assert!(matches!(refused, SourceError::Refused { .. }), "{text}");
    assert!(text.contains(&topic.group) && text.contains(&topic.name) && text.contains("reset latest"), "{text}");
    assert_eq!(topic.committed(), [None, None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_has_its_start_committed_for_every_partition_before_it_joins() {
    for (reset, expected) in [(Reset::Earliest, [Some(0), Some(0)]), (Reset::Latest, [Some(2), Some(0)])] {
        let topic = Topic::new(2).await;
        topic.put(0, "0").await;
        topic.put(0, "1").await;
        let member = join(topic.options().reset(reset)).await;
        assert_eq!(topic.committed(), expected, "{reset:?}");
        topic.put(0, "2").await;
        let first = member.take(1).await;
        assert_eq!(Some(places(&first)[0].1), expected[0]);
    }
}

/// Even where the group started at the end: the first messages of a new partition are new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_added_later_is_taken_from_its_beginning() {
    let topic = Topic::new(1).await;
    let member = join(topic.options().reset(Reset::Latest)).await;
    member.idle().await;
    topic.add_partition().await;
    // The group has not noticed it yet, or has; either way nothing of it may be lost.
    topic.put(1, "first").await;
    let held = member.take(1).await;
    assert_eq!((places(&held), payloads(&held)), (vec![(1, 0)], vec!["first".to_owned()]));
    committed(&topic, &[Some(0), Some(0)]).await;
    member.acknowledge(held).await;
    committed(&topic, &[Some(0), Some(1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_groups_on_one_topic_both_have_everything() {
    let topic = Topic::new(1).await;
    for number in 0..3 {
        topic.put(0, &number.to_string()).await;
    }
    let other = Topic { name: topic.name.clone(), group: unique("idem-group") };
    let (member, another) = (join(topic.options()).await, join(other.options()).await);
    assert_eq!(payloads(&member.take(3).await), ["0", "1", "2"]);
    assert_eq!(payloads(&another.take(3).await), ["0", "1", "2"]);
    another.source.stop();
}

/// S9: `0.0.0.0` is no address of this machine alone, and reaches it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn s9_attaching_warns_of_plaintext_to_another_machine() {
    let topic = Topic::new(1).await;
    let far = BROKERS.replace("127.0.0.1", "0.0.0.0");
    let member = join(fast(KafkaOptions::new(far, &topic.name, &topic.group)).reset(Reset::Earliest)).await;
    let warnings = &member.attached.warnings;
    assert!(warnings.iter().any(|warning| warning.contains("is in plaintext")), "{warnings:?}");
}
