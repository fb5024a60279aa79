//! Cases: the effect of a settlement, on its own messages alone (contract 4).

use std::time::Duration;

use idem_core::{
    Message, Source,
    source::{Received, Settle, Settled},
};

use super::{
    steps::{Steps as _, left, numbers, publish, put},
    subject::{SourceUnderTest, Unsupported},
};
use idem_testkit::{
    durables,
    source_driver::{Deliveries, SourceDriver, payloads, sorted, within},
};

/// One settlement is about one message. A broker that keeps positions says it of the earliest.
pub async fn acknowledging_one_leaves_the_others<T: SourceUnderTest>(subject: &T) {
    publish(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    let mut deliveries = reader.take(5).await;
    let one = deliveries.remove(0);
    let rest = sorted(&deliveries);
    reader.acknowledge(vec![one]).await;
    left(subject, 4).await;
    let reader = reader.restart(subject).await;
    assert_eq!(sorted(&reader.take(4).await), rest);
}

/// D38, contract 8: a flushed settlement does not come back with a process that dies right after it.
pub async fn what_is_flushed_does_not_come_back_after_a_crash<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let open = || async { SourceDriver::join(subject.source_that_tells_late().await).await };
    let reader = open().await;
    let mut deliveries = reader.take(3).await;
    let last = deliveries.split_off(2);
    reader.acknowledge(deliveries).await;
    reader.flush().await;
    subject.crash(reader.source).await;
    let reader = open().await;
    let again = reader.take(1).await;
    assert_eq!(sorted(&again), sorted(&last));
    reader.acknowledge(again).await;
    reader.flush().await;
    subject.crash(reader.source).await;
    let reader = open().await;
    put(subject, Message::new("next")).await;
    assert_eq!(payloads(&reader.take(1).await), ["next"]);
}

/// E3, E4: units of several lanes end in any order. A broker that keeps positions gives back more than was left, never
/// less.
pub async fn acknowledging_out_of_order_loses_nothing<T: SourceUnderTest>(subject: &T) {
    publish(subject, 6).await;
    let reader = SourceDriver::open(subject).await;
    let mut deliveries = reader.take(6).await;
    // The third is left, and the others are acknowledged backwards.
    let left_out = deliveries.remove(2);
    let name = payloads(std::slice::from_ref(&left_out));
    deliveries.reverse();
    for delivery in deliveries {
        reader.acknowledge(vec![delivery]).await;
    }
    drop(left_out);
    let individual = subject.features().individual_settle;
    let reader = reader.restart(subject).await;
    if individual {
        left(subject, 1).await;
        assert_eq!(payloads(&reader.take(1).await), name);
    } else {
        left(subject, 4).await;
        assert!(payloads(&reader.take(4).await).contains(&name[0]));
    }
}

/// One answer per entry, in order: batches of one, some and many (SQS deletes in tens).
pub async fn settle_answers_one_per_entry<T: SourceUnderTest>(subject: &T) {
    publish(subject, 36).await;
    let reader = SourceDriver::open(subject).await;
    for count in [1, 10, 25] {
        let deliveries = reader.take(count).await;
        assert_eq!(reader.try_acknowledge(deliveries).await, vec![Settled::Settled; count]);
    }
    left(subject, 0).await;
}

/// Core may have nothing to say.
pub async fn settling_nothing_answers_nothing<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    assert_eq!(reader.settle(Vec::new()).await, []);
}

