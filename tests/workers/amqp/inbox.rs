//! Workers behind an inbox.

use lapin::types::AMQPValue;

use super::{
    fixture::{Database, Fixture, count, quorum},
    shared_inbox::{self, Stage},
    worker::Worker,
};

impl Stage for Fixture {
    fn database(&self) -> &Database {
        self
    }

    fn start(&self, more: &[&str]) -> Worker {
        Fixture::start(self, more)
    }

    async fn publish(&self, texts: Vec<String>) {
        self.queue.send_texts(&texts).await;
    }

    async fn settled(&self) {
        self.until_settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n8_behind_an_inbox_is_as_at_the_broker() {
    let (direct, inbox) = (Fixture::new("direct").await, Fixture::new("inbox").await);
    shared_inbox::n8_behind_an_inbox_is_as_at_the_broker(&direct, &inbox).await;
    direct.remove().await;
    inbox.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n16_killed_and_frozen_workers_leave_an_exact_ledger() {
    let fixture = Fixture::new("inboxkill").await;
    shared_inbox::n16_killed_and_frozen_workers_leave_an_exact_ledger(&fixture).await;
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n1_receiving_and_processing_are_two_processes() {
    let fixture = Fixture::new("inboxtwo").await;
    shared_inbox::n1_receiving_and_processing_are_two_processes(&fixture).await;
    fixture.remove().await;
}

/// G4: a handler takes twice the consumer_timeout of 3 s, and with `./test --all` so long that the broker, which looks once a minute, would
/// take a message back. A worker at the broker is refused. The broker delivers nothing again.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_handler_is_slower_than_the_consumer_timeout() {
    let timeout = ("x-consumer-timeout", AMQPValue::LongInt(3_000));
    let fixture = Fixture::with("inboxslow", &[quorum(), timeout]).await;
    let limit = ["--consumer-timeout", "3s"];
    let direct = fixture.start(&[&limit[..], &["--handler-deadline", "10s"]].concat()).ended().await;
    assert_eq!(direct.status.code(), Some(2), "{}", direct.log);
    shared_inbox::f1_g4_a_handler_is_slower_than_the_broker_allows(&fixture, count(60, 6), &limit).await;
    let redelivered = &fixture.queue.described().await["message_stats"]["redeliver"];
    assert!(redelivered.is_null() || redelivered == 0, "the broker delivered again: {redelivered}");
    fixture.remove().await;
}
