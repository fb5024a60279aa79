//! [`MemoryPublisher`]: dead letters go to a queue.

use async_trait::async_trait;
use idem_core::{
    Message, SourceError,
    dead_letter::{self, DeadLetter, Publisher},
};

use super::broker::Queue;

/// A [`Publisher`] to a queue of a broker in this process.
#[derive(Debug, Clone)]
pub struct MemoryPublisher(Queue);

impl MemoryPublisher {
    pub(super) fn new(queue: Queue) -> Self {
        Self(queue)
    }
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        self.0.publish(published(dead_letter)).map(|_| ())
    }
}

/// The message as it is published: its own parts, and why it was set aside as headers.
pub(super) fn published(dead_letter: &DeadLetter) -> Message {
    dead_letter.message.clone().with_headers(dead_letter::headers(dead_letter))
}
