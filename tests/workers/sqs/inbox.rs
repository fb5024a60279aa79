//! Workers behind an inbox.

use super::{
    fixture::{Database, Fixture, count, until},
    queue::Server,
    shared_inbox::{self, Stage},
    worker::Worker,
};

impl Stage for Fixture {
    fn database(&self) -> &Database {
        self
    }

    fn start(&self, more: &[&str]) -> Worker {
        let mut arguments = self.arguments(&[]);
        for flag in ["--handler-deadline", "--visibility"] {
            // It may be given only once.
            if let Some(at) = arguments.iter().position(|usual| usual == flag && more.contains(&flag)) {
                arguments.drain(at..at + 2);
            }
        }
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        self.start_with(&arguments, &[])
    }

    async fn publish(&self, texts: Vec<String>) {
        self.queue.send_texts(texts.into_iter().map(|text| (text, "1".to_owned())).collect()).await;
    }

    async fn settled(&self) {
        until("an empty queue", async || self.queue.counts().await == [0, 0, 0]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n8_behind_an_inbox_is_as_at_the_broker() {
    let (direct, inbox) = (Fixture::new("direct", "").await, Fixture::new("inbox", "").await);
    shared_inbox::n8_behind_an_inbox_is_as_at_the_broker(&direct, &inbox).await;
    direct.remove().await;
    inbox.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n16_killed_and_frozen_workers_leave_an_exact_ledger() {
    let fixture = Fixture::new("inboxkill", "").await;
    shared_inbox::n16_killed_and_frozen_workers_leave_an_exact_ledger(&fixture).await;
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n1_receiving_and_processing_are_two_processes() {
    let fixture = Fixture::new("inboxtwo", "").await;
    shared_inbox::n1_receiving_and_processing_are_two_processes(&fixture).await;
    fixture.remove().await;
}

/// F1: a handler takes twice the visibility: 6 s, and with `./test --all` a minute. Nothing is extended.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_handler_is_slower_than_the_visibility() {
    let server = Server::strict().await;
    let fixture = Fixture::on(&server, "inboxslow", "").await;
    let seconds = count(60, 6);
    let visibility = ["--visibility", &format!("{}s", seconds / 2)];
    shared_inbox::f1_g4_a_handler_is_slower_than_the_broker_allows(&fixture, seconds, &visibility).await;
    let Server::Strict(sqs) = &server else { unreachable!("it is strict") };
    assert_eq!((sqs.requests("ChangeMessageVisibilityBatch"), sqs.requests("ChangeMessageVisibility")), (0, 0));
    fixture.remove().await;
}
