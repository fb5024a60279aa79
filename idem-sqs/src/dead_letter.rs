//! [`SqsPublisher`]: dead letters go to a queue.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use aws_sdk_sqs::{Client, primitives::Blob, types::MessageAttributeValue as Value};
use idem_core::{ConfigError, DeadLetter, Publisher, SourceError, dead_letter, key::KEY_FIELD};

use crate::{
    config::{check_url, is_fifo},
    error::{classify, refused},
    fifo::hashed,
    queue::limited,
};

/// How long SQS may take to confirm a dead letter.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// How many attributes a message may have, and how large it may be with them.
const ATTRIBUTES_MAX: usize = 10;
const BYTES_MAX: usize = 1 << 20;

/// A [`Publisher`] to a queue, which must exist.
///
/// A dead letter carries the payload and, as attributes, the headers of [`dead_letter::headers`]: first why it was set
/// aside, then as many of the message's own, by name, as there is room for. SQS allows ten attributes, and text of some
/// characters only; others are replaced. On a FIFO queue it has the message's own group.
pub struct SqsPublisher {
    client: Client,
    queue_url: String,
}

impl SqsPublisher {
    /// A publisher to the queue with this URL.
    ///
    /// # Errors
    /// [`ConfigError`] where that is no URL of a queue.
    pub fn new(client: &Client, queue_url: impl Into<String>) -> Result<Self, ConfigError> {
        let queue_url = queue_url.into();
        check_url("dead_letter_queue_url", &queue_url)?;
        Ok(Self { client: limited(client, CONFIRMED_WITHIN), queue_url })
    }
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher").field("queue_url", &self.queue_url).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for SqsPublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        let payload = dead_letter.message.payload().map(|payload| std::str::from_utf8(payload));
        // SQS carries text, and not an empty one. What came from it does not fail here.
        let Some(Ok(body)) = payload.filter(|body| *body != Ok("")) else {
            let problem =
                format!("SQS cannot carry the payload of a dead letter from {}", dead_letter.message.origin());
            return Err(refused(
                problem,
                "It is kept in the table dead_letters; publish those of this source elsewhere",
            ));
        };
        let mut send = self.client.send_message().queue_url(&self.queue_url).message_body(body);
        for (name, value) in attributes(dead_letter, BYTES_MAX.saturating_sub(body.len())) {
            send = send.message_attributes(name, value);
        }
        if is_fifo(&self.queue_url) {
            send = send.message_group_id(group(dead_letter)).message_deduplication_id(deduplication_id(dead_letter));
        }
        match send.send().await {
            Ok(_) => Ok(()),
            Err(error) => Err(classify(&self.queue_url, "publishing a dead letter", error)),
        }
    }
}

/// Why it was set aside, and then the message's own headers, as far as they fit.
fn attributes(dead_letter: &DeadLetter, mut room: usize) -> Vec<(String, Value)> {
    let headers = dead_letter::headers(dead_letter);
    let (facts, own): (Vec<_>, Vec<_>) =
        headers.iter().partition(|(name, _)| name.starts_with("idem-") || *name == KEY_FIELD);
    let mut attributes: Vec<(String, Value)> = Vec::new();
    for (name, value) in facts.into_iter().chain(own) {
        let bytes = value.unwrap_or_default();
        let size = name.len() + bytes.len() + "String".len();
        // A name is there once, and an attribute is not empty.
        let repeated = attributes.iter().any(|(before, _)| before == name);
        if attributes.len() == ATTRIBUTES_MAX || bytes.is_empty() || size > room || repeated || !is_name(name) {
            continue;
        }
        if let Ok(value) = attribute(bytes) {
            room -= size;
            attributes.push((name.to_owned(), value));
        }
    }
    attributes
}

fn attribute(bytes: &[u8]) -> Result<Value, aws_sdk_sqs::error::BuildError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::builder().data_type("String").string_value(sendable(text)).build(),
        Err(_) => Value::builder().data_type("Binary").binary_value(Blob::new(bytes)).build(),
    }
}

/// SQS refuses a message with any other character.
fn sendable(text: &str) -> String {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r') || (c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if allowed(c) { c } else { '?' }).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn group(dead_letter: &DeadLetter) -> String {
    let own = dead_letter.message.ordering_key().and_then(|key| std::str::from_utf8(key.as_bytes()).ok());
    own.unwrap_or("idem-dead-letters").to_owned()
}

/// A copy that a crash makes is dropped, and the same message after another failure is not.
fn deduplication_id(dead_letter: &DeadLetter) -> String {
    let DeadLetter { consumer, message, reason, attempts, .. } = dead_letter;
    hashed(format!("{consumer}\n{}\n{reason}\n{attempts}", message.origin().as_str()).as_bytes())
}

#[cfg(test)]
mod tests;
