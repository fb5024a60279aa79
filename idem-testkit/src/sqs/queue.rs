//! One queue, by the documented rules. Pure: the time is passed in.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::{Map, Value};

use super::QueueCounts;

/// No visibility goes beyond this, counted from the receive.
const VISIBILITY_MAX: u64 = 43_200;

/// How long a FIFO queue drops repetitions.
const REPETITIONS: Duration = Duration::from_secs(300);

/// A message with its attributes, and a batch of them.
pub(super) const BYTES_MAX: usize = 1 << 20;

const ATTRIBUTES_MAX: usize = 10;

/// The options of a new queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// How many messages may be in flight. SQS allows 120,000.
    pub in_flight_max: usize,
    /// After how many receives a message is moved to which queue.
    pub redrive: Option<(u32, String)>,
    /// How long messages are kept, from 60 s to 14 days; those that are older are removed.
    pub retention: Duration,
    /// How many bytes a message may have with its attributes: SQS's `MaximumMessageSize`, which is 1 MiB by default, and 256
    /// KiB on queues that are older than that.
    pub message_bytes_max: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            in_flight_max: 120_000,
            redrive: None,
            retention: Duration::from_secs(4 * 86_400),
            message_bytes_max: BYTES_MAX,
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) options: QueueOptions,
    pub(super) failing_entries: u32,
    pub(super) throttled_entries: u32,
    messages: Vec<Message>,
    deleted: Vec<Message>,
    /// When a deduplication id was last taken, and for which message.
    taken: HashMap<String, (Duration, String)>,
    /// When a receive was first attempted under an id, and the receipts that it got.
    attempts: HashMap<String, (Duration, Vec<String>)>,
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: String,
    pub(super) attributes: Map<String, Value>,
    pub(super) group: Option<String>,
    pub(super) deduplication_id: Option<String>,
    pub(super) sent_millis: u128,
    pub(super) receives: u32,
    sent_at: Duration,
    visible_at: Duration,
    received_at: Duration,
    first_received_at: Option<Duration>,
}

/// An error as SQS names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) text: String,
}

pub(super) fn refuse<T>(code: &'static str, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, text: text.into() })
}

impl Message {
    pub(super) fn receipt(&self) -> String {
        format!("{}#{}", self.id, self.receives)
    }

    /// As SQS counts: the body, and names, types and values of the attributes.
    pub(super) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, attribute)| {
            let text = |field: &str| attribute.get(field).and_then(Value::as_str).unwrap_or_default();
            // Base64, of which four characters are three bytes.
            let binary = text("BinaryValue");
            let bytes = binary.trim_end_matches('=').len() * 3 / 4;
            name.len() + text("DataType").len() + text("StringValue").len() + bytes
        });
        self.body.len() + attributes.sum::<usize>()
    }

    /// How long ago it was received for the first time.
    pub(super) fn since_the_first_receive(&self, now: Duration) -> Option<Duration> {
        self.first_received_at.map(|at| now.saturating_sub(at))
    }

    fn is_in_flight(&self, now: Duration) -> bool {
        self.receives > 0 && self.visible_at > now
    }
}

impl Queue {
    pub(super) fn new(name: &str, options: QueueOptions) -> Self {
        let (messages, deleted, taken, attempts) = (Vec::new(), Vec::new(), HashMap::new(), HashMap::new());
        Self {
            name: name.to_owned(),
            options,
            failing_entries: 0,
            throttled_entries: 0,
            messages,
            deleted,
            taken,
            attempts,
        }
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.name.ends_with(".fifo")
    }

    pub(super) fn counts(&self, now: Duration) -> QueueCounts {
        let mut counts = QueueCounts::default();
        for message in &self.messages {
            let count = match (message.visible_at > now, message.receives) {
                (false, _) => &mut counts.waiting,
                (true, 0) => &mut counts.delayed,
                (true, _) => &mut counts.in_flight,
            };
            *count += 1;
        }
        counts
    }

