//! Behaviour that SQS documents and emulators lack (F2, F3, F4, F5, F9), and refusals when attaching.

use std::time::Duration;

use aws_credential_types::Credentials;
use idem_core::{
    Decision, DedupConsumer, Effects, HandlerError, Message, Source, SourceError, Tx, handler_fn,
    source::{Received, Settled},
};
use idem_sqs::{
    SqsOptions,
    aws_sdk_sqs::{
        Client, Config,
        config::{BehaviorVersion, Region},
    },
};
use idem_testkit::{Decide as _, MemoryStore, sqs::QueueOptions};

use crate::{
    member::{Deliveries, attach, join, payloads, within},
    server::{PATIENCE, Server, client, eventually},
};

async fn nothing(_message: &Message, _tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

/// An engine with a store of its own, for deliveries with keys in their bodies.
pub(crate) struct Engine(DedupConsumer<MemoryStore>);

impl Engine {
    pub(crate) fn new() -> Self {
        let consumer = DedupConsumer::builder(MemoryStore::new(), "ledger").handler(handler_fn(nothing));
        Self(consumer.effects(Effects::InTransaction).build().unwrap())
    }

    pub(crate) async fn process(&self, deliveries: &Deliveries) -> Vec<Decision> {
        let messages = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        within("handling", self.0.decisions(messages)).await.unwrap()
    }
}

pub(crate) fn order(number: u32) -> String {
    format!("{{\"idempotencykey\":\"order-{number}\"}}")
}

/// The late one of two workers gets a success, but nothing was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn f2_a_delete_that_succeeded_may_have_deleted_nothing() {
    let queue = Server::fake().await.queue("").await;
    queue.send([order(1)]).await;
    let engine = Engine::new();
    let options = queue.options().visibility(Duration::from_secs(60));
    let late = join(&options.clone().receivers(1).wait(Duration::from_secs(5))).await;
    let held = late.take_without_outage(1).await;
    assert!(engine.process(&held).await[0].is_processed());
    // It polls no more from here on, so that the rival gets the message.
    late.source.stop();
    eventually("no poll of its own", async || queue.server.as_fake().receiving() == 0).await;
    queue.server.as_fake().advance(Duration::from_secs(60));
    let rival = join(&options).await;
    let again = rival.take_without_outage(1).await;
    assert_eq!(late.try_acknowledge(held).await, [Settled::Settled], "SQS says so");
    assert_eq!(queue.counts().await, [0, 1, 0]);
    assert!(engine.process(&again).await[0].is_skipped(), "it comes back as a duplicate");
    assert_eq!(rival.try_acknowledge(again).await, [Settled::Settled]);
    queue.until_counts([0, 0, 0]).await;
}

/// A FIFO queue says that the receipt has expired; on both the source knows it when it has the message again itself.
#[tokio::test(flavor = "multi_thread")]
async fn f2_a_late_delete_is_stale() {
    for ending in ["", ".fifo"] {
        let queue = Server::fake().await.queue(ending).await;
        queue.send([order(1)]).await;
        let member = join(&queue.options().visibility(Duration::from_secs(60))).await;
        let held = member.take_without_outage(1).await;
        queue.server.as_fake().advance(Duration::from_secs(60));
        let again = member.take_without_outage(1).await;
        assert_eq!(member.try_acknowledge(held).await, [Settled::Stale], "{ending}");
        assert_eq!(queue.server.as_fake().requests("DeleteMessageBatch"), 0, "{ending}: nothing is sent for it");
        assert_eq!(member.try_acknowledge(again).await, [Settled::Settled], "{ending}");
        queue.until_counts([0, 0, 0]).await;
    }
    let queue = Server::fake().await.queue(".fifo").await;
    queue.send([order(1)]).await;
    let member = join(&queue.options().visibility(Duration::from_secs(60))).await;
    let held = member.take_without_outage(1).await;
    queue.server.as_fake().hang_receives(true);
    queue.server.as_fake().advance(Duration::from_secs(60));
    assert_eq!(member.try_acknowledge(held).await, [Settled::Stale], "the queue says so");
    queue.until_counts([1, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f3_a_delete_that_fails_or_whose_answer_is_lost_is_sent_again() {
    let queue = Server::fake().await.queue("").await;
    queue.send([order(1), order(2)]).await;
    let member = join(&queue.options()).await;
    for (number, lost) in [(1, false), (2, true)] {
        let held = member.take_without_outage(1).await;
        let fake = queue.server.as_fake();
        let delete = "DeleteMessageBatch";
        if lost {
            fake.lose_answers(delete, 2)
        } else {
            fake.fail(delete, 2)
        };
        assert_eq!(member.try_acknowledge(held).await, [Settled::Settled], "{number}");
    }
    assert_eq!(queue.server.as_fake().requests("DeleteMessageBatch"), 6);
    assert_eq!(queue.counts().await, [0, 0, 0]);
}

/// In the end the outcome is unknown, the message comes back, and the handler does not run again.
#[tokio::test(flavor = "multi_thread")]
async fn f3_a_delete_that_never_succeeds_is_unknown_and_its_message_a_duplicate() {
    let queue = Server::fake().await.queue("").await;
    queue.send([order(1)]).await;
    let (engine, visibility) = (Engine::new(), Duration::from_secs(60));
    let member = join(&queue.options().visibility(visibility)).await;
    let held = member.take_without_outage(1).await;
    assert!(engine.process(&held).await[0].is_processed());
    queue.server.as_fake().fail("DeleteMessageBatch", u32::MAX);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Unknown]);
    queue.server.as_fake().fail("DeleteMessageBatch", 0);
    queue.server.as_fake().advance(visibility);
    let again = member.take_without_outage(1).await;
    assert!(engine.process(&again).await[0].is_skipped());
    assert_eq!(member.try_acknowledge(again).await, [Settled::Settled]);
}

#[tokio::test(flavor = "multi_thread")]
async fn f4_a_deleted_message_that_returns_is_a_duplicate() {
    let queue = Server::fake().await.queue("").await;
    queue.send((0..5).map(order)).await;
    let (engine, member) = (Engine::new(), join(&queue.options()).await);
    let held = member.take_without_outage(5).await;
    assert!(engine.process(&held).await.iter().all(Decision::is_processed));
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 5]);
    assert_eq!(queue.fake().resurrect(), 5);
    let again = member.take_without_outage(5).await;
    assert!(engine.process(&again).await.iter().all(Decision::is_skipped));
    assert_eq!(member.try_acknowledge(again).await, [Settled::Settled; 5]);
    queue.until_counts([0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_entries_that_fail_in_a_batch_that_succeeds_are_sent_again() {
    let queue = Server::fake().await.queue("").await;
    queue.send((0..25).map(order)).await;
    let member = join(&queue.options()).await;
    let held = member.take_without_outage(25).await;
    queue.fake().fail_entries(4);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 25]);
    assert_eq!(queue.counts().await, [0, 0, 0]);
    let requests = queue.server.as_fake().requests("DeleteMessageBatch");
    assert!((4..=7).contains(&requests), "ten in each, and what failed once more: {requests}");
}

