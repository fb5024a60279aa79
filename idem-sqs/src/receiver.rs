//! A receiver: long polls, one after the other, while there is room for what they bring.

use std::{sync::Arc, time::Duration};

use idem_core::{RetryPolicy, SourceError};

use crate::{envelope::Envelope, message, queue::Queue, state::Shared};

/// After so many polls that brought nothing the queue is asked whether that is right (F9).
const LOOK_AFTER: u32 = 3;

/// Runs until it is stopped. A receive under way is never dropped: what SQS has handed over by then would be kept from
/// others until its visibility passes.
pub(crate) async fn run(shared: Arc<Shared>, queue: Arc<Queue>, envelope: Option<Envelope>) {
    let (mut failures, mut empty) = (0, 0);
    let mut attempt = attempt_id();
    while shared.room().await {
        let changes = shared.changes();
        match queue.receive(&attempt).await {
            Ok(messages) => {
                failures = 0;
                attempt = attempt_id();
                empty = if messages.is_empty() { empty + 1 } else { 0 };
                let incoming =
                    messages.into_iter().filter_map(|received| message::incoming(&queue, envelope, received));
                shared.deliver(changes, incoming.collect());
            }
            // It is the same attempt once more, because its messages may be on their way: their groups would wait until
            // their visibility has passed.
            Err(error) => {
                failures += 1;
                shared.fail(error);
                let wait = RetryPolicy { max: Duration::from_secs(10), ..RetryPolicy::default() }
                    .backoff(failures, fastrand::f64());
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = shared.stopped.cancelled() => {}
                }
            }
        }
        if empty == LOOK_AFTER {
            empty = 0;
            if let Some(error) = withheld(&queue).await {
                shared.fail(error);
            }
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
