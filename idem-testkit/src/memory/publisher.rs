//! [`MemoryPublisher`]: dead letters go to a queue.

use async_trait::async_trait;
use idem_core::{Bytes, DeadLetter, Headers, Message, Publisher, SourceError, dead_letter};

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

/// The message as it is published: its own parts, and why it was set aside as headers. A header of the message that has
/// one of their names gives way, because a repeated key would be malformed to whoever reads it next.
pub(super) fn published(dead_letter: &DeadLetter) -> Message {
    let facts = dead_letter::headers(dead_letter);
    let mut headers = Headers::default();
    for (name, value) in dead_letter.message.headers().iter() {
        if facts.iter().all(|(fact, _)| *fact != name) {
            headers.push(name, value.map(Bytes::copy_from_slice));
        }
    }
    for (name, value) in facts {
        headers.push(name, Some(value.into()));
    }
    dead_letter.message.clone().with_headers(headers)
}
