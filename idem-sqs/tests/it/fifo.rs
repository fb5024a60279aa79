//! Groups of FIFO queues (F6, F10), and groups of standard queues.

use std::{collections::HashMap, time::Duration};

use idem_core::{Decision, IdempotencyKey, SourceError, source::Settled};
use idem_sqs::deduplicated;

use crate::{
    faults::{Engine, order},
    member::{Deliveries, join, payloads},
    server::{Server, TestQueue},
};

const GROUPS: [&str; 3] = ["a", "b", "c"];

fn by_group(deliveries: Deliveries) -> HashMap<String, Deliveries> {
    let mut groups: HashMap<String, Deliveries> = HashMap::new();
    for delivery in deliveries {
        let group = str::from_utf8(delivery.message.ordering_key().unwrap().as_bytes()).unwrap().to_owned();
        groups.entry(group).or_default().push(delivery);
    }
    groups
}

/// So few that one receive brings them all: a group with something in flight waits.
async fn groups_of_three(queue: &TestQueue) {
    for group in GROUPS {
        queue.send_in_order(group, (0..3).map(|number| format!("{group}{number}"))).await;
    }
}

/// One group fails at its second message, and the rest of it is given back in any order; the other groups go on.
async fn a_failing_group(server: Server) {
    let queue = server.queue(".fifo").await;
    groups_of_three(&queue).await;
    let member = join(&queue.options()).await;
    let mut groups = by_group(member.take_without_outage(9).await);
    for group in GROUPS {
        let expected: Vec<_> = (0..3).map(|number| format!("{group}{number}")).collect();
        assert_eq!(payloads(&groups[group]), expected);
    }
    let mut failing = groups.remove("a").unwrap();
    let mut rest = failing.split_off(1);
    assert_eq!(member.try_acknowledge(failing).await, [Settled::Settled]);
    rest.swap(0, 1);
    assert_eq!(member.try_release(rest, Duration::ZERO).await, [Settled::Settled; 2]);
    for group in ["b", "c"] {
        assert_eq!(member.try_acknowledge(groups.remove(group).unwrap()).await, [Settled::Settled; 3]);
    }
    // A poll may get the first as soon as that is given back, and the group then waits for it.
    for expected in ["a1", "a2"] {
        let again = member.take_without_outage(1).await;
        assert_eq!(payloads(&again), [expected]);
        assert_eq!(member.try_acknowledge(again).await, [Settled::Settled]);
    }
    queue.until_counts([0, 0, 0]).await;
}

/// An answer that gets lost has taken messages all the same. The receive that is repeated gets them again, and their group
/// does not wait for their visibility.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_receive_whose_answer_is_lost_is_repeated_as_the_same_attempt() {
    let queue = Server::fake().await.queue(".fifo").await;
    queue.send_in_order("a", ["a0", "a1", "a2"]).await;
    queue.server.as_fake().lose_answers("ReceiveMessage", 1);
    let member = join(&queue.options().receivers(1).visibility(Duration::from_secs(3600))).await;
    assert!(matches!(member.receive(3).await, Err(SourceError::Unavailable { .. })));
    let held = member.take_without_outage(3).await;
    assert_eq!(payloads(&held), ["a0", "a1", "a2"]);
    assert!(held.iter().all(|delivery| delivery.attempt == 1), "it was one receive");
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 3]);
    queue.until_counts([0, 0, 0]).await;
}

/// F17: the first message of a group in hand is lost, as when its extension is refused. The next message was kept, and ran
/// before it.
#[tokio::test(flavor = "multi_thread")]
async fn f17_a_message_that_is_lost_takes_its_followers_with_it() {
    let queue = Server::fake().await.queue(".fifo").await;
    queue.send_in_order("a", ["a0", "a1", "a2"]).await;
    queue.send_in_order("b", ["b0"]).await;
    let member = join(&queue.options().visibility(Duration::from_secs(4))).await;
    let mut groups = by_group(member.take_without_outage(4).await);
    let (lost, other) = (groups.remove("a").unwrap(), groups.remove("b").unwrap());
    assert_eq!(queue.fake().lapse(1), 1);
    let assignments: Vec<_> = lost.iter().map(|delivery| delivery.assignment).collect();
    assert_eq!(member.revocation().await.assignments, assignments);
    let again = member.take_without_outage(3).await;
    assert_eq!(payloads(&again), ["a0", "a1", "a2"], "the whole group, at once and in its order");
    assert_eq!(member.try_acknowledge(lost).await, [Settled::Stale; 3]);
    assert_eq!(member.try_acknowledge(again).await, [Settled::Settled; 3]);
    assert_eq!(member.try_acknowledge(other).await, [Settled::Settled]);
    queue.until_counts([0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f6_a_group_that_fails_comes_back_in_order_and_others_go_on_on_elasticmq() {
    a_failing_group(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f6_a_group_that_fails_comes_back_in_order_and_others_go_on_on_the_fake() {
    a_failing_group(Server::fake().await).await;
}

/// A worker that stops gives everything back, and the next one gets every group in its order.
async fn a_handover(server: Server) {
    let queue = server.queue(".fifo").await;
    groups_of_three(&queue).await;
    for _ in 0..3 {
        let member = join(&queue.options()).await;
        let groups = by_group(member.take_without_outage(9).await);
        for group in GROUPS {
            let expected: Vec<_> = (0..3).map(|number| format!("{group}{number}")).collect();
            assert_eq!(payloads(&groups[group]), expected);
        }
        member.close().await;
    }
    queue.until_counts([9, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f6_a_stop_gives_groups_back_in_order_on_elasticmq() {
    a_handover(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f6_a_stop_gives_groups_back_in_order_on_the_fake() {
    a_handover(Server::fake().await).await;
}

/// The queue drops a copy within five minutes, and after that the engine does.
#[tokio::test(flavor = "multi_thread")]
async fn f10_a_repetition_after_five_minutes_is_a_duplicate() {
    let queue = Server::fake().await.queue(".fifo").await;
    let (engine, member) = (Engine::new(), join(&queue.options()).await);
    let key = IdempotencyKey::new("order-1").unwrap();
    let send = async || {
        let send = deduplicated(queue.client().send_message(), "customer-1", &key);
        send.queue_url(&queue.url).message_body(order(1)).send().await.unwrap();
    };
    send().await;
    send().await;
    let held = member.take_without_outage(1).await;
    assert_eq!(queue.counts().await, [0, 1, 0], "one of the two was dropped");
    assert_eq!(held[0].message.headers().text("idempotencykey"), Some("order-1"));
    assert!(engine.process(&held).await[0].is_processed());
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled]);
    queue.server.as_fake().advance(Duration::from_secs(360));
    send().await;
    let again = member.take_without_outage(1).await;
    assert!(engine.process(&again).await.iter().all(Decision::is_skipped));
    assert_eq!(member.try_acknowledge(again).await, [Settled::Settled]);
}

/// There it is about fairness between tenants, and one that fails must not hold up the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_on_a_standard_queue_is_no_order() {
    let queue = Server::fake().await.queue("").await;
    queue.send_in_order("tenant-1", ["a", "b"]).await;
    let member = join(&queue.options()).await;
    assert!(member.take_without_outage(2).await.iter().all(|delivery| delivery.message.ordering_key().is_none()));
}
