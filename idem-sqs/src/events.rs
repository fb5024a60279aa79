//! [`SqsPublisher`] as the publisher of events to a queue.

use std::{borrow::Cow, ops::Range};

use async_trait::async_trait;
use aws_sdk_sqs::{
    error::ProvideErrorMetadata,
    types::{QueueAttributeName, SendMessageBatchRequestEntry as Entry},
};
use futures_util::{StreamExt as _, stream};
use idem_core::{
    SourceError,
    outbox::{DestinationLimits, Dispatch, EventError, EventPublisher, OutgoingEvent, Wire},
};
use serde::de::IgnoredAny;

use crate::{
    error::{UNKNOWN_QUEUE, classify, could_not_connect},
    fifo::{deduplication_id, hashed},
    message::{CLOUD_EVENT_ATTRIBUTE, TYPE_ATTRIBUTE},
    options::{is_fifo, queue_name},
    publisher::{ATTRIBUTES_MAX, REFUSES_THE_MESSAGE, SqsPublisher, attribute, is_name, sendable},
    queue::AT_ONCE,
};

/// How many bytes the entries of one request may have together: every version of SQS takes this many.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// How many requests are under way at once. Their events have different ordering keys.
const REQUESTS: usize = 8;

/// How many events a relay gives at once.
const EVENTS_MAX: usize = 200;

/// The name of the header with the media type.
const CONTENT_TYPE: &str = "content-type";

/// The headers with the trace of the handled message, the one that can be spared first.
const TRACE: [&str; 2] = ["tracestate", "traceparent"];

/// The longest group, in characters.
const GROUP_MAX: usize = 128;

/// A name and its value.
type Attribute<'e> = (&'e str, Cow<'e, [u8]>);

/// The results of the events of a call, in order.
type Answers = Vec<Option<Result<(), EventError>>>;

