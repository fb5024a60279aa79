//! Cases: assignments that end, and connections that break (contract 3, 4 and 6; E1, E2, E8, E9, G1, G2).

use idem_core::{
    Message, Source,
    source::{Assignment, Received, Settled},
};

use super::{
    steps::{Steps as _, left, numbers, publish, put},
    subject::{SourceUnderTest, Unsupported},
};
use idem_testkit::{
    memory::Revoke,
    source_driver::{Deliveries, SourceDriver, payloads, sorted, within},
};

/// Revokes; false where the fixture cannot, which is then what the case shows, with a source that goes on undisturbed.
async fn revoke<T: SourceUnderTest>(subject: &T, reader: &SourceDriver<T::Source>, how: Revoke) -> bool {
    if subject.features().revokes {
        assert_eq!(subject.revoke(how).await, Ok(()));
        return true;
    }
    assert_eq!(subject.revoke(how).await, Err(Unsupported), "declared off, and done");
    undisturbed(subject, reader).await;
    false
}

async fn disconnect<T: SourceUnderTest>(subject: &T, reader: &SourceDriver<T::Source>) -> bool {
    if subject.features().disconnects {
        assert_eq!(subject.disconnect().await, Ok(()));
        return true;
    }
    assert_eq!(subject.disconnect().await, Err(Unsupported), "declared off, and done");
    undisturbed(subject, reader).await;
    false
}

async fn undisturbed<T: SourceUnderTest>(subject: &T, reader: &SourceDriver<T::Source>) {
    put(subject, Message::new("undisturbed")).await;
    assert_eq!(payloads(&reader.take(1).await), ["undisturbed"]);
}

fn assignments<S: Source>(deliveries: &Deliveries<S>) -> Vec<Assignment> {
    let mut all: Vec<_> = deliveries.iter().map(|delivery| delivery.assignment).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// E10: a running message is finished and settled while the assignment is still held, and that counts.
pub async fn a_drained_revocation_waits_for_what_is_in_hand<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(3).await;
    let theirs = assignments::<T::Source>(&held);
    if !revoke(subject, &reader, Revoke::Drained).await {
        return;
    }
    let revocation = reader.revocation_after(&mut held).await;
    assert!(theirs.iter().all(|assignment| revocation.assignments.contains(assignment)), "{revocation:?}, {theirs:?}");
    reader.acknowledge(held).await;
    revocation.drained.expect("it waits for us").send(()).expect("it waits for us");
    left(subject, 0).await;
    put(subject, Message::new("next")).await;
    let next = reader.take(1).await;
    assert_eq!(payloads(&next), ["next"]);
    reader.acknowledge(next).await;
    left(subject, 0).await;
}

/// Contract 1: the broker's deadline runs also while there is no room, and messages that wait for room are no reason to
/// wait.
pub async fn a_receive_of_none_hands_over_a_revocation_and_no_message<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let held = reader.take(1).await;
    if subject.features().revokes {
        put(subject, Message::new("waiting")).await;
    }
    if !revoke(subject, &reader, Revoke::Drained).await {
        return;
    }
    let received = reader.next(0).await;
    let Received::Revoked(revocation) = received else { panic!("instead of a revocation came {received:?}") };
    assert!(revocation.assignments.contains(&held[0].assignment));
    reader.acknowledge(held).await;
    revocation.drained.expect("it waits for us").send(()).expect("it waits for us");
    let rest = reader.take(1).await;
    assert_eq!(payloads(&rest), ["waiting"]);
    reader.acknowledge(rest).await;
    left(subject, 0).await;
}

/// Contract 5.
pub async fn a_drained_revocation_returns_what_was_not_settled<T: SourceUnderTest>(subject: &T) {
    publish(subject, 4).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(4).await;
    if !revoke(subject, &reader, Revoke::Drained).await {
        return;
    }
    let revocation = reader.revocation_after(&mut held).await;
    let rest = held.split_off(2);
    let expected = sorted(&rest);
    reader.acknowledge(held).await;
    revocation.drained.expect("it waits for us").send(()).expect("it waits for us");
    let again = reader.take(2).await;
    assert_eq!(sorted(&again), expected);
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// A worker that dies inside must not keep the group waiting.
pub async fn a_drained_revocation_that_is_dropped_counts_as_answered<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(1).await;
    if !revoke(subject, &reader, Revoke::Drained).await {
        return;
    }
    drop(reader.revocation_after(&mut held).await);
    let again = reader.take(1).await;
    assert_eq!(payloads(&again), ["0"]);
    assert_ne!(assignments::<T::Source>(&again), assignments::<T::Source>(&held));
}

/// Otherwise draining never ends. Messages that arrive after the answer are of another assignment.
pub async fn nothing_arrives_under_an_assignment_that_is_being_drained<T: SourceUnderTest>(subject: &T) {
    publish(subject, 2).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(2).await;
    if !revoke(subject, &reader, Revoke::Drained).await {
        return;
    }
    let revocation = reader.revocation_after(&mut held).await;
    put(subject, Message::new("later")).await;
    let settle = async {
        reader.acknowledge(held).await;
        revocation.drained.expect("it waits for us").send(()).expect("it waits for us");
    };
    let (received, ()) = tokio::join!(within("receive", reader.source.receive(10)), settle);
    match received.expect("receive") {
        Received::Deliveries(next) => {
            assert_eq!(payloads(&next), ["later"]);
            assert!(!revocation.assignments.contains(&next[0].assignment));
        }
        other => panic!("instead of a message came {other:?}"),
    }
}

