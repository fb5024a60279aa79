//! A Kafka record as a message.

use std::time::{Duration, SystemTime};

use idem_core::{
    Bytes, Message,
    message::{Headers, OrderingKey, Origin},
};
use rdkafka::{
    Timestamp,
    message::{Headers as _, Message as Record},
};

use crate::{options::LaneBy, quiet::quietly};

/// Copies the record: a borrowed one pins the buffer of a whole fetch.
pub(crate) fn message(record: &impl Record, lane_by: LaneBy) -> Message {
    let origin = format!("{}/{}/{}", record.topic(), record.partition(), record.offset());
    let mut message = match record.payload() {
        Some(payload) => Message::new(Bytes::copy_from_slice(payload)),
        None => Message::tombstone(),
    };
    // An offset is used again when a topic is created again, and the time-stamp distinguishes the two records. The origin
    // itself stays `topic/partition/offset`, which the workers' contract says; an id that begins with it takes its place
    // wherever no key stands: in the identity of dead letters and in derived keys. Pinned by `a45_…` in tests/it/records.rs.
    message = message.with_id(&match record.timestamp().to_millis() {
        Some(time) => format!("{origin}@{time}"),
        None => origin.clone(),
    });
    let (headers, problem) = headers(record);
    message = message.with_origin(Origin::new(&origin)).with_headers(headers);
    if let Some(problem) = problem {
        message = message.with_problem(problem);
    }
    if let Some(key) = record.key() {
        message = message.with_record_key(Bytes::copy_from_slice(key));
    }
    if let Some(time) = sent_at(record.timestamp()) {
        message = message.with_sent_at(time);
    }
    let key = ordering_key(record.partition(), record.key(), lane_by);
    if record.key().is_some() && lane_by == LaneBy::Key {
        message.with_ordering_key(key)
    } else {
        message.with_ordering_key_of_part(key)
    }
}

/// Kafka orders within a partition only, so the partition is part of every key. A record without a key is ordered with
/// those of its partition that have none either.
fn ordering_key(partition: i32, key: Option<&[u8]>, lane_by: LaneBy) -> OrderingKey {
    let mut bytes = partition.to_be_bytes().to_vec();
    if let (Some(key), LaneBy::Key) = (key, lane_by) {
        bytes.push(b'/');
        bytes.extend_from_slice(key);
    }
    OrderingKey::new(bytes)
}

fn sent_at(timestamp: Timestamp) -> Option<SystemTime> {
    let millis = u64::try_from(timestamp.to_millis()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// The headers up to the first whose name is not UTF-8; any of the others could be the one that the key source looks for.
fn headers(record: &impl Record) -> (Headers, Option<&'static str>) {
    let Some(theirs) = record.headers() else { return (Headers::default(), None) };
    let mut headers = Headers::with_capacity(theirs.count());
    for place in 0..theirs.count() {
        // rdkafka 0.39 panics at such a name, and a record must not take the consumer with it. One record can hold 100,000
        // of them: the first is enough.
        match quietly(|| theirs.get(place)) {
            Some(header) => headers.push(header.key, header.value.map(Bytes::copy_from_slice)),
            None => return (headers, Some("it has a header whose name is not UTF-8")),
        }
    }
    (headers, None)
}
