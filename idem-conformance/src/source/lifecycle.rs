//! Cases: attaching, stopping, closing, being idle (contract 1, 5 and the methods' own promises).

use std::time::Duration;

use idem_core::{
    Message, Source, SourceError,
    source::{Received, Settled},
};
use tokio::time::Instant;

use super::{
    steps::{Steps as _, left, numbers, publish, put},
    subject::{SourceUnderTest, Unsupported},
};
use idem_testkit::source_driver::{SourceDriver, payloads, sorted, within};

/// Core retries attaching until the start-up time-out, and must not end up with two subscriptions.
pub async fn attaching_twice_is_attaching_once<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let again = within("attach", reader.source.attach()).await.expect("attach");
    assert_eq!(again, reader.attached);
    publish(subject, 10).await;
    let deliveries = reader.take(10).await;
    assert_eq!(sorted(&deliveries), numbers(10));
    reader.acknowledge(deliveries).await;
    left(subject, 0).await;
}

/// A refusal of the server ends the start at once, and says which queue it was.
pub async fn attaching_to_an_unknown_queue_is_refused_by_name<T: SourceUnderTest>(subject: &T) {
    let source = subject.source_of_an_unknown_queue("idem-no-such-queue").await;
    match within("attach", source.attach()).await {
        Err(error @ SourceError::Refused { .. }) => {
            assert!(error.to_string().contains("idem-no-such-queue"), "{error} does not name the queue");
        }
        other => panic!("attaching to an unknown queue answered {other:?}"),
    }
}

/// The consumer's name is bound to it, so it names nothing that changes with the process.
pub async fn bound_to_is_stable_over_restarts<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let before = reader.attached.bound_to.clone();
    assert!(!before.is_empty());
    let reader = reader.restart(subject).await;
    assert_eq!(reader.attached.bound_to, before);
}

/// Two queues under one consumer's name would see each other's duplicates.
pub async fn bound_to_differs_between_queues<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let other = SourceDriver::join(subject.source_of_another_queue().await).await;
    assert_ne!(reader.attached.bound_to, other.attached.bound_to);
}

/// A source that was only made is no member of its group.
pub async fn a_source_that_is_not_attached_takes_nothing<T: SourceUnderTest>(subject: &T) {
    let _idle = subject.source().await;
    let reader = SourceDriver::open(subject).await;
    publish(subject, 10).await;
    assert_eq!(sorted(&reader.take(10).await), numbers(10));
}

/// Contract 1.
pub async fn stop_ends_a_receive_that_waits<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let (received, ()) = tokio::join!(within("receive", reader.source.receive(1)), async {
        reader.idle().await;
        reader.source.stop();
    });
    assert!(matches!(received, Ok(Received::End)), "a stopped source answered {received:?}");
}

/// Contract 1: also where there is no room for messages.
pub async fn stop_ends_a_receive_of_none<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    let (received, ()) = tokio::join!(within("receive", reader.source.receive(0)), async {
        reader.idle().await;
        reader.source.stop();
    });
    assert!(matches!(received, Ok(Received::End)), "a stopped source answered {received:?}");
}

/// Contract 1 and 5: messages that were not handed over stay; those received before the stop are handed over first.
pub async fn stop_leaves_the_rest_in_the_queue<T: SourceUnderTest>(subject: &T) {
    publish(subject, 20).await;
    let reader = SourceDriver::open(subject).await;
    let mut taken = reader.take(2).await;
    reader.source.stop();
    while let Received::Deliveries(more) = reader.next(100).await {
        taken.extend(more);
    }
    left(subject, 20).await;
    let seen = sorted(&taken);
    reader.acknowledge(taken).await;
    reader.close().await;
    left(subject, 20 - seen.len() as u64).await;
    let next = SourceDriver::open(subject).await;
    let rest = next.take(20 - seen.len()).await;
    let mut all = [seen, sorted(&rest)].concat();
    all.sort_unstable();
    assert_eq!(all, numbers(20));
}

