//! Workers behind an inbox.

use super::{
    fixture::{Database, Fixture},
    shared_inbox::{self, Stage},
    worker::Worker,
};

impl Stage for Fixture {
    fn database(&self) -> &Database {
        self
    }

    fn start(&self, more: &[&str]) -> Worker {
        Fixture::start(self, &[&["--reset", "earliest"], more].concat())
    }

    async fn publish(&self, texts: Vec<String>) {
        for text in texts {
            self.topic.send_text(text.get(..30).unwrap_or(&text), &text);
        }
        self.topic.flush().await;
    }

    async fn settled(&self) {
        self.until_settled().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n8_behind_an_inbox_is_as_at_the_broker() {
    let (direct, inbox) = (Fixture::new("direct", 3).await, Fixture::new("inbox", 3).await);
    shared_inbox::n8_behind_an_inbox_is_as_at_the_broker(&direct, &inbox).await;
    direct.remove().await;
    inbox.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n16_killed_and_frozen_workers_leave_an_exact_ledger() {
    let fixture = Fixture::new("inboxkill", 4).await;
    shared_inbox::n16_killed_and_frozen_workers_leave_an_exact_ledger(&fixture).await;
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n1_receiving_and_processing_are_two_processes() {
    let fixture = Fixture::new("inboxtwo", 2).await;
    shared_inbox::n1_receiving_and_processing_are_two_processes(&fixture).await;
    fixture.remove().await;
}
