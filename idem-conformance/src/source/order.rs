//! Cases: the order within a key, where one is promised.

use std::{collections::HashMap, time::Duration};

use idem_core::{Message, Source, source::Received};

use super::{
    steps::{Steps as _, left, put},
    subject::SourceUnderTest,
};
use idem_testkit::source_driver::{SourceDriver, payloads};

/// Publishes `each` messages for each of the keys, in turns. Payloads are `key:number`.
async fn publish_in_turns<T: SourceUnderTest>(subject: &T, keys: &[&str], each: usize) {
    for number in 0..each {
        for key in keys {
            let message = Message::new(format!("{key}:{number}"));
            let carries = subject.features().record_keys;
            put(subject, if carries { message.with_record_key((*key).to_owned()) } else { message }).await;
        }
    }
}

/// Takes and acknowledges `count` messages one after the other, and answers their payloads by key.
async fn take_by_key<S: Source>(reader: &SourceDriver<S>, count: usize) -> HashMap<String, Vec<String>> {
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    for _ in 0..count {
        let next = reader.take(1).await;
        let payload = payloads(&next).remove(0);
        by_key.entry(payload.split(':').next().unwrap().to_owned()).or_default().push(payload);
        reader.acknowledge(next).await;
    }
    by_key
}

fn in_order(key: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{key}:{number}")).collect()
}

/// Without the capability nothing is promised, and everything arrives all the same.
pub async fn messages_of_one_key_arrive_in_order<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a"], 9).await;
    let reader = SourceDriver::open(subject).await;
    let mut taken = take_by_key(&reader, 9).await.remove("a").unwrap();
    if !subject.features().ordered {
        taken.sort_unstable();
    }
    assert_eq!(taken, in_order("a", 9));
}

/// Each key for itself; nothing is said between keys.
pub async fn messages_of_several_keys_are_each_in_order<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a", "b", "c"], 5).await;
    let reader = SourceDriver::open(subject).await;
    let mut by_key = take_by_key(&reader, 15).await;
    for key in ["a", "b", "c"] {
        let mut taken = by_key.remove(key).unwrap();
        if !subject.features().ordered {
            taken.sort_unstable();
        }
        assert_eq!(taken, in_order(key, 5));
    }
    left(subject, 0).await;
}

/// Core orders by the ordering key alone: one that is missing or differs breaks the order, one that is shared slows
/// other keys.
pub async fn ordering_keys_are_equal_within_a_key_and_differ_between_keys<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a", "b"], 3).await;
    let reader = SourceDriver::open(subject).await;
    let mut keys: HashMap<String, Vec<_>> = HashMap::new();
    for _ in 0..6 {
        let next = reader.take(1).await;
        let name = payloads(&next)[0][..1].to_owned();
        keys.entry(name).or_default().push(next[0].message.ordering_key().cloned());
        reader.acknowledge(next).await;
    }
    let (a, b) = (&keys["a"], &keys["b"]);
    assert!(a.iter().all(|key| *key == a[0]) && b.iter().all(|key| *key == b[0]));
    if subject.features().ordered {
        assert!(a[0].is_some() && b[0].is_some());
    }
    if subject.features().ordered && subject.features().record_keys {
        assert_ne!(a[0], b[0]);
    }
}

/// The capability that is off does nothing: an ordering key would hold a message behind another without need.
pub async fn without_order_no_message_has_an_ordering_key<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a", "b"], 2).await;
    let reader = SourceDriver::open(subject).await;
    for _ in 0..4 {
        let next = reader.take(1).await;
        let has = next[0].message.ordering_key().is_some();
        assert_eq!(has, subject.features().ordered, "an ordering key where order is declared, and only there");
        reader.acknowledge(next).await;
    }
}

/// Contract 5 does not undo the order.
pub async fn the_order_of_a_key_survives_a_crash<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a"], 6).await;
    let reader = SourceDriver::open(subject).await;
    let first = reader.take(1).await;
    reader.acknowledge(first).await;
    drop(reader.take(1).await);
    let reader = reader.restart(subject).await;
    let mut taken = take_by_key(&reader, 5).await.remove("a").unwrap();
    let promised = subject.features().ordered;
    if promised {
        assert_eq!(taken, in_order("a", 6)[1..]);
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 5);
}

/// At shutdown core releases a key's messages all together, the first one first.
pub async fn the_order_of_a_key_survives_releasing_all_of_it<T: SourceUnderTest>(subject: &T) {
    publish_in_turns(subject, &["a"], 4).await;
    let reader = SourceDriver::open(subject).await;
    // A broker that delivers a key one at a time hands over one, others up to four.
    let held = match reader.next(4).await {
        Received::Deliveries(deliveries) => deliveries,
        other => panic!("instead of messages came {other:?}"),
    };
    reader.release(held, Duration::ZERO).await;
    let reader = reader.after_release(subject).await;
    let promised = subject.features().ordered;
    let mut again = Vec::new();
    for _ in 0..4 {
        let next = reader.take(1).await;
        again.extend(payloads(&next));
        reader.acknowledge(next).await;
    }
    if !promised {
        again.sort_unstable();
    }
    assert_eq!(again, in_order("a", 4));
}
