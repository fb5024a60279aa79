//! [`SqsPublisher`]: dead letters and events go to a queue.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_sqs::{
    Client,
    error::ProvideErrorMetadata,
    primitives::Blob,
    types::{MessageAttributeValue as Value, QueueAttributeName},
};
use idem_core::{
    ConfigError, SourceError,
    dead_letter::{self, DeadLetter, Publisher},
    key::KEY_FIELD,
    outbox::CloudEvents,
};
use tokio::sync::OnceCell;

use crate::{
    attach::message_bytes_max,
    error::classify,
    fifo::hashed,
    options::{check_url, is_fifo, queue_name},
    queue::limited,
};

/// How long SQS may take to confirm a dead letter.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// The same for a request with events: less than a relay waits for the publisher.
const EVENTS_CONFIRMED_WITHIN: Duration = Duration::from_secs(4);

/// How many attributes a message may have.
pub(crate) const ATTRIBUTES_MAX: usize = 10;

/// How large a message may be with them, where the queue does not say.
const BYTES_MAX: usize = 1 << 20;

/// The attribute with all facts of why a message was set aside, as JSON, where there is no room for one attribute each.
const FACTS_TOGETHER: &str = "idem";

/// A [`Publisher`] to a queue, which must exist.
///
/// A dead letter carries the payload and the message's own attributes, with their types, and why it was set aside: the
/// facts of [`dead_letter::headers`], an attribute each. SQS allows ten attributes in all, and has a limit of bytes; where
/// that is not enough the facts are one attribute, `idem`, as JSON, and where not even that fits, as many of them as do.
/// The message's own are never left out for them. SQS allows text of some characters only; others are replaced in facts.
/// On a FIFO queue it has the message's own group.
///
/// A dead letter that is larger than the queue's `MaximumMessageSize`, or no text, is [`SourceError::DoesNotFit`]; so that
/// it is known, allow `sqs:GetQueueAttributes` on the queue.
///
/// An [`EventPublisher`] too, in requests of ten entries: an event's type is the attribute `EventType`, its attributes as a
/// [CloudEvent](Self::cloud_events) are one attribute, `ce`, as JSON, because SQS takes ten in all. On a FIFO queue its id is the
/// deduplication id and its ordering key the group; without one it is a group of its own.
///
/// [`EventPublisher`]: idem_core::outbox::EventPublisher
pub struct SqsPublisher {
    client: Client,
    pub(crate) events: Client,
    pub(crate) cloud_events: CloudEvents,
    pub(crate) queue_url: String,
    bytes_max: OnceCell<usize>,
}

impl SqsPublisher {
    /// A publisher to the queue with this URL.
    ///
    /// # Errors
    /// [`ConfigError`] where that is no URL of a queue.
    pub fn new(client: &Client, queue_url: impl Into<String>) -> Result<Self, ConfigError> {
        let queue_url = queue_url.into();
        check_url("dead_letter_queue_url", &queue_url)?;
        let events = limited(client, EVENTS_CONFIRMED_WITHIN);
        let client = limited(client, CONFIRMED_WITHIN);
        Ok(Self { client, events, cloud_events: CloudEvents::binary(), queue_url, bytes_max: OnceCell::new() })
    }

    /// Sets how events are written. Defaults to [`CloudEvents::binary`].
    #[must_use]
    pub fn cloud_events(self, cloud_events: CloudEvents) -> Self {
        Self { cloud_events, ..self }
    }

    /// How large a message of this queue may be. Asked for once; where the queue does not say, its refusal does.
    pub(crate) async fn bytes_max(&self) -> usize {
        let ask = async || {
            let request = self.client.get_queue_attributes().queue_url(&self.queue_url);
            let answer = request.attribute_names(QueueAttributeName::MaximumMessageSize).send().await;
            let attributes = answer.ok().and_then(|answer| answer.attributes).unwrap_or_default();
            message_bytes_max(&attributes).ok_or(())
        };
        self.bytes_max.get_or_try_init(ask).await.copied().unwrap_or(BYTES_MAX)
    }

    fn does_not_fit(&self, dead_letter: &DeadLetter, why: &str) -> SourceError {
        let (queue, origin) = (queue_name(&self.queue_url), dead_letter.message.origin());
        SourceError::DoesNotFit {
            problem: format!("queue {queue:?} cannot take the dead letter from {origin}: {why}"),
            cure: "It is kept in the table dead_letters; raise the queue's MaximumMessageSize where that is the limit, or \
                   publish those of this source elsewhere"
                .to_owned(),
        }
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
        let body = match (payload, dead_letter.payload_omitted) {
            // SQS carries text, and not an empty one. A message that came from it does not fail here.
            (Some(Ok(body)), _) if !body.is_empty() => Cow::Borrowed(body),
            (_, Some(row)) => Cow::Owned(format!("The payload is in row {} of dead_letters.", row.0)),
            (_, None) => return Err(self.does_not_fit(dead_letter, "its payload is not text, or is missing")),
        };
        let room = self.bytes_max().await.checked_sub(body.len());
        let Some(attributes) = room.and_then(|room| attributes(dead_letter, room)) else {
            return Err(self.does_not_fit(dead_letter, "it is too large, or has too many attributes"));
        };
        let mut send = self.client.send_message().queue_url(&self.queue_url).message_body(body);
        for (name, value) in attributes {
            send = send.message_attributes(name, value);
        }
        if is_fifo(&self.queue_url) {
            send = send.message_group_id(group(dead_letter)).message_deduplication_id(deduplication_id(dead_letter));
        }
        match send.send().await {
            Ok(_) => Ok(()),
            // About this message: its size where the queue's limit was not known, or its content.
            Err(error) if error.code().is_some_and(|code| REFUSES_THE_MESSAGE.contains(&code)) => {
                Err(self.does_not_fit(dead_letter, error.message().unwrap_or("SQS does not say why")))
            }
            Err(error) => Err(classify(&self.queue_url, "publishing a dead letter", error)),
        }
    }
}

