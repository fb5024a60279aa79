//! The broker in the process: its behaviour, and each of its faults.

use std::{collections::HashMap, time::Duration};

use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, Message, Source, SourceError,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Publisher, Reason},
    source::{Delivery, Received, Settle, Settled},
    store::ScopeId,
};
use idem_testkit::{
    durables,
    memory::{Broker, Faults, MemoryHandle, MemorySource, Order, Queue, QueueOptions, Rate, Revoke},
    source_driver::payloads,
};
use tokio::time::Instant;

type Deliveries = Vec<Delivery<MemoryHandle>>;

pub(crate) fn queue(options: QueueOptions) -> Queue {
    Broker::new().create("orders", options).unwrap()
}

async fn attached(queue: &Queue) -> MemorySource {
    let source = queue.source();
    source.attach().await.unwrap();
    source
}

pub(crate) async fn take<S: Source>(source: &S, max: usize) -> Vec<Delivery<S::Handle>> {
    match source.receive(max).await.unwrap() {
        Received::Deliveries(deliveries) => deliveries,
        other => panic!("instead of messages came {other:?}"),
    }
}

pub(crate) async fn acknowledge<S: Source>(source: &S, deliveries: Vec<Delivery<S::Handle>>) -> Vec<Settled> {
    let proofs = durables(deliveries.len()).await.into_iter();
    source
        .settle(deliveries.into_iter().zip(proofs).map(|(d, proof)| (d.handle, Settle::Acknowledge(proof))).collect())
        .await
}

async fn release(source: &MemorySource, deliveries: Deliveries, after: Duration) -> Vec<Settled> {
    source.settle(deliveries.into_iter().map(|d| (d.handle, Settle::Release { after })).collect()).await
}

fn publish(queue: &Queue, count: usize) {
    for number in 0..count {
        queue.publish(Message::new(number.to_string())).unwrap();
    }
}

