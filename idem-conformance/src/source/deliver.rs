//! Cases: every published message arrives, and comes back until it is acknowledged.

use std::{collections::HashSet, sync::Arc};

use idem_core::{Message, Source, source::Received};
use tokio::sync::mpsc;

use super::{
    steps::{Steps as _, left, numbers, publish, put},
    subject::SourceUnderTest,
};
use idem_testkit::source_driver::{SourceDriver, payloads, sorted, within};

/// Contract 1 and 5.
pub async fn every_published_message_is_delivered_once_when_acknowledged<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    publish(subject, 20).await;
    let deliveries = reader.take(20).await;
    assert_eq!(sorted(&deliveries), numbers(20));
    reader.acknowledge(deliveries).await;
    left(subject, 0).await;
    reader.idle().await;
    reader.close().await;
    left(subject, 0).await;
}

/// Contract 4: an acknowledgement outlives the source that gave it.
pub async fn acknowledged_messages_are_gone_for_the_next_consumer<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(3).await;
    reader.acknowledge(deliveries).await;
    reader.close().await;
    left(subject, 0).await;
    let reader = SourceDriver::open(subject).await;
    put(subject, Message::new("new")).await;
    assert_eq!(payloads(&reader.take(1).await), ["new"]);
}

/// Contract 5.
pub async fn unsettled_messages_come_back_after_a_crash<T: SourceUnderTest>(subject: &T) {
    publish(subject, 5).await;
    let reader = SourceDriver::open(subject).await;
    assert_eq!(sorted(&reader.take(5).await), numbers(5));
    let reader = reader.restart(subject).await;
    let deliveries = reader.take(5).await;
    assert_eq!(sorted(&deliveries), numbers(5));
    reader.acknowledge(deliveries).await;
    left(subject, 0).await;
}

/// Contract 4 and 5, together: acknowledged messages stay so, and the rest comes back. The rest is the later half, so
/// that a broker which keeps positions can say it too.
pub async fn acknowledged_messages_do_not_come_back_after_a_crash<T: SourceUnderTest>(subject: &T) {
    publish(subject, 6).await;
    let reader = SourceDriver::open(subject).await;
    let mut first = reader.take(6).await;
    let kept = sorted(&first[3..]);
    first.truncate(3);
    reader.acknowledge(first).await;
    left(subject, 3).await;
    let reader = reader.restart(subject).await;
    assert_eq!(sorted(&reader.take(3).await), kept);
}

/// Contract 1, past every buffer.
pub async fn a_thousand_messages_arrive_whole<T: SourceUnderTest>(subject: &T) {
    publish(subject, 1000).await;
    let reader = SourceDriver::open(subject).await;
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        let deliveries = match reader.next(150).await {
            Received::Deliveries(deliveries) => deliveries,
            other => panic!("instead of messages came {other:?}"),
        };
        seen.extend(payloads(&deliveries));
        reader.acknowledge(deliveries).await;
    }
    seen.sort_unstable();
    assert_eq!(seen, numbers(1000));
    left(subject, 0).await;
}

/// `receive`'s own promise.
pub async fn receive_hands_over_at_most_max<T: SourceUnderTest>(subject: &T) {
    publish(subject, 10).await;
    let reader = SourceDriver::open(subject).await;
    let mut taken = 0;
    for max in [1, 3, 2, 1, 2, 1] {
        match reader.next(max).await {
            Received::Deliveries(deliveries) => {
                assert!(deliveries.len() <= max, "{} deliveries where at most {max} were asked for", deliveries.len());
                taken += deliveries.len();
            }
            other => panic!("instead of messages came {other:?}"),
        }
    }
    assert!(taken <= 10);
}

/// Contract 1: receive waits.
pub async fn receive_waits_for_a_message_that_is_published_later<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    reader.idle().await;
    let (deliveries, ()) = tokio::join!(reader.take(1), put(subject, Message::new("late")));
    assert_eq!(payloads(&deliveries), ["late"]);
}

/// Contract 1: core drops a call when it has something better to do, again and again.
pub async fn a_dropped_receive_loses_nothing<T: SourceUnderTest>(subject: &T) {
    let reader = SourceDriver::open(subject).await;
    publish(subject, 50).await;
    let mut taken = Vec::new();
    within("receiving in pieces", async {
        while taken.len() < 50 {
            // Dropped after as many polls as there are deliveries already, and after one for a receive of none.
            for (max, polls) in [(7, taken.len() % 5), (0, 0)] {
                tokio::select! {
                    biased;
                    received = reader.source.receive(max) => match received.expect("receive") {
                        Received::Deliveries(deliveries) if deliveries.len() <= max => taken.extend(deliveries),
                        other => panic!("receive({max}) answered {other:?}"),
                    },
                    () = yields(polls) => {}
                }
            }
        }
    })
    .await;
    assert_eq!(sorted(&taken), numbers(50));
    reader.acknowledge(taken).await;
    left(subject, 0).await;
}

