//! Everything at once.

use super::{
    flood::{Flooded, Input, flood},
    stage::{Database, Stage, count},
    worker::Worker,
};

impl Flooded for Stage {
    fn database(&self) -> &Database {
        self
    }

    fn start(&self) -> Worker {
        self.start(&["--reset", "earliest", "--attempts", "100", "--batch", "20", "--in-flight", "300"])
    }

    async fn put(&self, inputs: Vec<Input>) {
        for Input { group, text } in inputs {
            self.topic.send_text(&group, &text);
        }
        self.topic.flush().await;
    }

    async fn create_again(&mut self) {
        self.topic = self.topic.create_again().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j26_each_input_ends_in_the_ledger_or_whole_in_the_dead_letters() {
    let mut stage = Stage::new("flood", 3).await;
    flood(&mut stage, count(20_000, 500)).await;
    stage.remove().await;
}
