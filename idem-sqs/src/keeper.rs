//! The keeper: keeps every message in hand from other workers until it is settled (F1, F7).

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::{
    queue::{AT_ONCE, Answer, Change, Queue},
    settle::{self, REQUESTS},
    state::Shared,
};

/// Runs until it is aborted. `visibility` is in seconds.
pub(crate) async fn run(shared: Arc<Shared>, queue: Arc<Queue>, visibility: i32) {
    loop {
        shared.until_due().await;
        let _extending = shared.extending.lock().await;
        let (due, sent_at) = (shared.due(), Instant::now());
        let requests: Vec<_> = due.chunks(AT_ONCE).map(|batch| extend(&queue, batch, visibility)).collect();
        let mut answers = stream::iter(requests).buffer_unordered(REQUESTS);
        while let Some(answered) = answers.next().await {
            shared.extended(sent_at, answered);
        }
        // A message that is not given back in time returns when its visibility passes.
        settle::send(&queue, &shared.given_up()).await;
    }
}

async fn extend(queue: &Queue, batch: &[(u64, String)], visibility: i32) -> Vec<(u64, Answer)> {
    let receipts: Vec<&str> = batch.iter().map(|(_, receipt)| &**receipt).collect();
    let answers = queue.change(&receipts, Change::Visible(visibility)).await;
    batch.iter().map(|(number, _)| *number).zip(answers).collect()
}
