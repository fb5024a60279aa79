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
        self.start(&["--attempts", "100", "--batch", "20"])
    }

    async fn put(&self, inputs: Vec<Input>) {
        self.queue.send_texts(inputs.into_iter().map(|Input { group, text }| (text, group)).collect()).await;
    }

    async fn create_again(&mut self) {
        self.queue = self.queue.create_again().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j26_each_input_ends_in_the_ledger_or_whole_in_the_dead_letters() {
    let mut stage = Stage::new("flood", "").await;
    flood(&mut stage, count(20_000, 500)).await;
    stage.remove().await;
}