fn only(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_passes_returns_the_delivery_and_voids_its_handle() {
    let queue = queue(QueueOptions::default().lease(Duration::from_secs(30)));
    let source = queue.source();
    assert_eq!(source.attach().await.unwrap().hold_max, Some(Duration::from_secs(30)));
    publish(&queue, 1);
    let begun = Instant::now();
    let first = take(&source, 1).await;
    let again = take(&source, 1).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!((again[0].attempt, again[0].redelivered), (2, true));
    assert_eq!(acknowledge(&source, first).await, [Settled::Stale]);
    assert_eq!(acknowledge(&source, again).await, [Settled::Settled]);
    queue.drained().await;
    let history = queue.histories()[0].1;
    assert_eq!((history.deliveries, history.returned, history.acknowledged), (2, 1, 1));
    assert_eq!(queue.stats().stale, 1);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_release_wakes_a_receive_that_waits() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    let begun = Instant::now();
    let deliveries = take(&source, 1).await;
    assert_eq!(release(&source, deliveries, Duration::from_secs(7)).await, [Settled::Settled]);
    assert_eq!((queue.stats().delayed, queue.stats().ready), (1, 0));
    assert!(!source.is_idle().await, "what is delayed will come");
    take(&source, 1).await;
    assert_eq!(begun.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn one_key_at_a_time_keeps_a_key_back_and_no_other() {
    let queue = queue(QueueOptions::default().order(Order::ByKeyOneAtATime));
    let source = attached(&queue).await;
    for payload in ["a0", "a1", "b0", "a2", "b1"] {
        queue.publish(Message::new(payload).with_record_key(payload[..1].to_owned())).unwrap();
    }
    queue.publish(Message::new("free")).unwrap();
    let first = take(&source, 10).await;
    assert_eq!(payloads(&first), ["a0", "b0", "free"]);
    let mut first = first.into_iter();
    release(&source, vec![first.next().unwrap()], Duration::from_secs(5)).await;
    acknowledge(&source, first.collect()).await;
    assert_eq!(payloads(&take(&source, 10).await), ["b1"], "the delay of a0 keeps its key back");
    assert_eq!(payloads(&take(&source, 10).await), ["a0"]);
}

#[tokio::test(start_paused = true)]
async fn by_key_delivers_on_and_a_delay_keeps_the_followers_back() {
    let queue = queue(QueueOptions::default().order(Order::ByKey));
    let source = attached(&queue).await;
    for payload in ["a0", "a1", "a2", "a3"] {
        queue.publish(Message::new(payload).with_record_key("a")).unwrap();
    }
    let first = take(&source, 2).await;
    assert_eq!(payloads(&first), ["a0", "a1"]);
    release(&source, first, Duration::from_secs(3)).await;
    let begun = Instant::now();
    assert_eq!(payloads(&take(&source, 10).await), ["a0", "a1", "a2", "a3"]);
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test]
async fn at_its_delivery_limit_a_message_goes_to_the_dead_letter_queue() {
    let broker = Broker::new();
    let dead = broker.create("dead", QueueOptions::default()).unwrap();
    let queue = broker.create("orders", QueueOptions::default().delivery_limit(3).dead_letter_queue("dead")).unwrap();
    let source = queue.source();
    let facts = source.attach().await.unwrap();
    assert_eq!((facts.delivery_limit, facts.warnings.len()), (Some(3), 0));
    publish(&queue, 1);
    for attempt in 1..=3 {
        let deliveries = take(&source, 1).await;
        assert_eq!(deliveries[0].attempt, attempt);
        release(&source, deliveries, Duration::ZERO).await;
    }
    dead.until(|stats| stats.ready == 1).await;
    assert_eq!((queue.stats().expelled, queue.stats().unsettled()), (1, 0));
    assert!(queue.histories()[0].1.expelled);
    assert_eq!(payloads(&take(&attached(&dead).await, 1).await), ["0"]);
}

#[tokio::test]
async fn without_a_dead_letter_queue_the_limit_drops_and_attach_warns() {
    let queue = queue(QueueOptions::default().delivery_limit(1));
    let source = queue.source();
    assert_eq!(source.attach().await.unwrap().warnings.len(), 1);
    publish(&queue, 1);
    let deliveries = take(&source, 1).await;
    release(&source, deliveries, Duration::ZERO).await;
    assert!(queue.is_drained());
    let broker = Broker::new();
    assert!(broker.create("a", QueueOptions::default().dead_letter_queue("none")).is_err());
}

/// The constraint of an adapter for Kafka (E3, E4): the position moves only over done messages without a gap.
#[tokio::test]
async fn positions_move_without_a_gap_and_an_ended_assignment_repeats_what_is_behind_it() {
    let queue = queue(QueueOptions::default().order(Order::ByKey).positions(true));
    let (one, other) = (attached(&queue).await, attached(&queue).await);
    publish(&queue, 5);
    let mut held = take(&one, 5).await;
    let last = held.split_off(3);
    let second = held.remove(1);
    assert_eq!(acknowledge(&one, held).await, [Settled::Settled; 2]);
    assert_eq!(queue.stats().unsettled(), 4, "0 is gone, and 2 waits for 1");
    assert_eq!(release(&one, last, Duration::ZERO).await, [Settled::Settled; 2]);
    assert_eq!(queue.stats().in_flight, 4, "a release does nothing here");
    acknowledge(&one, vec![second]).await;
    assert_eq!(queue.stats().unsettled(), 2);
    drop(one);
    let rest = take(&other, 5).await;
    assert_eq!(payloads(&rest), ["3", "4"]);
    assert!(rest.iter().all(|delivery| delivery.attempt == 1 && !delivery.redelivered));
    acknowledge(&other, rest).await;
    queue.drained().await;
    let refused = Broker::new().create("t", QueueOptions::default().positions(true));
    assert!(refused.is_err(), "positions need an order");
}

#[tokio::test]
async fn a_queue_is_created_once() {
    let broker = Broker::new();
    let first = broker.create("orders", QueueOptions::default()).unwrap();
    publish(&first, 1);
    assert_eq!(broker.create("orders", QueueOptions::default()).unwrap().stats().ready, 1);
    assert!(broker.create("orders", QueueOptions::default().seed(1)).is_err());
    assert!(broker.create("", QueueOptions::default()).is_err());
    assert!(broker.create("a/b", QueueOptions::default()).is_err());
}

#[tokio::test]
async fn attaching_twice_takes_one_seat() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    source.attach().await.unwrap();
    assert_eq!(queue.stats().consumers, 1);
    source.close(Duration::from_secs(1)).await;
    assert_eq!(queue.stats().consumers, 0);
    assert!(matches!(source.attach().await, Err(SourceError::Refused { .. })), "a closed source stays closed");
}

#[tokio::test]
async fn a_lost_acknowledgement_is_answered_and_not_done() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    queue.misbehave(only(|faults| faults.acks_lost = Rate::Always));
    let deliveries = take(&source, 1).await;
    assert_eq!(acknowledge(&source, deliveries).await, [Settled::Settled]);
    queue.misbehave(Faults::default());
    let again = take(&source, 1).await;
    assert!(again[0].redelivered);
    acknowledge(&source, again).await;
    assert!(queue.is_drained());
}

#[tokio::test]
async fn a_batch_is_answered_in_parts() {
    let queue = queue(QueueOptions::default().seed(5));
    let source = attached(&queue).await;
    publish(&queue, 100);
    queue.misbehave(only(|faults| faults.settles_lost = Rate::OneIn(4)));
    let deliveries = take(&source, 100).await;
    let origins: Vec<_> = deliveries.iter().map(|d| d.message.origin().clone()).collect();
    let answers = acknowledge(&source, deliveries).await;
    let unknown = answers.iter().filter(|answer| **answer == Settled::Unknown).count();
    assert!((10..45).contains(&unknown), "{unknown} of 100 unknown");
    // Each answer is about its own message: the unknown ones return, the others are gone.
    for (origin, answer) in origins.iter().zip(answers) {
        assert_eq!(queue.history(origin).acknowledged, u32::from(answer == Settled::Settled), "{origin}");
    }
    assert_eq!(queue.stats().ready, unknown as u64);
}

#[tokio::test]
async fn an_answer_that_is_lost_was_done() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    queue.misbehave(only(|faults| faults.answers_lost = Rate::Always));
    let deliveries = take(&source, 1).await;
    assert_eq!(acknowledge(&source, deliveries).await, [Settled::Unknown]);
    assert!(queue.is_drained());
}

