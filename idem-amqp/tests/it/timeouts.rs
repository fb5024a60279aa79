//! A broker that takes messages back (G4), one that has no room (G9), and one that says nothing any more (G53).

use std::time::Duration;

use idem_amqp::AmqpOptions;
use idem_core::{Message, Source, SourceError, dead_letter::Publisher, source::Settled};

use crate::{
    broker::{Kind, Queue, eventually, host, url},
    member::{join, sorted, within},
    own_server::OwnServer,
    publisher::{dead_letter, publisher},
};

/// G4: the broker closes the channel of a consumer that settles nothing. The next one begins at once, and the message
/// comes back.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_channel_that_timed_out_is_opened_anew() {
    let server = OwnServer::up().await;
    let queue = Queue::on(&server.url(), Kind::Classic, &[]).await;
    queue.publish(Message::new("slow")).await.unwrap();
    let member = join(&queue.options()).await;
    let late = member.take_over_revocations(1).await;
    member.lost().await;
    let again = member.take_over_revocations(1).await;
    assert!(again[0].redelivered);
    assert_eq!(member.try_acknowledge(late).await, [Settled::Stale]);
    member.acknowledge(again).await;
    assert!(within("is_idle", member.source.is_idle()).await);
}

/// G53: a connection over which nothing comes any more ends with its heartbeats, also where a message is in hand and no
/// task closes it. The message comes back on the next one.
#[tokio::test(flavor = "multi_thread")]
async fn g53_a_connection_that_stands_still_ends_with_its_heartbeats() {
    let queue = Queue::new(Kind::Classic).await;
    queue.publish(Message::new("in hand")).await.unwrap();
    let url = format!("{}?heartbeat=1", url().replace(&host(&url()), queue.proxy.address()));
    let member = join(&AmqpOptions::new(url, &queue.name).prefetch(1)).await;
    let held = member.take_over_revocations(1).await;
    queue.proxy.freeze();
    tokio::time::timeout(Duration::from_secs(30), member.lost()).await.expect("two heartbeats without a word");
    queue.proxy.thaw();
    let again = member.take_over_revocations(1).await;
    assert!(again[0].redelivered);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Stale]);
    member.acknowledge(again).await;
    assert!(within("is_idle", member.source.is_idle()).await);
}

/// Whether the broker said so, as opposed to an answer that did not come in time.
fn is_blocked(error: &SourceError) -> bool {
    match error {
        SourceError::Unavailable { source, .. } => source.to_string().contains("blocked the connection"),
        other => panic!("{other:?}"),
    }
}

/// A broker that is out of memory blocks publishers. Consuming goes on; a dead letter counts as not published at once, and
/// is published when there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn g9_a_blocked_connection_publishes_nothing_and_consuming_goes_on() {
    let server = OwnServer::up().await;
    let (queue, dead) =
        (Queue::on(&server.url(), Kind::Classic, &[]).await, Queue::on(&server.url(), Kind::Classic, &[]).await);
    for name in ["a", "b"] {
        queue.publish(Message::new(name)).await.unwrap();
    }
    let (publisher, letter) = (publisher(&dead, &dead.name), dead_letter(Message::new("{}")));
    within("publishing", publisher.publish(&letter)).await.unwrap();
    let member = join(&queue.options().prefetch(1)).await;
    server.control(&["set_vm_memory_high_watermark", "absolute", "1MB"]).await;
    let mut published = 1;
    eventually("a refusal", async || match publisher.publish(&letter).await {
        Ok(()) => {
            published += 1;
            false
        }
        Err(error) => is_blocked(&error),
    })
    .await;
    let stored = dead.declared().await.message_count();
    assert!(stored >= published, "{published} were confirmed, {stored} are there");
    for name in ["a", "b"] {
        let held = member.take_over_revocations(1).await;
        assert_eq!(sorted(&held), [name]);
        member.acknowledge(held).await;
    }
    let still = publisher.publish(&letter).await.unwrap_err();
    assert!(is_blocked(&still), "{still:?}");
    server.control(&["set_vm_memory_high_watermark", "0.4"]).await;
    eventually("room", async || publisher.publish(&letter).await.is_ok()).await;
    // The one that the broker had not read when it blocked the connection may have come late.
    let stored = dead.declared().await.message_count();
    assert!((published + 1..=published + 2).contains(&stored), "{published} were confirmed before, {stored} are there");
}