/// E2, E9: the worst of all would be that it acknowledges the new delivery.
pub async fn a_handle_from_before_a_revocation_is_stale_and_acknowledges_nothing<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(3).await;
    if !revoke(subject, &reader, Revoke::Lost).await {
        return;
    }
    drop(reader.revocation_after(&mut held).await);
    let again = reader.take(3).await;
    assert_eq!(reader.try_acknowledge(held).await, [Settled::Stale; 3]);
    left(subject, 3).await;
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// `Revocation::drained` is `None`: the source does not wait for a lost assignment.
pub async fn a_lost_assignment_is_announced_and_not_waited_for<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(1).await;
    let theirs = assignments::<T::Source>(&held);
    if !revoke(subject, &reader, Revoke::Lost).await {
        return;
    }
    let revocation = reader.revocation_after(&mut held).await;
    assert!(revocation.drained.is_none());
    assert!(theirs.iter().all(|assignment| revocation.assignments.contains(assignment)));
}

/// Contract 5, and core distinguishes the two deliveries by their assignments.
pub async fn messages_of_a_lost_assignment_come_back_under_another<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let mut held = reader.take(3).await;
    let before = assignments::<T::Source>(&held);
    if !revoke(subject, &reader, Revoke::Lost).await {
        return;
    }
    drop(reader.revocation_after(&mut held).await);
    let again = reader.take(3).await;
    assert_eq!(sorted(&again), numbers(3));
    assert!(assignments::<T::Source>(&again).iter().all(|assignment| !before.contains(assignment)));
}

/// Contract 6: a broken connection does not require a restart of the worker (G12).
pub async fn a_disconnected_source_connects_again<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    for round in 0..3 {
        publish(subject, 1).await;
        let held = take_despite_outages(&reader, 1).await;
        reader.acknowledge(held).await;
        left(subject, 0).await;
        if !disconnect(subject, &reader).await {
            assert_eq!(round, 0);
            return;
        }
    }
}

/// Takes `count`, with revocations and reports of an unreachable broker in between.
async fn take_despite_outages<S: Source>(reader: &SourceDriver<S>, count: usize) -> Deliveries<S> {
    let mut taken = Vec::new();
    while taken.len() < count {
        match within("receive", reader.source.receive(count - taken.len())).await {
            Ok(Received::Deliveries(deliveries)) => taken.extend(deliveries),
            Ok(Received::Revoked(_)) | Err(idem_core::SourceError::Unavailable { .. }) => {}
            other => panic!("instead of messages came {other:?}"),
        }
    }
    taken
}

/// Three deliveries that were held over a disconnect, and the same messages delivered again; `None` where none can be made.
async fn across_a_disconnect<T: SourceUnderTest>(
    subject: &T,
) -> Option<(SourceDriver<T::Source>, Deliveries<T::Source>, Deliveries<T::Source>)> {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let held = reader.take(3).await;
    if !disconnect(subject, &reader).await {
        return None;
    }
    let again = take_despite_outages(&reader, 3).await;
    Some((reader, held, again))
}

/// Contract 5.
pub async fn a_disconnect_returns_what_was_held<T: SourceUnderTest>(subject: &T) {
    let Some((reader, held, again)) = across_a_disconnect(subject).await else { return };
    assert_eq!(sorted(&again), sorted(&held));
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// G2: an old tag on a new channel acknowledged *another message*. The new deliveries are in hand here.
pub async fn a_handle_from_before_a_disconnect_is_stale_and_acknowledges_nothing<T: SourceUnderTest>(subject: &T) {
    let Some((reader, held, again)) = across_a_disconnect(subject).await else { return };
    assert_eq!(reader.try_acknowledge(held).await, [Settled::Stale; 3]);
    left(subject, 3).await;
    reader.acknowledge(again).await;
    left(subject, 0).await;
}

/// Contract 4: one answer each, in order, also where some entries never reach the broker.
pub async fn a_batch_of_old_and_new_handles_is_answered_in_order<T: SourceUnderTest>(subject: &T) {
    let Some((reader, old, new)) = across_a_disconnect(subject).await else { return };
    let mixed = old.into_iter().zip(new).flat_map(|(old, new)| [new, old]).collect();
    let (good, over) = (Settled::Settled, Settled::Stale);
    assert_eq!(reader.try_acknowledge(mixed).await, [good, over, good, over, good, over]);
    left(subject, 0).await;
}

/// A revocation out of nothing would make core drop work that is still its own.
pub async fn an_undisturbed_source_revokes_nothing<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    for _ in 0..10 {
        publish(subject, 5).await;
        // `take` fails at anything but deliveries.
        let deliveries = reader.take(5).await;
        reader.acknowledge(deliveries).await;
    }
    reader.source.stop();
    assert!(matches!(reader.next(1).await, Received::End));
}