#[tokio::test]
async fn a_stale_receipt_does_nothing() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    queue.misbehave(only(|faults| faults.receipts_stale = Rate::Always));
    let deliveries = take(&source, 1).await;
    assert_eq!(acknowledge(&source, deliveries).await, [Settled::Stale]);
    assert_eq!((queue.stats().ready, queue.stats().stale), (1, 1));
}

#[tokio::test]
async fn a_message_is_resurrected_once_at_most() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 10);
    queue.misbehave(only(|faults| faults.resurrected = Rate::Always));
    for round in [10, 10] {
        let deliveries = take(&source, 20).await;
        assert_eq!(deliveries.len(), round);
        acknowledge(&source, deliveries).await;
    }
    assert!(queue.is_drained(), "resurrected again: {:?}", queue.stats());
    assert!(queue.histories().iter().all(|(_, history)| history.acknowledged == 2 && history.deliveries == 2));
    assert_eq!(queue.stats().resurrected, 10);
}

#[tokio::test]
async fn one_in_ten_is_about_one_in_ten_and_the_same_by_seed() {
    let run = async |seed| {
        let queue = queue(QueueOptions::default().seed(seed));
        let source = attached(&queue).await;
        publish(&queue, 1000);
        queue.misbehave(only(|faults| faults.resurrected = Rate::OneIn(10)));
        while !queue.is_drained() {
            let deliveries = take(&source, 100).await;
            acknowledge(&source, deliveries).await;
        }
        queue
            .histories()
            .iter()
            .filter(|(_, history)| history.deliveries == 2)
            .map(|(o, _)| o.clone())
            .collect::<Vec<_>>()
    };
    let first = run(1).await;
    assert!((60..150).contains(&first.len()), "{} of 1000", first.len());
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
}

#[tokio::test]
async fn reordering_is_only_where_no_order_is_promised() {
    for (order, kept) in [(Order::None, false), (Order::ByKey, true)] {
        let queue = queue(QueueOptions::default().order(order));
        queue.misbehave(only(|faults| faults.reordered = Rate::Always));
        let source = attached(&queue).await;
        let numbers: Vec<String> = (0..50).map(|number| number.to_string()).collect();
        for number in &numbers {
            queue.publish(Message::new(number.clone()).with_record_key("a")).unwrap();
        }
        let taken = payloads(&take(&source, 50).await);
        assert_eq!(taken == numbers, kept, "{order:?}: {taken:?}");
        let mut sorted = taken;
        sorted.sort_by_key(|number| number.parse::<u32>().unwrap());
        assert_eq!(sorted, numbers);
    }
}

#[tokio::test(start_paused = true)]
async fn receiving_fails_and_is_slow_on_request() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    queue.misbehave(only(|faults| faults.receives_failed = Rate::Always));
    assert!(matches!(source.receive(1).await, Err(SourceError::Unavailable { .. })));
    queue.misbehave(only(|faults| faults.receive_delay = Duration::from_secs(4)));
    let begun = Instant::now();
    take(&source, 1).await;
    assert_eq!(begun.elapsed().as_secs(), 4);
}