/// Shutdown: intake stops first, and then what runs is finished and acknowledged.
pub async fn deliveries_in_hand_can_be_settled_after_stop<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let held = reader.take(3).await;
    reader.source.stop();
    assert!(matches!(reader.next(1).await, Received::End));
    reader.acknowledge(held).await;
    left(subject, 0).await;
    reader.close().await;
    left(subject, 0).await;
}

/// A further call gets the same answer, and does not wait. Messages published meanwhile are for others.
pub async fn end_is_answered_again<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    reader.source.stop();
    for count in 0..3 {
        assert!(matches!(reader.next(1).await, Received::End));
        publish(subject, 1).await;
        left(subject, count + 1).await;
    }
    reader.close().await;
    let next = SourceDriver::open(subject).await;
    assert_eq!(next.take(3).await.len(), 3);
}

/// `close`: unsettled deliveries return, without waiting for a lease or a session.
pub async fn close_returns_what_is_unsettled<T: SourceUnderTest>(subject: &T) {
    publish(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    drop(reader.take(5).await);
    reader.source.stop();
    reader.close().await;
    left(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    assert_eq!(sorted(&reader.take(5).await), numbers(5));
}

/// A position that is stored and not sent is sent at close (E1).
pub async fn close_keeps_what_was_acknowledged<T: SourceUnderTest>(subject: &T) {
    publish(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    let mut deliveries = reader.take(5).await;
    let rest = sorted(&deliveries.split_off(2));
    reader.acknowledge(deliveries).await;
    reader.close().await;
    left(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    assert_eq!(sorted(&reader.take(3).await), rest);
}

/// `close` ends within its deadline even if the broker hangs.
pub async fn close_keeps_its_deadline_when_the_broker_hangs<T: SourceUnderTest>(subject: &T) {
    publish(subject, 2).await;
    let reader = SourceDriver::open(subject).await;
    drop(reader.take(2).await);
    if !hang(subject).await {
        return reader.close().await;
    }
    let begun = Instant::now();
    let deadline = Duration::from_millis(300);
    within("close", reader.source.close(deadline)).await;
    assert!(begun.elapsed() < deadline + Duration::from_secs(2), "close took {:?}", begun.elapsed());
    drop(reader);
    assert_eq!(subject.answer_again().await, Ok(()));
    let reader = SourceDriver::open(subject).await;
    assert_eq!(sorted(&reader.take(2).await), numbers(2));
}

/// Contract 1: a broker that hangs must not keep a worker from shutting down.
pub async fn stop_ends_receiving_when_the_broker_hangs<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    if hang(subject).await {
        reader.source.stop();
        assert!(matches!(reader.next(1).await, Received::End));
        assert_eq!(subject.answer_again().await, Ok(()));
    }
}

async fn hang<T: SourceUnderTest>(subject: &T) -> bool {
    if subject.features().hangs {
        assert_eq!(subject.hang().await, Ok(()));
        return true;
    }
    assert_eq!(subject.hang().await, Err(Unsupported), "declared off, and done");
    false
}

/// Shutdown paths meet.
pub async fn closing_twice_is_closing_once<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    drop(reader.take(1).await);
    within("close", reader.source.close(Duration::from_secs(10))).await;
    within("close", reader.source.close(Duration::from_secs(10))).await;
    left(subject, 1).await;
    assert!(matches!(reader.next(1).await, Received::End), "a closed source has nothing to hand over");
}

/// A start that failed is closed too.
pub async fn closing_what_was_never_attached_is_harmless<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let source = subject.source().await;
    within("close", source.close(Duration::from_secs(10))).await;
    left(subject, 1).await;
}

/// Contract 4: the message belongs to the next consumer now.
pub async fn a_handle_of_a_closed_source_is_stale<T: SourceUnderTest>(subject: &T) {
    publish(subject, 2).await;
    let reader = SourceDriver::open(subject).await;
    let held = reader.take(2).await;
    within("close", reader.source.close(Duration::from_secs(10))).await;
    assert_eq!(reader.try_acknowledge(held).await, [Settled::Stale; 2]);
    left(subject, 2).await;
}

/// `is_idle` begins with "attached": `--until-idle` must not end a worker that never started.
pub async fn a_source_that_is_not_attached_is_not_idle<T: SourceUnderTest>(subject: &T) {
    let source = subject.source().await;
    assert!(!within("is_idle", source.is_idle()).await);
}

/// An empty queue, and one that was emptied.
pub async fn a_source_at_the_end_of_its_queue_is_idle<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    reader.idle().await;
    publish(subject, 3).await;
    let deliveries = reader.take(3).await;
    reader.acknowledge(deliveries).await;
    reader.idle().await;
}

