//! The broker on a socket: killed consumers, broken connections, and brokers that come back.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use idem_core::{
    ConsumerName, ErrorClass, Message, Source, SourceError,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Publisher, Reason},
    source::{Received, Settled},
    store::ScopeId,
};
use idem_testkit::memory::{Broker, Faults, QueueOptions, Rate, RemoteBroker, RemotePublisher, RemoteSource, Revoke};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::memory::{acknowledge, take};

fn socket() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("idem-testkit-{}-{}.sock", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|number| Message::new(number.to_string())).collect()
}

#[tokio::test]
async fn a_producer_and_inspector_does_all_that_the_broker_can() {
    let broker = Broker::new();
    let server = broker.serve(socket()).await.unwrap();
    let client = RemoteBroker::new(server.path());
    client.create("orders", QueueOptions::default()).await.unwrap();
    assert!(client.create("orders", QueueOptions::default().seed(1)).await.is_err());
    let origins = client.publish("orders", &messages(3)).await.unwrap();
    assert_eq!(origins[2].as_str(), "orders/3");
    let source = RemoteSource::connect(server.path(), "orders").await;
    source.attach().await.unwrap();
    let deliveries = take(&source, 3).await;
    client.expire_leases("orders").await.unwrap();
    assert_eq!(acknowledge(&source, deliveries).await, [Settled::Stale; 3]);
    client.misbehave("orders", Faults { acks_lost: Rate::Always, ..Faults::default() }).await.unwrap();
    let deliveries = take(&source, 3).await;
    acknowledge(&source, deliveries).await;
    assert_eq!(client.stats("orders").await.unwrap().ready, 3);
    client.misbehave("orders", Faults::default()).await.unwrap();
    client.revoke("orders", Revoke::Lost).await.unwrap();
    assert!(matches!(source.receive(1).await, Ok(Received::Revoked(_))));
    let deliveries = take(&source, 3).await;
    let (drained, settled) = tokio::join!(client.drained("orders"), acknowledge(&source, deliveries));
    drained.unwrap();
    assert_eq!(settled, [Settled::Settled; 3]);
    let histories = client.histories("orders").await.unwrap();
    assert!(histories.iter().all(|(_, history)| history.deliveries == 3 && history.acknowledged == 1));
    client.disconnect("orders").await.unwrap();
    assert!(matches!(source.receive(1).await, Ok(Received::Revoked(_))));
    for error in [client.stats("none").await.map(|_| ()), client.publish("none", &messages(1)).await.map(|_| ())] {
        assert!(matches!(error, Err(SourceError::Refused { .. })));
    }
}

#[tokio::test]
async fn what_a_source_can_do_is_known_when_it_connects() {
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default().delayed_release(false)).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    let source = RemoteSource::connect(server.path(), "orders").await;
    // Over the socket nothing is given back while intake is closed.
    assert_eq!(source.capabilities(), queue.source().capabilities().pauses(false));
}

/// The child process of the next test, which takes what it can get and is killed with it in its hands. Without the
/// socket that its parent names it has nothing to do.
#[tokio::test]
async fn child_that_holds_messages() {
    let Ok(path) = std::env::var("IDEM_TESTKIT_SOCKET") else { return };
    let source = RemoteSource::connect(path, "orders").await;
    source.attach().await.unwrap();
    let first = take(&source, 2).await;
    acknowledge(&source, first).await;
    let _held = take(&source, 3).await;
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_consumer_gives_back_what_it_held() {
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    for message in messages(5) {
        queue.publish(message).unwrap();
    }
    for killed in 1..=2 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "remote::child_that_holds_messages", "--nocapture"])
            .env("IDEM_TESTKIT_SOCKET", server.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let held = if killed == 1 { 3 } else { 1 };
        queue.until(|stats| stats.acknowledged == 2 * killed && stats.in_flight == held).await;
        child.kill().unwrap();
        child.wait().unwrap();
        queue.until(|stats| stats.in_flight == 0 && stats.consumers == 0).await;
        assert_eq!(queue.stats().ready, held);
    }
    let source = RemoteSource::connect(server.path(), "orders").await;
    source.attach().await.unwrap();
    let last = take(&source, 10).await;
    assert!(last.iter().all(|delivery| delivery.redelivered && delivery.attempt == 3));
    acknowledge(&source, last).await;
    assert!(queue.is_drained());
}