#[tokio::test]
async fn a_publish_is_refused_or_stored_without_confirmation() {
    let queue = queue(QueueOptions::default());
    queue.misbehave(only(|faults| faults.publishes_refused = Rate::Always));
    assert!(matches!(queue.publish(Message::new("")), Err(SourceError::Unavailable { .. })));
    assert_eq!(queue.stats().published, 0);
    queue.misbehave(only(|faults| faults.confirms_lost = Rate::Always));
    assert!(matches!(queue.publish(Message::new("")), Err(SourceError::Unavailable { .. })));
    assert_eq!(queue.stats().published, 1);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_hangs_leaves_a_settlement_unknown() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 1);
    let deliveries = take(&source, 1).await;
    queue.misbehave(only(|faults| faults.hangs = true));
    assert_eq!(acknowledge(&source, deliveries).await, [Settled::Unknown]);
    assert!(!source.is_idle().await);
    queue.misbehave(Faults::default());
    assert_eq!(queue.stats().in_flight, 1, "an unknown settlement of a broker that hangs was not done");
}

#[tokio::test(start_paused = true)]
async fn a_drained_revocation_that_nobody_answers_ends_in_time() {
    let queue = queue(QueueOptions::default().revoke_within(Duration::from_secs(10)));
    let source = attached(&queue).await;
    publish(&queue, 1);
    let held = take(&source, 1).await;
    queue.revoke(Revoke::Drained);
    let Received::Revoked(revocation) = source.receive(1).await.unwrap() else { panic!("no revocation") };
    let begun = Instant::now();
    let again = take(&source, 1).await;
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert_ne!(held[0].assignment, again[0].assignment);
    assert_eq!(acknowledge(&source, held).await, [Settled::Stale]);
    drop(revocation);
    assert_eq!(acknowledge(&source, again).await, [Settled::Settled], "a late answer ends nothing else");
}

#[tokio::test]
async fn expiring_leases_makes_two_deliveries_of_one_message_at_once() {
    let queue = queue(QueueOptions::default());
    let (one, other) = (attached(&queue).await, attached(&queue).await);
    publish(&queue, 1);
    let first = take(&one, 1).await;
    queue.expire_leases();
    let second = take(&other, 1).await;
    assert_eq!(payloads(&first), payloads(&second));
    assert_eq!(acknowledge(&one, first).await, [Settled::Stale]);
    assert_eq!(acknowledge(&other, second).await, [Settled::Settled]);
}

#[tokio::test]
async fn a_dead_letter_is_published_with_its_facts_and_one_key() {
    let queue = queue(QueueOptions::default());
    let message = Message::new("{}").with_header("idempotencykey", "order-1").with_header("trace", "7");
    let dead_letter = DeadLetter {
        consumer: ConsumerName::new("ledger").unwrap(),
        scope: ScopeId(1),
        message: message.with_origin(idem_core::message::Origin::new("orders/7")),
        key: Some(IdempotencyKey::new("order-1").unwrap()),
        hash: None,
        reason: Reason::Permanent,
        attempts: 2,
        error: "no such customer".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    };
    queue.publisher().publish(&dead_letter).await.unwrap();
    let published = queue.unsettled().remove(0);
    let headers: HashMap<_, _> = published.headers().iter().collect();
    assert_eq!(published.headers().len(), headers.len(), "a header is repeated");
    for (name, value) in [
        ("idem-reason", "permanent"),
        ("idem-origin", "orders/7"),
        ("idem-attempts", "2"),
        ("idempotencykey", "order-1"),
        ("trace", "7"),
    ] {
        assert_eq!(headers[name], Some(value.as_bytes()), "{name}");
    }
    queue.misbehave(only(|faults| faults.confirms_lost = Rate::Always));
    assert!(queue.publisher().publish(&dead_letter).await.is_err());
}

#[tokio::test]
async fn waiting_for_a_queue_wakes_at_the_change() {
    let queue = queue(QueueOptions::default());
    let source = attached(&queue).await;
    publish(&queue, 3);
    let (stats, ()) = tokio::join!(queue.until(|stats| stats.acknowledged == 3), async {
        let deliveries = take(&source, 3).await;
        acknowledge(&source, deliveries).await;
    });
    assert!(stats.is_drained());
    drop(source);
    queue.until(|stats| stats.consumers == 0).await;
}

/// The quickstart and the engine's benches push much through it.
#[tokio::test]
async fn memory_of_a_settled_message_is_given_back() {
    let queue = queue(QueueOptions::default().history_max(10).messages_max(100));
    let source = attached(&queue).await;
    for _ in 0..50 {
        publish(&queue, 100);
        let deliveries = take(&source, 100).await;
        assert!(acknowledge(&source, deliveries).await.iter().all(|answer| *answer == Settled::Settled));
    }
    assert_eq!((queue.stats().acknowledged, queue.histories().len()), (5000, 10));
}