async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// A group that starts takes what is there.
pub async fn messages_published_before_attach_are_delivered<T: SourceUnderTest>(subject: &T) {
    let source = subject.source().await;
    publish(subject, 2).await;
    let reader = SourceDriver::join(source).await;
    assert_eq!(sorted(&reader.take(2).await), numbers(2));
}

/// Each message goes to one of the sources of a group. Where they do not share, one gets all and the other nothing.
pub async fn two_sources_share_the_messages<T: SourceUnderTest>(subject: &T) {
    let readers = [Arc::new(SourceDriver::open(subject).await), Arc::new(SourceDriver::open(subject).await)];
    let (heard, mut hearing) = mpsc::channel(1);
    let listening: Vec<_> = (0..2)
        .map(|number| {
            let (reader, heard) = (Arc::clone(&readers[number]), heard.clone());
            tokio::spawn(async move {
                loop {
                    // A group that is joined may first revoke what its older member had.
                    match reader.source.receive(1).await.expect("receive") {
                        Received::Deliveries(deliveries) => heard.send((number, deliveries)).await.expect("the test"),
                        Received::End => return,
                        _ => {}
                    }
                }
            })
        })
        .collect();
    subject.formed(2).await;
    publish(subject, 40).await;
    let (mut seen, mut heard_from) = (Vec::new(), HashSet::new());
    while seen.len() < 40 {
        let (number, deliveries) = within("a message", hearing.recv()).await.expect("a source that is running");
        heard_from.insert(number);
        seen.extend(payloads(&deliveries));
        readers[number].acknowledge(deliveries).await;
    }
    seen.sort_unstable();
    assert_eq!(seen, numbers(40));
    if !subject.features().shares_messages {
        assert_eq!(heard_from.len(), 1, "a broker that does not share gives all to one");
    }
    left(subject, 0).await;
    readers.iter().for_each(|reader| reader.source.stop());
    for task in listening {
        within("the end", task).await.expect("no panic");
    }
}

/// Contract 5, with a survivor.
pub async fn crash_of_one_source_returns_its_messages_to_the_other<T: SourceUnderTest>(subject: &T) {
    publish(subject, 4).await;
    let first = SourceDriver::open(subject).await;
    let held = first.take(4).await;
    let second = SourceDriver::open(subject).await;
    subject.crash(first.source).await;
    drop(held);
    // The second may have been given all of it before the first one left, and then again.
    let deliveries = second.take_over_revocations(4).await;
    assert_eq!(sorted(&deliveries), numbers(4));
    second.acknowledge(deliveries).await;
    left(subject, 0).await;
}

/// `Origin`'s promise: a redelivery has the same one. Dead letters rest on it.
pub async fn an_origin_is_stable_over_redelivery<T: SourceUnderTest>(subject: &T) {
    publish(subject, 3).await;
    let reader = SourceDriver::open(subject).await;
    let named = |deliveries: &[idem_core::source::Delivery<_>]| {
        let mut named: Vec<_> = deliveries
            .iter()
            .map(|delivery| (payloads(std::slice::from_ref(delivery)), delivery.message.origin().as_str().to_owned()))
            .collect();
        named.sort_unstable();
        named
    };
    let before = named(&reader.take(3).await);
    assert!(before.iter().all(|(_, origin)| !origin.is_empty()), "an origin is empty");
    let reader = reader.restart(subject).await;
    assert_eq!(named(&reader.take(3).await), before);
}

/// `Origin`'s promise: a second send has another one.
pub async fn a_second_send_has_an_origin_of_its_own<T: SourceUnderTest>(subject: &T) {
    for _ in 0..3 {
        put(subject, Message::new("again").with_header("idempotencykey", "order-1")).await;
    }
    let reader = SourceDriver::open(subject).await;
    let deliveries = reader.take(3).await;
    let origins: HashSet<_> = deliveries.iter().map(|delivery| delivery.message.origin().clone()).collect();
    assert_eq!(origins.len(), 3);
}

/// Duplicates are the engine's to decide: a source that drops one loses a conflict or a message (F10).
pub async fn equal_messages_are_not_merged<T: SourceUnderTest>(subject: &T) {
    for _ in 0..5 {
        put(subject, Message::new("equal").with_header("idempotencykey", "order-1")).await;
    }
    let reader = SourceDriver::open(subject).await;
    assert_eq!(payloads(&reader.take(5).await), ["equal"; 5]);
    left(subject, 5).await;
}

/// Contract 3: a delivery lives on while its source receives and settles others.
pub async fn a_message_that_is_handled_while_others_arrive_stays_unsettled<T: SourceUnderTest>(subject: &T) {
    put(subject, Message::new("slow")).await;
    let reader = SourceDriver::open(subject).await;
    let slow = reader.take(1).await;
    publish(subject, 30).await;
    for _ in 0..30 {
        let next = reader.take(1).await;
        assert_ne!(payloads(&next), ["slow"], "it was delivered again while it was held");
        if subject.features().individual_settle {
            reader.acknowledge(next).await;
        }
    }
    if subject.features().individual_settle {
        left(subject, 1).await;
        reader.acknowledge(slow).await;
        left(subject, 0).await;
    } else {
        left(subject, 31).await;
    }
}