    /// Takes a message in, and answers its id: that of the first one where it is a repetition.
    pub(super) fn send(&mut self, now: Duration, delay: Duration, mut message: Message) -> Result<String, Refusal> {
        check(&message, self.options.message_bytes_max)?;
        if self.is_fifo() {
            if !delay.is_zero() {
                let seconds = delay.as_secs();
                return refuse(
                    "InvalidParameterValue",
                    format!(
                        "Value {seconds} for parameter DelaySeconds is invalid. Reason: The request include parameter that \
                         is not valid for this queue type."
                    ),
                );
            }
            let (Some(_), Some(repetition)) = (&message.group, &message.deduplication_id) else {
                return refuse(
                    "MissingParameter",
                    "The request must contain MessageGroupId and MessageDeduplicationId.",
                );
            };
            if let Some((at, id)) = self.taken.get(repetition).filter(|(at, _)| now < *at + REPETITIONS) {
                let _ = at;
                return Ok(id.clone());
            }
            self.taken.insert(repetition.clone(), (now, message.id.clone()));
        }
        (message.sent_at, message.visible_at) = (now, now + delay);
        let id = message.id.clone();
        self.messages.push(message);
        Ok(id)
    }

    pub(super) fn put(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Hands over at most `max` messages. `None` where too many are in flight. A message that was received too often is moved to
    /// `dead`.
    pub(super) fn receive(
        &mut self,
        now: Duration,
        max: usize,
        visibility: Duration,
        dead: &mut Vec<Message>,
    ) -> Option<Vec<Message>> {
        if let Some((limit, _)) = self.options.redrive {
            let spent = |message: &mut Message| message.visible_at <= now && message.receives >= limit;
            dead.extend(self.messages.extract_if(.., spent));
        }
        let in_flight = self.messages.iter().filter(|message| message.is_in_flight(now)).count();
        let room = self.options.in_flight_max.saturating_sub(in_flight);
        if room == 0 {
            return None;
        }
        let is_fifo = self.is_fifo();
        let blocked: HashSet<Option<String>> = self
            .messages
            .iter()
            .filter(|message| message.is_in_flight(now))
            .map(|message| message.group.clone())
            .collect();
        let free = |message: &&mut Message| message.visible_at <= now && !(is_fifo && blocked.contains(&message.group));
        let mut ready: Vec<&mut Message> = self.messages.iter_mut().filter(free).collect();
        if !is_fifo {
            // A standard queue promises no order, so it keeps none.
            fastrand::shuffle(&mut ready);
        }
        let received = ready.into_iter().take(max.min(room)).map(|message| {
            message.receives += 1;
            message.received_at = now;
            message.first_received_at.get_or_insert(now);
            message.visible_at = now + visibility;
            message.clone()
        });
        Some(received.collect())
    }

    /// The messages that this attempt got before, where that was less than five minutes ago and all of them are still in flight. Its
    /// visibility begins anew.
    pub(super) fn receive_again(&mut self, now: Duration, visibility: Duration, attempt: &str) -> Option<Vec<Message>> {
        let (_, receipts) = self.attempts.get(attempt).filter(|(at, _)| now < *at + REPETITIONS)?;
        let got = |message: &&mut Message| message.is_in_flight(now) && receipts.contains(&message.receipt());
        let same: Vec<&mut Message> = self.messages.iter_mut().filter(got).collect();
        (same.len() == receipts.len()).then(|| {
            let again = same.into_iter().map(|message| {
                message.visible_at = now + visibility;
                message.clone()
            });
            again.collect()
        })
    }

    /// Notes what an attempt got. A standard queue knows no attempts.
    pub(super) fn attempted(&mut self, now: Duration, attempt: String, messages: &[Message]) {
        if self.is_fifo() && !attempt.is_empty() {
            self.attempts.insert(attempt, (now, messages.iter().map(Message::receipt).collect()));
        }
    }

    fn find(&self, receipt: &str) -> Result<Option<(usize, bool)>, Refusal> {
        let Some((id, _)) = receipt.split_once('#') else {
            return refuse("ReceiptHandleIsInvalid", "The input receipt handle is invalid.");
        };
        let place = self.messages.iter().position(|message| message.id == id);
        Ok(place.map(|place| (place, self.messages[place].receipt() == receipt)))
    }

    pub(super) fn delete(&mut self, now: Duration, receipt: &str) -> Result<(), Refusal> {
        let Some((place, latest)) = self.find(receipt)? else { return Ok(()) };
        let expired = !latest || self.messages[place].visible_at <= now;
        if expired && self.is_fifo() {
            return refuse("InvalidParameterValue", "The receipt handle has expired");
        }
        if latest {
            self.deleted.push(self.messages.remove(place));
        }
        Ok(())
    }

    pub(super) fn change_visibility(&mut self, now: Duration, receipt: &str, seconds: u64) -> Result<(), Refusal> {
        if seconds > VISIBILITY_MAX {
            return refuse("InvalidParameterValue", "VisibilityTimeout must be between 0 and 43200");
        }
        let Some((place, true)) = self.find(receipt)? else {
            return refuse(
                "InvalidParameterValue",
                "Message does not exist or is not available for visibility timeout change.",
            );
        };
        let message = &mut self.messages[place];
        if message.visible_at <= now {
            return refuse("MessageNotInflight", "The message referred to isn't in flight.");
        }
        let visible_at = now + Duration::from_secs(seconds);
        if visible_at > message.received_at + Duration::from_secs(VISIBILITY_MAX) {
            return refuse(
                "InvalidParameterValue",
                "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
            );
        }
        message.visible_at = visible_at;
        Ok(())
    }

    /// Removes what is older than messages are kept.
    pub(super) fn expire(&mut self, now: Duration) {
        let retention = self.options.retention;
        self.messages.retain(|message| now < message.sent_at + retention);
    }

    /// Lets the visibility of the first `count` messages in flight pass, and answers how many there were.
    pub(super) fn lapse(&mut self, now: Duration, count: usize) -> usize {
        let in_flight = self.messages.iter_mut().filter(|message| message.is_in_flight(now));
        in_flight.take(count).map(|message| message.visible_at = now).count()
    }

    pub(super) fn resurrect(&mut self) -> usize {
        let back = std::mem::take(&mut self.deleted);
        let count = back.len();
        self.messages.extend(back.into_iter().map(|message| Message { visible_at: Duration::ZERO, ..message }));
        count
    }
}

/// A message as it is sent, before the queue takes it.
pub(super) fn sent(id: String, body: String, attributes: Map<String, Value>, sent_millis: u128) -> Message {
    let (sent_at, visible_at, received_at) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (group, deduplication_id, receives, first_received_at) = (None, None, 0, None);
    Message {
        id,
        body,
        attributes,
        group,
        deduplication_id,
        sent_millis,
        receives,
        sent_at,
        visible_at,
        received_at,
        first_received_at,
    }
}

fn check(message: &Message, bytes_max: usize) -> Result<(), Refusal> {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r') || (c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    if message.body.is_empty() {
        return refuse("MissingParameter", "The request must contain the parameter MessageBody.");
    }
    if !message.body.chars().all(allowed) {
        return refuse("InvalidMessageContents", "The message contains characters outside the allowed set.");
    }
    if message.attributes.len() > ATTRIBUTES_MAX {
        return refuse("InvalidParameterValue", "Number of message attributes exceeds the allowed maximum [10].");
    }
    for (name, attribute) in &message.attributes {
        let text = |field: &str| attribute.get(field).and_then(Value::as_str).unwrap_or_default();
        let value = format!("{}{}", text("StringValue"), text("BinaryValue"));
        if value.is_empty() || !value.chars().all(allowed) {
            return refuse(
                "InvalidParameterValue",
                format!("Message attribute {name:?} must contain a non-empty, allowed value."),
            );
        }
    }
    if message.bytes() > bytes_max {
        return refuse(
            "InvalidParameterValue",
            format!("One or more parameters are invalid. Reason: Message must be shorter than {bytes_max} bytes."),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