/// Some of SQS's errors are called the sender's fault and pass all the same.
#[tokio::test(flavor = "multi_thread")]
async fn f5_entries_that_are_throttled_are_sent_again() {
    let queue = Server::fake().await.queue("").await;
    queue.send((0..5).map(order)).await;
    let member = join(&queue.options()).await;
    let held = member.take_without_outage(5).await;
    queue.fake().throttle_entries(3);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 5]);
    assert_eq!(queue.counts().await, [0, 0, 0]);
}

/// A long poll of a queue at its limit looks like one of an empty queue.
#[tokio::test(flavor = "multi_thread")]
async fn f9_a_queue_at_its_limit_of_messages_in_flight_is_reported() {
    let queue = Server::fake().await.queue_with("", QueueOptions { in_flight_max: 5, ..Default::default() }).await;
    queue.send((0..8).map(order)).await;
    let member = join(&queue.options()).await;
    let held = member.take_without_outage(5).await;
    match member.receive(10).await {
        Err(error @ SourceError::Unavailable { .. }) => {
            let text = std::error::Error::source(&error).unwrap().to_string();
            assert!(text.contains(&queue.name) && text.contains("3 messages wait; 5 are in flight"), "{text}");
        }
        other => panic!("instead of a report came {other:?}"),
    }
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled; 5]);
    let mut rest = Vec::new();
    while rest.len() < 3 {
        // Both receivers report.
        if let Ok(Received::Deliveries(deliveries)) = member.receive(3).await {
            rest.extend(payloads(&deliveries));
        }
    }
    assert_eq!(rest.len(), 3);
}

/// SQS says so to a short poll, and where it likes to.
#[tokio::test(flavor = "multi_thread")]
async fn f9_over_limit_is_waited_out() {
    let queue = Server::fake().await.queue("").await;
    let member = join(&queue.options().receivers(1)).await;
    queue.server.as_fake().refuse(Some("OverLimit"));
    let answer = member.receive(1).await;
    assert!(
        matches!(&answer, Err(SourceError::Unavailable { doing, .. }) if doing.contains("too many messages in flight")),
        "{answer:?}"
    );
    queue.server.as_fake().refuse(None);
    queue.send([order(1)]).await;
    let held = loop {
        if let Ok(Received::Deliveries(held)) = member.receive(1).await {
            break held;
        }
    };
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled]);
}

/// A client that may send there need not have the right to read attributes.
#[tokio::test(flavor = "multi_thread")]
async fn a_further_queue_that_does_not_exist_is_refused_on_both_servers() {
    for server in [Server::elastic(), Server::fake().await] {
        let (queue, dead) = (server.queue("").await, server.queue("").await);
        join(&queue.options().require_queue(&dead.url)).await.close().await;
        let text = refusal(&queue.options().require_queue(format!("{}-other", dead.url))).await;
        assert!(text.contains(&format!("{}-other", dead.name)) && text.contains("does not exist"), "{text}");
    }
}

