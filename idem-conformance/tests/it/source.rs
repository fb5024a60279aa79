//! The source suite, run for the sources of the test kit itself in every mode that the broker has.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use idem_conformance::source::{Features, SourceUnderTest, Unsupported};
use idem_core::{Message, SourceError};
use idem_testkit::memory::{Broker, Faults, MemorySource, Order, Queue, QueueOptions, RemoteSource, Revoke, Server};

/// A source in this process.
struct Local {
    broker: Broker,
    queue: Queue,
    features: Features,
}

/// A source at the other end of a socket.
struct Remote {
    local: Local,
    server: Server,
}

/// A broker that carries text only, and a fixture that can make it do nothing: shows the suite's other side.
struct Bare(Local);

fn local(options: QueueOptions) -> Local {
    let broker = Broker::new();
    let (positions, marks) = (options.positions, options.marks_redelivery);
    let (ordered, delays) = (options.order != Order::None, options.delayed_release);
    let queue = broker.create("orders", options).unwrap();
    broker.create("another", QueueOptions::default()).unwrap();
    let features = Features::default()
        .ordered(ordered)
        .individual_settle(!positions)
        .delayed_release(delays && !positions)
        .revokes(true)
        .disconnects(true)
        .hangs(true)
        .expires(!positions)
        .shares_messages(!positions)
        .counts_attempts(marks && !positions);
    Local { broker, queue, features }
}

fn socket() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("idem-conformance-{}-{}.sock", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

async fn remote(options: QueueOptions) -> Remote {
    let local = local(options);
    let server = local.broker.serve(socket()).await.unwrap();
    Remote { local, server }
}

impl Local {
    fn misbehave(&self, hangs: bool) {
        self.queue.misbehave(Faults { hangs, ..Faults::default() });
    }
}

macro_rules! controls {
    ($($queue:tt)*) => {
        async fn unsettled(&self, expected: u64) -> u64 {
            // A connection that was cut is noticed by the broker a moment later.
            let settled = self.$($queue)*.until(|stats| stats.unsettled() == expected);
            let _ = tokio::time::timeout(std::time::Duration::from_secs(5), settled).await;
            self.$($queue)*.stats().unsettled()
        }
        async fn revoke(&self, how: Revoke) -> Result<(), Unsupported> {
            self.$($queue)*.revoke(how);
            Ok(())
        }
        async fn disconnect(&self) -> Result<(), Unsupported> {
            self.$($queue)*.disconnect();
            Ok(())
        }
        async fn expire(&self) -> Result<(), Unsupported> {
            self.$($queue)*.expire_leases();
            if self.features().expires { Ok(()) } else { Err(Unsupported) }
        }
    };
}

impl SourceUnderTest for Local {
    type Source = MemorySource;

    fn features(&self) -> Features {
        self.features
    }
    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        self.queue.publish(message).map(|_| ())
    }
    async fn source(&self) -> MemorySource {
        self.queue.source()
    }
    async fn source_of_another_queue(&self) -> MemorySource {
        self.broker.source("another")
    }
    async fn source_of_an_unknown_queue(&self, name: &str) -> MemorySource {
        self.broker.source(name)
    }
    async fn crash(&self, source: MemorySource) {
        drop(source);
    }
    async fn hang(&self) -> Result<(), Unsupported> {
        self.misbehave(true);
        Ok(())
    }
    async fn answer_again(&self) -> Result<(), Unsupported> {
        self.misbehave(false);
        Ok(())
    }
    controls!(queue);
}

impl SourceUnderTest for Remote {
    type Source = RemoteSource;

    fn features(&self) -> Features {
        self.local.features
    }
    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        self.local.queue.publish(message).map(|_| ())
    }
    async fn source(&self) -> RemoteSource {
        RemoteSource::connect(self.server.path(), "orders").await
    }
    async fn source_of_another_queue(&self) -> RemoteSource {
        RemoteSource::connect(self.server.path(), "another").await
    }
    async fn source_of_an_unknown_queue(&self, name: &str) -> RemoteSource {
        RemoteSource::connect(self.server.path(), name).await
    }
    async fn crash(&self, source: RemoteSource) {
        let before = self.local.queue.stats().consumers;
        drop(source);
        // Waits until the broker has noticed, cut off or not.
        self.local.queue.until(|stats| stats.consumers < before.max(1)).await;
    }
    async fn hang(&self) -> Result<(), Unsupported> {
        self.local.misbehave(true);
        Ok(())
    }
    async fn answer_again(&self) -> Result<(), Unsupported> {
        self.local.misbehave(false);
        Ok(())
    }
    controls!(local.queue);
}