/// F5, F6: each entry by itself. The released ones are the latest, as a broker that keeps positions needs it.
pub async fn a_mixed_batch_settles_each_entry_as_it_says<T: SourceUnderTest>(subject: &T) {
    publish(subject, 4).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(4).await;
    let names = payloads(&deliveries);
    let mut proofs = durables(2).await;
    let mut settles = vec![
        Settle::Release { after: Duration::ZERO },
        Settle::Release { after: Duration::ZERO },
        Settle::DeadLetter(proofs.pop().unwrap()),
        Settle::Acknowledge(proofs.pop().unwrap()),
    ];
    let settlements = deliveries.into_iter().map(|delivery| (delivery.handle, settles.pop().unwrap())).collect();
    assert_eq!(reader.settle(settlements).await, [Settled::Settled; 4]);
    left(subject, 2).await;
    let reader = reader.after_release(subject).await;
    let again = reader.take(2).await;
    let mut expected = names[2..].to_vec();
    expected.sort_unstable();
    assert_eq!(sorted(&again), expected);
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// E10: the messages that would bring settled ones back are known, so that a clean stop can finish them. J73: and so are those that
/// would be brought back.
pub async fn only_what_stands_before_a_settled_message_holds_it_back<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let positions = !subject.features().individual_settle;
    for number in 0..3 {
        let message = Message::new(number.to_string());
        // Positions are those of one partition, to which messages of one key go.
        put(subject, if positions { message.with_record_key("one") } else { message }).await;
    }
    let mut held = reader.take(3).await;
    let holding = |held: &Deliveries<T::Source>| -> Vec<bool> {
        held.iter().map(|delivery| reader.source.holds_back(&delivery.handle)).collect()
    };
    let held_back = |held: &Deliveries<T::Source>| -> Vec<bool> {
        held.iter().map(|delivery| reader.source.is_held_back(&delivery.handle)).collect()
    };
    assert_eq!(holding(&held), [false; 3], "nothing is settled yet");
    assert_eq!(held_back(&held), [false, positions, positions], "by the first");
    let second = held.remove(1);
    reader.acknowledge(vec![second]).await;
    assert_eq!(holding(&held), [positions, false]);
    assert_eq!(held_back(&held), [false, positions]);
    let first = held.remove(0);
    reader.release(vec![first], Duration::ZERO).await;
    assert_eq!(held_back(&held), [positions], "by the first, which is not finished");
    reader.acknowledge(held).await;
    // Under another assignment it is a new delivery, and nothing is settled before or after it.
    let reader = reader.restart(subject).await;
    let again = reader.take(if positions { 3 } else { 1 }).await;
    assert!(again.iter().all(|delivery| !reader.source.holds_back(&delivery.handle)));
    assert!(again.first().is_some_and(|first| !reader.source.is_held_back(&first.handle)));
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// Contract 5.
pub async fn a_released_message_comes_back<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(1).await;
    reader.release(deliveries, Duration::ZERO).await;
    left(subject, 1).await;
    let reader = reader.after_release(subject).await;
    let again = reader.take(1).await;
    assert_eq!(payloads(&again), ["0"]);
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// At shutdown another worker should not wait for what this one gives back (F8).
pub async fn a_release_without_delay_comes_back_at_once<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let first = SourceDriver::open(subject).await;
    let deliveries = first.take(3).await;
    first.release(deliveries, Duration::ZERO).await;
    first.close().await;
    let second = SourceDriver::open(subject).await;
    // Three minutes are far below any visibility time-out or lease of a broker's default.
    let again = tokio::time::timeout(Duration::from_secs(180), second.take(3)).await.expect("not at once");
    assert_eq!(sorted(&again), numbers(3));
}

/// `Features::delayed_release`. Where it is off an hour counts as zero; where it is on, a message that is
/// published later overtakes.
pub async fn a_delayed_release_waits_or_counts_as_zero<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(1).await;
    if subject.features().delayed_release {
        let begun = tokio::time::Instant::now();
        let after = Duration::from_secs(2);
        reader.release(deliveries, after).await;
        put(subject, Message::new("later")).await;
        assert_eq!(payloads(&reader.take(1).await), ["later"]);
        assert_eq!(payloads(&reader.take(1).await), ["0"]);
        assert!(begun.elapsed() >= after - Duration::from_millis(100), "it came back before its delay was over");
    } else {
        reader.release(deliveries, Duration::from_secs(3600)).await;
        let reader = reader.after_release(subject).await;
        assert_eq!(payloads(&reader.take(1).await), ["0"]);
    }
}