#[tokio::test]
async fn a_source_outlives_its_broker_and_an_old_handle_means_nothing_to_the_new_one() {
    let path = socket();
    let source = RemoteSource::connect(&path, "orders").await;
    assert!(matches!(source.attach().await, Err(SourceError::Unavailable { .. })), "nobody is there yet");
    let broker = Broker::new();
    broker.create("orders", QueueOptions::default()).unwrap().publish(Message::new("old")).unwrap();
    let server = broker.serve(&path).await.unwrap();
    source.attach().await.unwrap();
    let held = take(&source, 1).await;
    drop((server, broker));
    let Ok(Received::Revoked(revocation)) = source.receive(1).await else { panic!("no revocation") };
    assert_eq!(revocation.assignments, [held[0].assignment]);
    assert!(matches!(source.receive(1).await, Err(SourceError::Unavailable { .. })), "nobody is there any more");
    // A new broker counts from the beginning: the same assignment, sequence and receipt, and another message.
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    queue.publish(Message::new("new")).unwrap();
    let _server = broker.serve(&path).await.unwrap();
    let new = take(&source, 1).await;
    assert_ne!(new[0].assignment, held[0].assignment);
    assert_eq!(acknowledge(&source, held).await, [Settled::Stale]);
    assert_eq!(queue.stats().in_flight, 1);
    assert_eq!(acknowledge(&source, new).await, [Settled::Settled]);
}

#[tokio::test]
async fn stopping_ends_a_source_that_looks_for_its_broker() {
    let path = socket();
    let broker = Broker::new();
    broker.create("orders", QueueOptions::default()).unwrap();
    let server = broker.serve(&path).await.unwrap();
    let source = RemoteSource::connect(&path, "orders").await;
    source.attach().await.unwrap();
    drop((server, broker));
    let _ = source.receive(1).await;
    let (received, ()) = tokio::join!(source.receive(1), async { source.stop() });
    assert!(matches!(received, Ok(Received::End)));
}

#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    let source = RemoteSource::connect(server.path(), "orders").await;
    source.attach().await.unwrap();
    for number in 0..20 {
        {
            let receive = source.receive(2);
            tokio::pin!(receive);
            assert!(futures_poll(receive.as_mut()).await.is_none());
        }
        queue.publish(Message::new(number.to_string())).unwrap();
        let deliveries = take(&source, 1).await;
        assert_eq!(deliveries[0].message.payload().unwrap(), &number.to_string());
        assert_eq!(deliveries[0].attempt, 1);
        acknowledge(&source, deliveries).await;
    }
    {
        let receive = source.receive(10);
        tokio::pin!(receive);
        assert!(futures_poll(receive.as_mut()).await.is_none());
    }
    for number in 0..3 {
        queue.publish(Message::new(number.to_string())).unwrap();
    }
    for _ in 0..3 {
        let deliveries = take(&source, 1).await;
        assert_eq!(deliveries.len(), 1, "no more than this call asked for");
        acknowledge(&source, deliveries).await;
    }
    assert!(queue.is_drained());
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut future).poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn a_dead_letter_is_published_over_the_socket() {
    let broker = Broker::new();
    let queue = broker.create("dead", QueueOptions::default()).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    let dead_letter = DeadLetter {
        consumer: ConsumerName::new("ledger").unwrap(),
        scope: ScopeId(1),
        message: Message::tombstone(),
        key: None,
        hash: None,
        reason: Reason::MissingKey,
        attempts: 0,
        error: "there is no key".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::MissingKey, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    };
    let publisher = RemotePublisher::new(server.path(), "dead");
    publisher.publish(&dead_letter).await.unwrap();
    assert_eq!(queue.unsettled()[0].headers().text("idem-reason"), Some("missing-key"));
    queue.misbehave(Faults { confirms_lost: Rate::Always, ..Faults::default() });
    assert!(publisher.publish(&dead_letter).await.is_err());
    assert!(RemotePublisher::new(server.path(), "none").publish(&dead_letter).await.is_err());
}

#[tokio::test]
async fn a_socket_file_left_behind_is_replaced_and_a_living_one_is_not() {
    let path = socket();
    let broker = Broker::new();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = broker.serve(&path).await.unwrap();
    assert!(broker.serve(&path).await.is_err());
    assert!(path.exists());
    drop(server);
    assert!(!path.exists());
}

#[tokio::test]
async fn nonsense_on_the_socket_costs_only_its_own_connection() {
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    for nonsense in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x04what", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = UnixStream::connect(server.path()).await.unwrap();
        stream.write_all(nonsense).await.unwrap();
        stream.shutdown().await.unwrap();
        // The broker hangs up; it may do so with a reset.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    let client = RemoteBroker::new(server.path());
    client.publish("orders", &messages(1)).await.unwrap();
    assert_eq!(queue.stats().ready, 1);
}

#[tokio::test]
async fn large_batches_arrive_in_frames_that_fit() {
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    let server = broker.serve(socket()).await.unwrap();
    let mut payload = vec![b'x'; 1 << 20];
    payload[0] = 0xff;
    for _ in 0..40 {
        queue.publish(Message::new(payload.clone())).unwrap();
    }
    let source = RemoteSource::connect(server.path(), "orders").await;
    source.attach().await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < 40 {
        taken.extend(take(&source, 100).await);
    }
    assert!(taken.iter().all(|delivery| delivery.message.payload().unwrap() == &payload));
    source.close(Duration::from_secs(10)).await;
    assert_eq!(queue.stats().ready, 40);
}
