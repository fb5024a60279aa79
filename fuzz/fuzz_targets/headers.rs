//! S1: headers of any name and value, repeated or not. The input is lines of `name=value`; one without `=` has no value.
#![no_main]

use idem_core::{
    Bytes, Headers, IdempotencyKey, Message,
    key::{CloudEvent, Header, KEY_FIELD, KeySource, default_key_source},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut headers = Headers::default();
    for line in input.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        headers.push(&name, parts.next().map(Bytes::copy_from_slice));
    }
    let repeated = headers.all(KEY_FIELD).count() > 1;
    let message = Message::new("{}").with_headers(headers);
    let _ = (message.message_type(), format!("{message:?}"));
    let header = Header::new(KEY_FIELD);
    assert!(!repeated || header.key(&message).is_err(), "a repeated key is malformed");
    for key in [header.key(&message), CloudEvent.key(&message), default_key_source().key(&message)] {
        if let Ok(Some(key)) = key {
            assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Ok(&key));
        }
    }
});