/// The rest of the queue waits.
pub async fn a_source_with_messages_to_receive_is_not_idle<T: SourceUnderTest>(subject: &T) {
    publish(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(2).await;
    reader.acknowledge(deliveries).await;
    assert!(!within("is_idle", reader.source.is_idle()).await);
    let deliveries = reader.take(3).await;
    reader.acknowledge(deliveries).await;
    reader.idle().await;
}

/// Messages that another source holds may come back to this one. Where sources do not share, the other's part is its own.
pub async fn a_source_is_not_idle_while_another_holds_messages<T: SourceUnderTest>(subject: &T) {
    if !subject.features().shares_messages || !subject.features().sees_others {
        return a_source_at_the_end_of_its_queue_is_idle(subject).await;
    }
    publish(subject, 1).await;
    let holder = SourceDriver::open(subject).await;
    let held = holder.take(1).await;
    let reader = SourceDriver::open(subject).await;
    assert!(!within("is_idle", reader.source.is_idle()).await);
    holder.acknowledge(held).await;
    reader.idle().await;
}

/// Rolling deploys: one leaves, the next goes on.
pub async fn another_source_continues_where_the_first_closed<T: SourceUnderTest>(subject: &T) {
    publish(subject, 6).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let reader = SourceDriver::open(subject).await;
        let deliveries = reader.take(2).await;
        seen.extend(payloads(&deliveries));
        reader.acknowledge(deliveries).await;
        reader.close().await;
    }
    seen.sort_unstable();
    assert_eq!(seen, numbers(6));
    left(subject, 0).await;
    put(subject, Message::new("next")).await;
    let reader = SourceDriver::open(subject).await;
    assert_eq!(payloads(&reader.take(1).await), ["next"]);
}

/// Contract 7: messages that a paused source has not handed over go to others, those that it has can be settled, and it
/// goes on when it is resumed. To a source that declares no pausing it means nothing.
pub async fn a_paused_source_gives_back_what_it_has_not_handed_over<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    publish(subject, 10).await;
    if !reader.source.capabilities().pauses {
        reader.source.pause();
        let deliveries = reader.take(10).await;
        assert_eq!(sorted(&deliveries), numbers(10));
        reader.source.resume();
        return reader.acknowledge(deliveries).await;
    }
    let held = reader.take(1).await;
    reader.source.pause();
    let other = SourceDriver::open(subject).await;
    let rest = tokio::select! {
        rest = other.take(9) => rest,
        wrong = reader.source.receive(10) => panic!("a paused source handed over {wrong:?}"),
    };
    let mut all = [payloads(&held), payloads(&rest)].concat();
    all.sort_unstable();
    assert_eq!(all, numbers(10));
    reader.acknowledge(held).await;
    other.acknowledge(rest).await;
    other.close().await;
    reader.source.resume();
    put(subject, Message::new("after")).await;
    let after = reader.take(1).await;
    assert_eq!(payloads(&after), ["after"]);
    reader.acknowledge(after).await;
    left(subject, 0).await;
}

/// Contract 7: a paused source stops like any other.
pub async fn a_paused_source_ends_when_it_is_stopped<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    reader.source.pause();
    let (received, ()) = tokio::join!(within("receive", reader.source.receive(1)), async { reader.source.stop() });
    assert!(matches!(received, Ok(Received::End)), "a stopped source answered {received:?}");
    reader.close().await;
}