impl SourceUnderTest for Bare {
    type Source = MemorySource;

    fn features(&self) -> Features {
        Features::default()
            .delayed_release(false)
            .repeated_headers(false)
            .null_headers(false)
            .binary_headers(false)
            .tombstones(false)
            .empty_payloads(false)
            .binary_payloads(false)
            .payloads_of_one_mebibyte(false)
            .record_keys(false)
            .message_ids(false)
            .counts_attempts(false)
    }
    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        let payload = message.payload().map(|payload| std::str::from_utf8(payload));
        let text = matches!(payload, Some(Ok(text)) if !text.is_empty() && text.len() < 256 << 10);
        let header = |(name, value): (&str, Option<&[u8]>)| {
            message.headers().all(name).count() == 1 && value.is_some_and(|value| std::str::from_utf8(value).is_ok())
        };
        if text && message.headers().iter().all(header) && message.record_key().is_none() && message.id().is_none() {
            return self.0.publish(message).await;
        }
        Err(SourceError::Refused { problem: "it is no plain text".to_owned(), cure: "Send text".to_owned() })
    }
    async fn source(&self) -> MemorySource {
        self.0.source().await
    }
    async fn source_of_another_queue(&self) -> MemorySource {
        self.0.source_of_another_queue().await
    }
    async fn source_of_an_unknown_queue(&self, name: &str) -> MemorySource {
        self.0.source_of_an_unknown_queue(name).await
    }
    async fn crash(&self, source: MemorySource) {
        self.0.crash(source).await;
    }
    async fn unsettled(&self, expected: u64) -> u64 {
        self.0.unsettled(expected).await
    }
}

macro_rules! suites {
    ($($mode:ident => $fixture:ty, $fresh:expr;)*) => {$(
        mod $mode {
            use super::*;

            async fn fresh() -> $fixture {
                $fresh
            }

            idem_conformance::source_conformance!(fresh);

            #[allow(dead_code, reason = "one of them is asked")]
            pub(super) const ALL: &[&str] = CASES;
        }
    )*};
}

suites! {
    unordered => Local, local(QueueOptions::default());
    unordered_with_a_lease => Local, local(QueueOptions::default().lease(std::time::Duration::from_secs(300)));
    by_key => Local, local(QueueOptions::default().order(Order::ByKey));
    by_key_one_at_a_time => Local, local(QueueOptions::default().order(Order::ByKeyOneAtATime));
    by_position => Local, local(QueueOptions::default().order(Order::ByKey).positions(true));
    without_marks_and_delays => Local, local(QueueOptions::default().marks_redelivery(false).delayed_release(false));
    bare => Bare, Bare(local(QueueOptions::default().marks_redelivery(false).delayed_release(false)));
    on_a_socket => Remote, remote(QueueOptions::default()).await;
    on_a_socket_by_key => Remote, remote(QueueOptions::default().order(Order::ByKey)).await;
}

#[test]
fn no_case_is_forgotten_in_the_macro() {
    let files = [
        include_str!("../../src/source/content.rs"),
        include_str!("../../src/source/deliver.rs"),
        include_str!("../../src/source/lifecycle.rs"),
        include_str!("../../src/source/order.rs"),
        include_str!("../../src/source/revoke.rs"),
        include_str!("../../src/source/settle.rs"),
    ];
    let written = files.iter().flat_map(|file| file.lines()).filter_map(|line| {
        let name = line.strip_prefix("pub async fn ")?;
        Some(name.split(['<', '(']).next().unwrap_or(name))
    });
    let mut written: Vec<_> = written.collect();
    let mut listed = unordered::ALL.to_vec();
    written.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, written);
    assert!(listed.len() >= 50, "{} cases", listed.len());
}
