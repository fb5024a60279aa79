//! Channels that end, and the fate of their deliveries (G1, G2, G3, G12).

use std::time::Duration;

use idem_core::{
    Message, Source, SourceError,
    source::{Received, Settled},
};
use reqwest::Method;

use crate::{
    broker::{Kind, PATIENCE, Queue, eventually, management},
    member::{join, numbers, sorted, within},
};

async fn publish(queue: &Queue, names: &[String]) {
    for name in names {
        queue.publish(Message::new(name.clone())).await.unwrap();
    }
}

/// The broker closes the connection, as an operator's tool does. A late acknowledgement must not close the next one.
#[tokio::test(flavor = "multi_thread")]
async fn g1_late_acknowledgements_are_dropped_and_leave_the_next_channel_alone() {
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, &numbers(0..3)).await;
    let member = join(&queue.options()).await;
    let held = member.take_over_revocations(3).await;
    let mut connection = String::new();
    eventually("the connection's name", async || {
        let described = queue.described().await;
        let name = described["consumer_details"][0]["channel_details"]["connection_name"].as_str();
        connection = name.unwrap_or_default().to_owned();
        !connection.is_empty()
    })
    .await;
    let path = format!("connections/{}", connection.replace(' ', "%20").replace('>', "%3E"));
    assert!(management(Method::DELETE, &path).await.status().is_success());
    member.lost().await;
    let again = member.take_over_revocations(3).await;
    assert_eq!(member.try_acknowledge(held).await, [Settled::Stale; 3]);
    assert!(again.iter().all(|delivery| delivery.redelivered));
    member.acknowledge(again).await;
    publish(&queue, &numbers(3..4)).await;
    // On the same channel: nothing has closed it meanwhile.
    match member.receive(1).await.unwrap() {
        Received::Deliveries(next) => assert_eq!(sorted(&next), ["003"]),
        other => panic!("{other:?}"),
    }
}

/// Tags start again on each channel. 50 messages are in hand when the connection breaks; on the next channel their tags
/// belong to others.
#[tokio::test(flavor = "multi_thread")]
async fn g2_old_tags_acknowledge_nothing_on_the_new_channel() {
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, &numbers(0..100)).await;
    let member = join(&queue.options()).await;
    let old = member.take_over_revocations(50).await;
    queue.proxy.cut().await;
    member.lost().await;
    let new = member.take_over_revocations(100).await;
    assert_eq!(sorted(&new), numbers(0..100));
    assert_eq!(member.try_acknowledge(old).await, [Settled::Stale; 50]);
    let (mut mine, mut rest) = (Vec::new(), Vec::new());
    for (place, delivery) in new.into_iter().enumerate() {
        if place % 2 == 0 { mine.push(delivery) } else { rest.push(delivery) }
    }
    let left = sorted(&rest);
    member.acknowledge(mine).await;
    drop((rest, member));
    let next = join(&queue.options()).await;
    assert_eq!(sorted(&next.take_over_revocations(50).await), left, "exactly what was not acknowledged");
}

