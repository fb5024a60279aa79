//! Messages in hand are kept from others for as long as it takes, and no longer (F1, F7, F8).

use std::time::Duration;

use idem_core::{Source, source::Settled};
use idem_testkit::sqs::QueueOptions;

use crate::{
    member::{join, payloads, sorted},
    server::{Server, eventually},
};

const VISIBILITY: Duration = Duration::from_secs(4);

/// A handler that runs for more than twice the visibility, and a message that waits as long in front of the worker.
async fn kept_while_it_runs(server: Server) {
    let queue = server.queue("").await;
    let options = queue.options().visibility(VISIBILITY);
    queue.send(["a", "b"]).await;
    let member = join(&options).await;
    let held = member.take_without_outage(1).await;
    eventually("the other message's receive", async || queue.counts().await == [0, 2, 0]).await;
    let rival = join(&options).await;
    let stolen = tokio::time::timeout(VISIBILITY * 5 / 2, rival.source.receive(1)).await;
    assert!(stolen.is_err(), "a rival got what is in hand: {stolen:?}");
    let rest = member.take_without_outage(1).await;
    let mut all = [payloads(&held), payloads(&rest)].concat();
    all.sort_unstable();
    assert_eq!(all, ["a", "b"]);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled]);
    assert_eq!(member.try_acknowledge(rest).await, [Settled::Settled]);
    queue.until_counts([0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_a_message_stays_in_hand_for_longer_than_its_visibility_on_elasticmq() {
    kept_while_it_runs(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_a_message_stays_in_hand_for_longer_than_its_visibility_on_the_fake() {
    kept_while_it_runs(Server::fake().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_extensions_go_in_batches_and_what_fails_is_asked_again() {
    let queue = Server::fake().await.queue("").await;
    queue.send((0..20).map(|number| number.to_string())).await;
    let member = join(&queue.options().visibility(VISIBILITY)).await;
    let held = member.take_without_outage(20).await;
    queue.fake().fail_entries(7);
    let requests = || queue.server.as_fake().requests("ChangeMessageVisibilityBatch");
    // Two, one or two for the failed entries, and the next ones.
    eventually("extensions", async || requests() >= 5).await;
    assert_eq!(queue.counts().await, [0, 20, 0]);
    assert!(requests() < 20, "ten in each");
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 20]);
    queue.until_counts([0, 0, 0]).await;
}

/// The visibility has passed on the server, as after the cap of twelve hours: it says no, and that is said loudly.
#[tokio::test(flavor = "multi_thread")]
async fn f7_what_is_not_extended_any_more_is_given_up_and_comes_again() {
    let queue = Server::fake().await.queue("").await;
    queue.send(["a"]).await;
    let member = join(&queue.options().visibility(VISIBILITY)).await;
    let held = member.take_without_outage(1).await;
    // No worker receives it meanwhile, so that the extension finds out.
    queue.server.as_fake().hang_receives(true);
    let extensions = || queue.server.as_fake().requests("ChangeMessageVisibilityBatch");
    let before = extensions();
    queue.server.as_fake().advance(Duration::from_secs(12 * 3600));
    let revocation = member.revocation().await;
    assert_eq!(extensions(), before + 1, "a no is final");
    assert_eq!(revocation.assignments, [held[0].assignment]);
    assert!(revocation.drained.is_none());
    assert_eq!(member.try_acknowledge(held).await, [Settled::Stale], "nothing is sent for it");
    assert_eq!(queue.server.as_fake().requests("DeleteMessageBatch"), 0);
    queue.server.as_fake().hang_receives(false);
    let again = member.take_without_outage(1).await;
    assert_eq!((payloads(&again), again[0].attempt, again[0].redelivered), (vec!["a".to_owned()], 2, true));
    assert_ne!(again[0].assignment, revocation.assignments[0]);
    assert_eq!(member.try_acknowledge(again).await, [Settled::Settled]);
}

/// The server answers nothing but errors until the visibility has passed.
#[tokio::test(flavor = "multi_thread")]
async fn f7_what_cannot_be_extended_is_given_up_when_its_visibility_passes() {
    let queue = Server::fake().await.queue("").await;
    queue.send(["a"]).await;
    let member = join(&queue.options().visibility(Duration::from_secs(2))).await;
    let held = member.take_without_outage(1).await;
    queue.server.as_fake().fail("ChangeMessageVisibilityBatch", u32::MAX);
    queue.server.as_fake().hang_receives(true);
    assert_eq!(member.revocation().await.assignments, [held[0].assignment]);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Stale]);
}

/// Messages that a stop gives back are there for the next worker at once, every time, and far from the queue's limit.
async fn restarts(server: Server) {
    let options = QueueOptions { redrive: Some((50, "dead".to_owned())), ..QueueOptions::default() };
    let queue = server.queue_with("", options).await;
    queue.send(["a", "b", "c"]).await;
    for _ in 0..20 {
        let member = join(&queue.options()).await;
        drop(member.take_without_outage(3).await);
        member.close().await;
        queue.until_counts([3, 0, 0]).await;
    }
    let member = join(&queue.options()).await;
    let held = member.take_without_outage(3).await;
    assert_eq!(sorted(&held), ["a", "b", "c"]);
    for delivery in &held {
        assert_eq!((delivery.attempt, delivery.redelivered), (21, true));
        assert!(!delivery.suspect, "whoever gave it back each time was alive");
    }
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 3]);
    queue.until_counts([0, 0, 0]).await;
}

/// F16: a message that comes for the third time, and stayed away for longer than its visibility before, may have ended the
/// workers that had it. The second time proves nothing: a worker may have been stopped, or died of another message.
#[tokio::test(flavor = "multi_thread")]
async fn f16_a_message_is_suspected_when_visibilities_have_passed() {
    let queue = Server::fake().await.queue("").await;
    queue.send(["a"]).await;
    let visibility = Duration::from_secs(600);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let member = join(&queue.options().visibility(visibility).receivers(1)).await;
        let held = member.take_without_outage(1).await;
        seen.push((held[0].attempt, held[0].redelivered, held[0].suspect));
        // It dies.
        drop(member);
        queue.server.as_fake().advance(visibility);
    }
    assert_eq!(seen, [(1, false, false), (2, true, false), (3, true, true), (4, true, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn f8_twenty_restarts_take_no_good_message_away_on_elasticmq() {
    restarts(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f8_twenty_restarts_take_no_good_message_away_on_the_fake() {
    restarts(Server::fake().await).await;
}

/// A worker that stops has receives under way; their messages are given back too.
#[tokio::test(flavor = "multi_thread")]
async fn a_receive_under_way_at_a_stop_is_waited_for_and_given_back() {
    let queue = Server::fake().await.queue("").await;
    let member = join(&queue.options().wait(Duration::from_secs(20))).await;
    let receives = || queue.server.as_fake().requests("ReceiveMessage");
    eventually("the poll of empty hands", async || receives() == 1).await;
    let closing = tokio::spawn(member.close());
    queue.send(["a", "b"]).await;
    closing.await.unwrap();
    assert_eq!(queue.counts().await, [2, 0, 0]);
    assert_eq!(receives(), 1, "nothing was received after the stop");
    let given_back = queue.server.as_fake().requests("ChangeMessageVisibilityBatch");
    assert_eq!(given_back, 1, "they were received, and given back together");
}