#[async_trait]
impl EventPublisher for SqsPublisher {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let bytes_max = self.bytes_max().await;
        let mut answers: Answers = events.iter().map(|_| None).collect();
        let (mut entries, mut sizes) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
        for (place, event) in events.iter().enumerate() {
            match self.entry(place, event, bytes_max) {
                Ok((entry, bytes)) => {
                    entries.push((place, entry));
                    sizes.push(bytes);
                }
                Err(problem) => answers[place] = Some(Err(self.event_does_not_fit(&problem))),
            }
        }
        let requests = requests(&sizes);
        let sending = requests.into_iter().map(|range| self.send_batch(&entries[range]));
        let mut sent = stream::iter(sending).buffer_unordered(REQUESTS);
        while let Some(answered) = sent.next().await {
            for (place, answer) in answered {
                answers[place] = Some(answer);
            }
        }
        let unanswered = || Err(EventError::unconfirmed("SQS did not answer for this entry").uncounted());
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Batches { events_max: EVENTS_MAX }
    }

    async fn limits(&self) -> Option<DestinationLimits> {
        let limits = DestinationLimits::new("sqs").is_structured(self.cloud_events.is_structured());
        Some(limits.message_bytes_max(u64::try_from(self.bytes_max().await).ok()))
    }

    async fn look(&self) -> Result<(), EventError> {
        let request = self.events.get_queue_attributes().queue_url(&self.queue_url);
        match request.attribute_names(QueueAttributeName::MaximumMessageSize).send().await {
            // A login that may send alone is refused this look.
            Err(error) if error.code().is_some_and(|code| UNKNOWN_QUEUE.contains(&code)) => {
                Err(again(&classify(&self.queue_url, "looking for the queue", error), EventError::not_sent))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl SqsPublisher {
    fn event_does_not_fit(&self, problem: &str) -> EventError {
        let queue = queue_name(&self.queue_url);
        EventError::DoesNotFit { problem: format!("queue {queue:?} cannot take the event: {problem}") }
    }

    /// The entry of an event, and its size.
    fn entry(&self, place: usize, event: &OutgoingEvent, bytes_max: usize) -> Result<(Entry, usize), String> {
        let wire = self.cloud_events.on_wire_together(event, CLOUD_EVENT_ATTRIBUTE);
        let body =
            std::str::from_utf8(&wire.payload).map_err(|_| "SQS takes text alone, and the payload is not text")?;
        if body.is_empty() {
            return Err("SQS takes no message without a payload".to_owned());
        }
        let body = match sendable(body) == body {
            true => Cow::Borrowed(body),
            false if serde_json::from_str::<IgnoredAny>(body).is_ok() => Cow::Owned(escaped(body)),
            false => return Err("the payload is no JSON, and has characters that SQS does not take".to_owned()),
        };
        let attributes = attributes(&wire, event.event_type.as_deref())?;
        let bytes = attributes.iter().map(|(name, value)| name.len() + "String".len() + value.len()).sum::<usize>();
        let bytes = bytes + body.len();
        if bytes > bytes_max {
            return Err(format!("it has {bytes} bytes with its attributes, and the queue takes {bytes_max}"));
        }
        let mut entry = Entry::builder().id(place.to_string()).message_body(body);
        for (name, value) in attributes {
            entry = entry.message_attributes(name, attribute(&value, None).map_err(|error| error.to_string())?);
        }
        if is_fifo(&self.queue_url) {
            entry = entry.message_deduplication_id(deduplication_id(&event.key)).message_group_id(group(event));
        }
        Ok((entry.build().map_err(|error| error.to_string())?, bytes))
    }

    /// One request, whose entries have an answer each: SQS answers 200 also where some of them failed (F5).
    async fn send_batch(&self, entries: &[(usize, Entry)]) -> Vec<(usize, Result<(), EventError>)> {
        let request = self.events.send_message_batch().queue_url(&self.queue_url);
        let request = request.set_entries(Some(entries.iter().map(|(_, entry)| entry.clone()).collect()));
        let output = match request.send().await {
            Ok(output) => output,
            Err(error) => {
                let is_about_it = error.code().is_some_and(|code| REFUSES_THE_MESSAGE.contains(&code));
                if let ([(place, _)], true) = (entries, is_about_it) {
                    let why = error.message().unwrap_or("SQS does not say why");
                    return vec![(*place, Err(self.event_does_not_fit(why)))];
                }
                let later = if could_not_connect(&error) { EventError::not_sent } else { EventError::unconfirmed };
                let told = classify(&self.queue_url, "publishing events", error);
                return entries.iter().map(|(place, _)| (*place, Err(again(&told, later)))).collect();
            }
        };
        let mut answers = Vec::with_capacity(entries.len());
        answers.extend(output.successful.iter().filter_map(|entry| Some((entry.id().parse().ok()?, Ok(())))));
        for failed in &output.failed {
            let Ok(place) = failed.id().parse() else { continue };
            let why = failed.message().unwrap_or("SQS does not say why");
            // Throttling may be called the sender's fault, and still passes.
            let answer = if failed.sender_fault() && REFUSES_THE_MESSAGE.contains(&failed.code()) {
                self.event_does_not_fit(why)
            } else {
                EventError::not_sent(format!("{}: {why}", failed.code())).uncounted()
            };
            answers.push((place, Err(answer)));
        }
        answers
    }
}

/// An event's attributes, each with its value. What there is no room for is left out: first the trace of the handled message, whose
/// producer wrote it and must not fail the event (O72), then what stands in the attribute of CloudEvents too.
fn attributes<'e>(wire: &'e Wire, event_type: Option<&'e str>) -> Result<Vec<Attribute<'e>>, String> {
    let mut attributes: Vec<Attribute<'e>> = Vec::new();
    for (name, value) in wire.headers.iter() {
        let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
        if !is_name(name) {
            return Err(format!("SQS does not take {name:?} as the name of an attribute"));
        }
        let together = std::str::from_utf8(value).ok().filter(|_| name == CLOUD_EVENT_ATTRIBUTE).map(escaped);
        attributes.push((name, together.map_or(Cow::Borrowed(value), |json| json.into_bytes().into())));
    }
    let ours = [(CONTENT_TYPE, wire.content_type.as_deref()), (TYPE_ATTRIBUTE, event_type)];
    let ours: Vec<_> = ours.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    attributes.retain(|(other, _)| ours.iter().all(|(name, _)| name != other));
    for trace in TRACE {
        if attributes.len() + ours.len() > ATTRIBUTES_MAX {
            attributes.retain(|(name, _)| *name != trace);
        }
    }
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(format!(
            "it has {} attributes with those of idem, and SQS takes {ATTRIBUTES_MAX}: give it fewer headers",
            attributes.len()
        ));
    }
    let room = ATTRIBUTES_MAX - attributes.len();
    attributes.extend(ours.into_iter().take(room).map(|(name, value)| (name, value.as_bytes().into())));
    Ok(attributes)
}

/// JSON without the characters that SQS does not take, which can only stand in its strings.
fn escaped(json: &str) -> String {
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

/// The error of a request, for each of its entries. `later` says what is known of one that is to be tried again.
fn again(error: &SourceError, later: fn(String) -> EventError) -> EventError {
    match error {
        SourceError::Refused { problem, cure } => EventError::Refused { problem: problem.clone(), cure: cure.clone() },
        SourceError::Unavailable { .. } | SourceError::DoesNotFit { .. } => {
            let texts: Vec<String> = idem_core::internal::chain(error).map(ToString::to_string).collect();
            later(texts.join(": ")).uncounted()
        }
        // It grows with idem-core.
        _ => later(error.to_string()).uncounted(),
    }
}

/// The entries of each request: at most ten, and of at most [`REQUEST_BYTES_MAX`] together, but one at
/// least.
fn requests(sizes: &[usize]) -> Vec<Range<usize>> {
    let (mut requests, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (place, size) in sizes.iter().enumerate() {
        if place > start && (place - start == AT_ONCE || bytes + size > REQUEST_BYTES_MAX) {
            requests.push(start..place);
            (start, bytes) = (place, 0);
        }
        bytes += size;
    }
    if start < sizes.len() {
        requests.push(start..sizes.len());
    }
    requests
}

/// Letters, digits and punctuation, at most 128 of them; any other key becomes a digest.
fn group(event: &OutgoingEvent) -> String {
    let Some(key) = &event.ordering_key else { return deduplication_id(&event.key) };
    let text = std::str::from_utf8(key.as_bytes()).ok();
    let fits = |text: &&str| (1..=GROUP_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    text.filter(fits).map_or_else(|| hashed(key.as_bytes()), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_ten_entries_and_no_more_bytes_than_sqs_takes() {
        assert_eq!(requests(&[]), []);
        assert_eq!(requests(&[1; 21]), [0..10, 10..20, 20..21]);
        assert_eq!(requests(&[200 << 10, 56 << 10, 1, 300 << 10, 1]), [0..2, 2..3, 3..4, 4..5]);
    }

    #[test]
    fn a_group_is_the_ordering_key_or_a_digest_and_never_empty() {
        let mut event = idem_testkit::outgoing_event("event-1", "{}");
        assert_eq!(group(&event), "event-1");
        for (key, is_itself) in [("account-7", true), ("Zürich 1", false), ("", false), (&"x".repeat(129), false)] {
            event.ordering_key = Some(idem_core::message::OrderingKey::new(key.to_owned()));
            assert_eq!(group(&event) == key, is_itself, "{key}");
            assert!((1..=128).contains(&group(&event).len()));
        }
    }
}