async fn refusal(options: &SqsOptions) -> String {
    match attach(options).await {
        Err(error @ SourceError::Refused { .. }) => error.to_string(),
        other => panic!("instead of a refusal came {:?}", other),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_queue_is_refused_and_not_created_on_both_servers() {
    for server in [Server::elastic(), Server::fake().await] {
        let queue = server.queue("").await;
        let url = format!("{}-other", queue.url);
        for _ in 0..2 {
            let text = refusal(&SqsOptions::new(queue.client().clone(), &url)).await;
            assert!(text.contains(&format!("{}-other", queue.name)) && text.contains("does not exist"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_and_credentials_that_are_missing_are_refused_with_the_cure() {
    let queue = Server::fake().await.queue("").await;
    for (code, words) in [
        ("AccessDenied", "Grant sqs:ReceiveMessage"),
        ("AccessDeniedException", "Grant sqs:ReceiveMessage"),
        ("InvalidClientTokenId", "Check the credentials"),
        ("SignatureDoesNotMatch", "Check the credentials"),
        ("ExpiredToken", "Check the credentials"),
    ] {
        queue.server.as_fake().refuse(Some(code));
        let text = refusal(&queue.options()).await;
        assert!(text.contains(words) && text.contains(code) && text.contains(&queue.name), "{text}");
    }
    queue.server.as_fake().refuse(None);
    let config = || Config::builder().behavior_version(BehaviorVersion::latest()).endpoint_url(&queue.url);
    let nobody = Client::from_conf(config().region(Region::new("r")).build());
    let text = refusal(&SqsOptions::new(nobody, &queue.url)).await;
    assert!(text.contains("no credentials"), "{text}");
    // F20: it was taken for an outage, and waited out.
    let credentials = Credentials::new("test", "test", None, None, "test");
    let nowhere = Client::from_conf(config().credentials_provider(credentials).build());
    let text = refusal(&SqsOptions::new(nowhere, &queue.url)).await;
    assert!(text.contains("no region") && text.contains("AWS_REGION"), "{text}");
}

/// It may pass, so the worker waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_is_unavailable() {
    let url = "http://127.0.0.1:1/000000000000/orders";
    let source = SqsOptions::new(client("http://127.0.0.1:1"), url).build().unwrap();
    let answer = within("attaching", source.attach()).await;
    assert!(matches!(answer, Err(SourceError::Unavailable { .. })), "{answer:?}");
    within("closing", source.close(PATIENCE)).await;
}

/// Rights that are taken away while it runs need a person; an outage does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_while_it_runs_ends_receiving_and_an_outage_does_not() {
    let queue = Server::fake().await.queue("").await;
    let member = join(&queue.options()).await;
    queue.server.as_fake().fail("ReceiveMessage", 2);
    let answer = member.receive(1).await;
    assert!(matches!(answer, Err(SourceError::Unavailable { .. })), "{answer:?}");
    queue.send([order(1)]).await;
    let held = loop {
        if let Ok(Received::Deliveries(held)) = member.receive(1).await {
            break held;
        }
    };
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled]);
    // Both receivers may report it.
    let mut reported = false;
    queue.server.as_fake().refuse(Some("AccessDenied"));
    let text = loop {
        match member.receive(1).await {
            Err(SourceError::Unavailable { source, .. }) => {
                assert!(member.source.unreachable_for().is_some());
                reported |= source.to_string().contains("AccessDenied");
            }
            Err(error @ SourceError::Refused { .. }) => break error.to_string(),
            other => panic!("instead of a refusal came {other:?}"),
        }
    };
    assert!(reported, "F19: for half a minute it counts as an outage, and says what it is");
    assert!(text.contains("AccessDenied") && text.contains("Grant sqs:ReceiveMessage"), "{text}");
}

/// F19: a policy that is changed, or rights that are not known everywhere yet, end no worker.
#[tokio::test(flavor = "multi_thread")]
async fn f19_a_denied_receive_is_waited_out() {
    let queue = Server::fake().await.queue("").await;
    let member = join(&queue.options()).await;
    queue.server.as_fake().refuse(Some("AccessDenied"));
    let answer = member.receive(1).await;
    assert!(matches!(answer, Err(SourceError::Unavailable { .. })), "{answer:?}");
    queue.server.as_fake().refuse(None);
    queue.send([order(1)]).await;
    let held = loop {
        match member.receive(1).await {
            Ok(Received::Deliveries(held)) => break held,
            Err(SourceError::Unavailable { .. }) => {}
            other => panic!("instead of a message came {other:?}"),
        }
    };
    assert_eq!(member.source.unreachable_for(), None);
    assert_eq!(member.try_acknowledge(held).await, [Settled::Settled]);
}
