//! A receiver: long polls, one after the other, while a worker wants their messages.

use std::{sync::Arc, time::Duration};

use aws_sdk_sqs::types::Message;
use idem_core::{SourceError, config::RetryPolicy};

use crate::{envelope::Envelope, message, queue::Queue, state::Shared};

/// After this many empty polls the queue is asked whether that is right (F9).
const LOOK_AFTER: u32 = 3;

/// Runs until it is stopped. A receive under way is never dropped: messages that SQS has handed over by then would be hidden
/// from others until their visibility passes.
pub(crate) async fn run(shared: Arc<Shared>, queue: Arc<Queue>, envelope: Option<Envelope>) {
    let mut empty = 0;
    while let Some(count) = shared.room().await {
        let (changes, received) = receive(&shared, &queue, count).await;
        empty = if received.is_empty() { empty + 1 } else { 0 };
        let incoming = received.into_iter().filter_map(|received| message::incoming(&queue, envelope, received));
        shared.deliver(changes, incoming.collect());
        shared.answered(count);
        if empty == LOOK_AFTER {
            empty = 0;
            if let Some(error) = withheld(&queue).await {
                shared.fail(error);
            }
        }
    }
}

/// One receive, tried until it succeeds or the source is stopped. It is the same attempt each time, because its messages may
/// be on their way: their groups would wait until their visibility has passed.
async fn receive(shared: &Shared, queue: &Queue, count: usize) -> (u64, Vec<Message>) {
    let (attempt, mut failures) = (attempt_id(), 0);
    let retry = RetryPolicy::default().max(Duration::from_secs(10));
    loop {
        let changes = shared.changes();
        match queue.receive(&attempt, count).await {
            Ok(messages) => {
                shared.receive_answered();
                return (changes, messages);
            }
            Err(error) => {
                failures += 1;
                shared.receive_failed(error);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry.backoff(failures, fastrand::f64())) => {}
            () = shared.stopped.cancelled() => return (changes, Vec::new()),
        }
    }
}

fn attempt_id() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

/// A standard queue at its limit of messages in flight answers a long poll as an empty one does. Groups of a FIFO queue
/// withhold messages as they should.
async fn withheld(queue: &Queue) -> Option<SourceError> {
    let counts = queue.counts().await.filter(|counts| !queue.fifo && counts.waiting > 0 && counts.in_flight > 0)?;
    let text = format!(
        "queue {:?} hands over nothing, although {} messages wait; {} are in flight, which may be its limit",
        queue.name, counts.waiting, counts.in_flight
    );
    Some(SourceError::Unavailable { doing: "receiving", source: text.into() })
}
