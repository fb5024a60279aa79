//! Settlements on their way to SQS: batches of ten, every entry's answer read, and transient errors tried again.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt, stream};
use idem_core::{config::RetryPolicy, source::Settled};
use tokio::time::Instant;

use crate::{
    queue::{AT_ONCE, Answer, Queue},
    state::{Item, Shared},
};

/// How many requests are under way at once.
pub(crate) const REQUESTS: usize = 8;

/// How long an entry that fails is tried again. A handled message is recorded, and comes back as a duplicate at worst.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends settlements to SQS, and returns the result of each delivery by its number.
pub(crate) async fn send(queue: &Queue, items: &[Item]) -> HashMap<u64, Settled> {
    let batches = items.chunk_by(|one, next| one.change == next.change).flat_map(|run| run.chunks(AT_ONCE));
    // A FIFO queue gets one request after the other. The messages of a group that are visible again are then always
    // its beginning (F6).
    let at_once = if queue.fifo { 1 } else { REQUESTS };
    let requests: Vec<_> = batches.map(|batch| until_answered(queue, batch)).collect();
    let answers: Vec<_> = stream::iter(requests).buffered(at_once).collect().await;
    answers.into_iter().flatten().collect()
}

async fn until_answered(queue: &Queue, batch: &[Item]) -> Vec<(u64, Settled)> {
    let until = Instant::now() + PATIENCE;
    let retry = RetryPolicy::default().max(Duration::from_secs(2));
    let (mut open, mut answered, mut tries) = (batch.iter().collect::<Vec<_>>(), Vec::new(), 0);
    while let Some(first) = open.first() {
        let receipts: Vec<&str> = open.iter().map(|item| &*item.receipt).collect();
        let answers = queue.change(&receipts, first.change).await;
        let mut again = Vec::new();
        for (item, answer) in open.into_iter().zip(answers) {
            match answer {
                Answer::Done => answered.push((item.number, Settled::Settled)),
                // An earlier try whose answer got lost may be why it is gone.
                Answer::Gone if tries > 0 => answered.push((item.number, Settled::Unknown)),
                Answer::Gone => answered.push((item.number, Settled::Stale)),
                Answer::Refused => answered.push((item.number, Settled::Unknown)),
                Answer::Again => again.push(item),
            }
        }
        open = again;
        tries += 1;
        let wait = retry.backoff(tries, fastrand::f64());
        if Instant::now() + wait >= until {
            answered.extend(open.drain(..).map(|item| (item.number, Settled::Unknown)));
        }
        if !open.is_empty() {
            tokio::time::sleep(wait).await;
        }
    }
    answered
}

/// Gives back everything in hand.
pub(crate) async fn give_back(shared: &Shared, queue: &Queue) {
    let items = shared.all_to_release();
    drop(shared.extending.lock().await);
    let answers = send(queue, &items).await;
    let failed = answers.values().filter(|answer| **answer != Settled::Settled).count();
    if failed > 0 {
        tracing::warn!(
            queue = queue.name,
            failed,
            "messages could not be given back; they return when their visibility passes"
        );
    }
}
