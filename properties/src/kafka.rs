//! The content of a Kafka record.

use idem_kafka::fuzzing::mapped;

use crate::lines;

/// E26: key, payload and headers of any record, with names twice and values that are nothing or no text, are the message's, in
/// their order. The input is lines of `name=value`; the first is key and payload.
pub fn kafka(input: &[u8]) {
    let mut all = lines(input);
    let (key, payload) = all.next().unwrap_or_default();
    // The client library's names end at a NUL, in both directions.
    let name = |name: String| name.split('\0').next().unwrap_or_default().to_owned();
    let headers: Vec<(String, Option<&[u8]>)> = all.map(|(text, value)| (name(text), value)).collect();
    let key = (!key.is_empty()).then_some(key.as_bytes());
    let message = mapped(key, payload, &headers, 3, 7);
    assert_eq!(message.payload().map(|payload| &payload[..]), payload);
    assert_eq!(message.record_key().map(|key| &key[..]), key);
    assert!(message.problem().is_none());
    let told: Vec<(&str, Option<&[u8]>)> = message.headers().iter().collect();
    let sent: Vec<(&str, Option<&[u8]>)> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(told, sent, "each header, in its order");
    assert_eq!(message.origin().as_str(), "topic/3/7");
}
