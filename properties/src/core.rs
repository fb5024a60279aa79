//! Keys, headers, payloads.

use std::sync::Arc;

use idem_core::{
    Bytes, IdempotencyKey, Message,
    hash::{JsonMembers, PayloadHasher},
    key::{CloudEvent, FirstOf, Header, Join, JsonMember, KEY_FIELD, KeySource, RecordKey, default_key_source},
    message::Headers,
};

use crate::lines;

/// Every key that the source finds is one that a store can hold.
fn is_a_key(source: &dyn KeySource, message: &Message) {
    if let Ok(Some(key)) = source.key(message) {
        assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(&key));
        assert!(!key.to_string().chars().any(char::is_control), "a key that is shown has no control characters");
    }
}

/// S1: with any payload, no source panics, and every key that is found is one that a store can hold.
pub fn keys(payload: &[u8]) {
    let message = Message::new(payload.to_vec())
        .with_header("content-type", "application/cloudevents+json")
        .with_record_key(payload.to_vec());
    let mut sources: Vec<Arc<dyn KeySource>> = vec![default_key_source(), Arc::new(CloudEvent), Arc::new(RecordKey)];
    sources.extend(["/a/0/b", "/a~1b", "/"].iter().filter_map(|p| JsonMember::at(p)).map(|m| Arc::new(m) as _));
    sources.push(Arc::new(Join(Arc::new(RecordKey), default_key_source())));
    sources.push(Arc::new(FirstOf(sources.clone())));
    sources.iter().for_each(|source| is_a_key(&**source, &message));
}

/// S1: headers of any name and value, repeated or not. The input is lines of `name=value`; one without `=` has no value.
pub fn headers(input: &[u8]) {
    let mut headers = Headers::default();
    lines(input).for_each(|(name, value)| headers.push(&name, value.map(Bytes::copy_from_slice)));
    let repeated = headers.all(KEY_FIELD).count() > 1;
    let message = Message::new("{}").with_headers(headers);
    let _ = (message.message_type(), format!("{message:?}"));
    let header = Header::new(KEY_FIELD);
    assert!(!repeated || header.key(&message).is_err(), "a repeated key is malformed");
    is_a_key(&header, &message);
    is_a_key(&CloudEvent, &message);
    is_a_key(&*default_key_source(), &message);
}

/// S10, B14: any bytes are hashed or refused without a panic; a payload that is hashed has the same hash when its JSON is
/// written anew; and no error quotes what it was given.
pub fn json(payload: &[u8]) {
    let message = Message::new(payload.to_vec());
    let _ = message.json::<Vec<u32>>();
    let Some(rule) = JsonMembers::without(["/none/0/x"]) else { return };
    let Ok(hash) = rule.hash(&message) else { return };
    // serde_json takes these objects for numbers and raw text, and we do not (C11).
    if payload.windows(20).any(|part| part == b"$serde_json::private") || payload.contains(&b'\\') {
        return;
    }
    // A payload with a canonical form repeats no member, so this reads all of it, but for numbers that no float can hold.
    let value: serde_json::Value = match serde_json::from_slice(payload) {
        Ok(value) => value,
        Err(error) if error.to_string().starts_with("number out of range") => return,
        Err(error) => panic!("it was hashed, so it is JSON: {error}"),
    };
    if has_rounded(&value) {
        return;
    }
    for written in [value.to_string(), format!("{value:#}")] {
        assert_eq!(rule.hash(&Message::new(written)).as_ref(), Ok(&hash));
    }
}

/// Whether a number in it may not be written as it was: without the feature `arbitrary_precision` it is a float by then.
fn has_rounded(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_rounded),
        Value::Object(members) => members.values().any(has_rounded),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// S1: an event of CloudEvents in either mode, attributes and payload of any kind: its key is `source` and `id` and nothing
/// else, so two events that differ in one of them differ in their key, and no event has one where either is missing.
pub fn cloud_events(input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let [source, id, rest] = [0; 3].map(|_| parts.next().unwrap_or_default());
    let of = |source: &[u8], id: &[u8]| {
        let mut headers = Headers::default();
        headers.push("ce_source", Some(Bytes::copy_from_slice(source)));
        headers.push("ce_id", Some(Bytes::copy_from_slice(id)));
        headers.push("ce_type", Some(Bytes::copy_from_slice(rest)));
        CloudEvent.key(&Message::new(rest.to_vec()).with_headers(headers))
    };
    let key = of(source, id);
    if let Ok(Some(key)) = &key {
        assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(key));
        assert!(!source.is_empty() && !id.is_empty(), "an event without source or id has no key");
        for other in [of(&[source, b"x"].concat(), id), of(source, &[id, b"x"].concat()), of(id, source)] {
            assert!(source == id || other.as_ref().ok() != Some(&Some(key.clone())), "another event has the same key");
        }
    }
    let structured = Message::new(input.to_vec()).with_header("content-type", "application/cloudevents+json");
    is_a_key(&CloudEvent, &structured);
}