/// The tasks of a connection end with it, and all others with the source.
#[tokio::test(flavor = "multi_thread")]
async fn no_task_outlives_its_connection() {
    let queue = Queue::new(Kind::Classic).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let member = join(&queue.options()).await;
    publish(&queue, &numbers(0..1)).await;
    for _ in 0..5 {
        member.take_over_revocations(1).await;
        queue.proxy.cut().await;
        member.lost().await;
    }
    member.source.close(PATIENCE).await;
    eventually("the end of all tasks", async || alive() <= before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_the_prefetch_holds_on_every_channel() {
    let queue = Queue::new(Kind::Classic).await;
    publish(&queue, &numbers(0..100)).await;
    let member = join(&queue.options().prefetch(7)).await;
    for _ in 0..3 {
        // One is of the subscription with which each channel begins.
        eventually("the prefetch", async || {
            let described = queue.described().await;
            let unacknowledged = described["messages_unacknowledged"].as_u64().unwrap_or(0);
            assert!(unacknowledged <= 8, "{unacknowledged} messages were taken");
            unacknowledged == 8 && described["messages_ready"].as_u64() == Some(92)
        })
        .await;
        let held = member.take_over_revocations(8).await;
        let more = tokio::time::timeout(Duration::from_millis(100), member.source.receive(100)).await;
        assert!(more.is_err(), "more than the prefetch was delivered: {more:?}");
        drop(held);
        queue.proxy.cut().await;
        member.lost().await;
    }
}

/// The broker cancels the subscription. A queue that is declared anew is consumed again.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_queue_that_comes_back_is_consumed_again() {
    let queue = Queue::new(Kind::Classic).await;
    let member = join(&queue.options()).await;
    queue.delete().await;
    member.lost().await;
    // A queue that is away for a moment is no reason to end: it is reported once, as an outage.
    let told = member.receive(1).await;
    assert!(matches!(told, Err(SourceError::Unavailable { .. })), "{told:?}");
    let silent = tokio::time::timeout(Duration::from_secs(1), member.source.receive(1)).await;
    assert!(silent.is_err(), "{silent:?}");
    queue.declare().await;
    publish(&queue, &numbers(0..1)).await;
    let held = member.take_over_revocations(1).await;
    member.acknowledge(held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g12_a_queue_that_is_gone_for_good_is_refused() {
    let queue = Queue::new(Kind::Classic).await;
    let member = join(&queue.options()).await;
    queue.delete().await;
    member.lost().await;
    // For half a minute a deployment may declare it anew.
    match member.receive(1).await {
        Err(SourceError::Unavailable { source, .. }) => assert!(source.to_string().contains(&queue.name), "{source}"),
        other => panic!("instead of an outage came {other:?}"),
    }
    match member.receive(1).await {
        Err(error @ SourceError::Refused { .. }) => assert!(error.to_string().contains(&queue.name), "{error}"),
        other => panic!("instead of a refusal came {other:?}"),
    }
}

/// G30: at any time it is known whether the broker can be reached, and since when it cannot.
#[tokio::test(flavor = "multi_thread")]
async fn g30_a_broker_that_is_away_is_known_to_be_until_it_is_back() {
    let queue = Queue::new(Kind::Classic).await;
    let member = join(&queue.options()).await;
    assert_eq!(member.source.unreachable_for(), None);
    queue.proxy.refuse(true);
    queue.proxy.cut().await;
    member.lost().await;
    let first = member.source.unreachable_for().expect("it is away");
    assert!(matches!(member.receive(1).await, Err(SourceError::Unavailable { .. })), "told once");
    assert!(member.source.unreachable_for().expect("it is still away") > first);
    queue.proxy.refuse(false);
    queue.publish(Message::new("a")).await.unwrap();
    let held = member.take_over_revocations(1).await;
    assert_eq!(member.source.unreachable_for(), None);
    member.acknowledge(held).await;
}

/// G34: a quorum queue counts why it has a message back, and a stop is no reason to suspect it. A classic queue does not say
/// why.
#[tokio::test(flavor = "multi_thread")]
async fn g34_a_message_that_a_stop_gave_back_is_not_suspected() {
    for kind in [Kind::Quorum, Kind::Classic] {
        let queue = Queue::new(kind).await;
        queue.publish(Message::new("a")).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let member = join(&queue.options()).await;
            let held = member.take_over_revocations(1).await;
            seen.push((held[0].redelivered, held[0].suspect));
            within("closing", member.source.close(PATIENCE)).await;
        }
        let second = kind == Kind::Classic;
        assert_eq!(seen, [(false, false), (true, second), (true, true)], "{kind:?}");
    }
}

/// J9: reported once, and waited for.
#[tokio::test(flavor = "multi_thread")]
async fn j9_a_broker_that_goes_away_is_reported_and_waited_for() {
    let queue = Queue::new(Kind::Classic).await;
    let member = join(&queue.options()).await;
    queue.proxy.refuse(true);
    queue.proxy.cut().await;
    member.lost().await;
    assert!(matches!(member.receive(1).await, Err(SourceError::Unavailable { .. })));
    let silent = tokio::time::timeout(Duration::from_secs(2), member.source.receive(1)).await;
    assert!(silent.is_err(), "an outage is told once: {silent:?}");
    queue.proxy.refuse(false);
    publish(&queue, &numbers(0..1)).await;
    let held = member.take_over_revocations(1).await;
    member.acknowledge(held).await;
    assert!(within("is_idle", member.source.is_idle()).await);
}
