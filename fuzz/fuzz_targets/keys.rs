//! S1: whatever stands in a payload, no source panics, and every key that is found is one that a store can hold.
#![no_main]

use std::sync::Arc;

use idem_core::{
    IdempotencyKey, Message,
    key::{CloudEvent, FirstOf, Join, JsonMember, KeySource, RecordKey, default_key_source},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let message = Message::new(payload.to_vec())
        .with_header("content-type", "application/cloudevents+json")
        .with_record_key(payload.to_vec());
    let mut sources: Vec<Arc<dyn KeySource>> = vec![default_key_source(), Arc::new(CloudEvent), Arc::new(RecordKey)];
    sources.extend(["/a/0/b", "/a~1b", "/"].iter().filter_map(|p| JsonMember::at(p)).map(|m| Arc::new(m) as _));
    sources.push(Arc::new(Join(Arc::new(RecordKey), default_key_source())));
    sources.push(Arc::new(FirstOf(sources.clone())));
    for source in sources {
        if let Ok(Some(key)) = source.key(&message) {
            assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(&key));
            assert!(!key.to_string().chars().any(char::is_control));
        }
    }
});