/// The message is kept as a dead letter, so the queue is rid of it (G7: and core never relies on the broker's own).
pub async fn a_dead_letter_is_taken_off_the_queue<T: SourceUnderTest>(subject: &T) {
    publish(subject, 2).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(2).await;
    let proofs = durables(2).await;
    let settlements = deliveries.into_iter().zip(proofs).map(|(d, proof)| (d.handle, Settle::DeadLetter(proof)));
    assert_eq!(reader.settle(settlements.collect()).await, [Settled::Settled; 2]);
    left(subject, 0).await;
    let reader = reader.restart(subject).await;
    put(subject, Message::new("next")).await;
    assert_eq!(payloads(&reader.take(1).await), ["next"]);
}

/// Core runs what is marked alone and counted, so a wrong mark costs the batch.
pub async fn a_first_delivery_is_not_marked_as_redelivered<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    for delivery in reader.take(3).await {
        assert_eq!((delivery.attempt, delivery.redelivered), (1, false));
    }
}

/// `SourceCapabilities::marks_redelivery`: it is what finds messages that kill the process.
pub async fn a_redelivery_is_marked_where_the_broker_marks<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let mut reader = SourceDriver::open(subject).await;
    for round in 0..3 {
        let delivery = reader.take(1).await.pop().unwrap();
        let marked = round > 0 && reader.source.capabilities().marks_redelivery;
        assert_eq!(delivery.redelivered, marked, "round {round}");
        drop(delivery);
        reader = reader.restart(subject).await;
    }
}

/// `Delivery::attempt`: by the broker's count from 1, and 1 where it does not count.
pub async fn attempts_count_up_or_stay_at_one<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let mut reader = SourceDriver::open(subject).await;
    for round in 1..=3 {
        let delivery = reader.take(1).await.pop().unwrap();
        let expected = if subject.features().counts_attempts { round } else { 1 };
        assert_eq!(delivery.attempt, expected);
        reader.release(vec![delivery], Duration::ZERO).await;
        reader = reader.after_release(subject).await;
    }
}

/// G6: a message that is busy five times is still there.
pub async fn five_releases_lose_nothing<T: SourceUnderTest>(subject: &T) {
    publish(subject, 2).await;
    let mut reader = SourceDriver::open(subject).await;
    for _ in 0..5 {
        let deliveries = reader.take(2).await;
        assert_eq!(sorted(&deliveries), numbers(2));
        reader.release(deliveries, Duration::ZERO).await;
        reader = reader.after_release(subject).await;
    }
    left(subject, 2).await;
}

/// A message acknowledged without having run advances the queue like any other, over a restart too.
pub async fn a_batch_of_only_duplicates_advances<T: SourceUnderTest>(subject: &T) {
    for _ in 0..20 {
        put(subject, Message::new("same").with_header("idempotencykey", "order-1")).await;
    }
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(20).await;
    reader.acknowledge(deliveries).await;
    reader.close().await;
    left(subject, 0).await;
    let reader = SourceDriver::open(subject).await;
    put(subject, Message::new("next")).await;
    assert_eq!(payloads(&reader.take(1).await), ["next"]);
}

/// F1, F2, F7: whatever the answer to a late acknowledgement, the message is settled for good or delivered again, and
/// the handle of its other delivery is good.
pub async fn a_delivery_whose_lease_passed_is_not_lost<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let late = reader.take(1).await;
    if !subject.features().expires {
        assert_eq!(subject.expire().await, Err(Unsupported));
        reader.acknowledge(late).await;
        return left(subject, 0).await;
    }
    assert_eq!(subject.expire().await, Ok(()));
    let again = reader.take(1).await;
    assert_eq!(payloads(&again), ["0"]);
    match reader.try_acknowledge(late).await[..] {
        [Settled::Settled] => left(subject, 0).await,
        _ => {
            left(subject, 1).await;
            reader.acknowledge(again).await;
            left(subject, 0).await;
        }
    }
}

/// Lanes settle while intake waits: the two calls must not wait for each other.
pub async fn settling_while_receiving_is_answered<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(1).await;
    let settle = async {
        reader.acknowledge(deliveries).await;
        left(subject, 0).await;
        put(subject, Message::new("next")).await;
    };
    let (received, ()) = tokio::join!(within("receive", reader.source.receive(1)), settle);
    match received.expect("receive") {
        Received::Deliveries(next) => assert_eq!(payloads(&next), ["next"]),
        other => panic!("instead of a message came {other:?}"),
    }
}