/// The codes by which SQS refuses a message for its content.
pub(crate) const REFUSES_THE_MESSAGE: [&str; 3] =
    ["InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue"];

/// The bytes of the attributes, and the attributes so far.
struct Attributes {
    room: usize,
    all: Vec<(String, Value)>,
}

impl Attributes {
    /// Adds one where it fits.
    fn add(&mut self, name: &str, value: Value) -> bool {
        let bytes = value.string_value.as_ref().map_or(0, String::len)
            + value.binary_value.as_ref().map_or(0, |bytes| bytes.as_ref().len());
        let size = name.len() + value.data_type.len() + bytes;
        if self.all.len() == ATTRIBUTES_MAX || size > self.room {
            return false;
        }
        self.room -= size;
        self.all.push((name.to_owned(), value));
        true
    }

    fn has(&self, name: &str) -> bool {
        self.all.iter().any(|(before, _)| before == name)
    }
}

/// The message's own attributes, and why it was set aside, as far as that fits. `None` where its own do not; a copy
/// without a payload leaves them out instead.
fn attributes(dead_letter: &DeadLetter, room: usize) -> Option<Vec<(String, Value)>> {
    let headers = dead_letter::headers(dead_letter);
    // Without a key there is no such fact, and the header of that name is the producer's: a malformed key, maybe no text.
    let own_key = dead_letter.message.headers().text(KEY_FIELD);
    let is_own_key = dead_letter.key.as_ref().is_none_or(|key| own_key == Some(key.as_str()));
    let (facts, theirs): (Vec<_>, Vec<_>) =
        headers.iter().partition(|(name, _)| dead_letter::FACTS.contains(name) && !(is_own_key && *name == KEY_FIELD));
    let facts: Vec<(&str, String)> = facts
        .into_iter()
        .filter_map(|(name, value)| Some((name, sendable(std::str::from_utf8(value?).ok()?))))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let mut own = Attributes { room, all: Vec::new() };
    let types: HashMap<String, String> = dead_letter
        .message
        .broker_properties()
        .and_then(|types| serde_json::from_slice(types).ok())
        .unwrap_or_default();
    for (name, value) in theirs {
        let bytes = value.unwrap_or_default();
        // Attributes from SQS are there once, with a name and a value that it takes; other headers are carried as far as
        // possible.
        if bytes.is_empty() || own.has(name) || !is_name(name) {
            continue;
        }
        let Ok(value) = attribute(bytes, types.get(name)) else { continue };
        if !own.add(name, value) && dead_letter.payload_omitted.is_none() {
            return None;
        }
    }
    let text = |value: &str| Value::builder().data_type("String").string_value(value).build();
    if dead_letter.payload_omitted.is_some() {
        // Without its payload, the dead letter is about the facts.
        let mut all = Attributes { room, all: Vec::new() };
        for (name, value) in &facts {
            if let Ok(value) = text(value) {
                all.add(name, value);
            }
        }
        for (name, value) in own.all {
            all.add(&name, value);
        }
        return Some(all.all);
    }
    let mut each = Attributes { room: own.room, all: own.all.clone() };
    if facts.iter().all(|(name, value)| text(value).is_ok_and(|value| each.add(name, value))) {
        return Some(each.all);
    }
    let together: BTreeMap<&str, &str> =
        facts.iter().map(|(name, value)| (name.trim_start_matches("idem-"), &**value)).collect();
    let together = serde_json::to_string(&together).ok().and_then(|json| text(&json).ok());
    if together.is_some_and(|together| own.add(FACTS_TOGETHER, together)) {
        return Some(own.all);
    }
    Some(each.all)
}

/// With the type that it came with, and else the one of its value: text with characters that SQS does not take goes as bytes.
pub(crate) fn attribute(bytes: &[u8], data_type: Option<&String>) -> Result<Value, aws_sdk_sqs::error::BuildError> {
    let is_binary = data_type.is_some_and(|data_type| data_type.starts_with("Binary"));
    match std::str::from_utf8(bytes) {
        Ok(text) if !is_binary && sendable(text) == text => {
            let data_type = data_type.map_or("String", String::as_str);
            Value::builder().data_type(data_type).string_value(text).build()
        }
        Ok(_) | Err(_) => {
            let data_type = data_type.filter(|_| is_binary).map_or("Binary", String::as_str);
            Value::builder().data_type(data_type).binary_value(Blob::new(bytes)).build()
        }
    }
}

/// SQS refuses a message with any other character.
pub(crate) fn sendable(text: &str) -> String {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r') || (c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if allowed(c) { c } else { '?' }).collect()
}

pub(crate) fn is_name(name: &str) -> bool {
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
