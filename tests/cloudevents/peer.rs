//! The SDK of CloudEvents for Python as a peer: it reads what idem publishes, and idem reads what it writes. The tests of publishers
//! include this file.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use idem_core::{
    Message,
    key::{CloudEvent, KeySource as _, default_key_source},
    message::OrderingKey,
    outbox::OutgoingEvent,
};
use idem_testkit::outgoing_event;
use serde_json::{Value, json};

/// Events of every kind of data: JSON, text, bytes, and none.
pub(crate) fn events() -> Vec<OutgoingEvent> {
    let event = |key: &str, kind: &str, payload: &'static [u8]| {
        let mut event = outgoing_event(key, payload);
        event.content_type = Some(kind.into());
        event.ordering_key = Some(OrderingKey::new("account-7"));
        event.headers.push("region", Some("eu".into()));
        event
    };
    vec![
        event("event-1", "application/json", br#"{"cents":1177,"of":["a","b"]}"#),
        event("event \"2\" %41", "text/plain; charset=utf-8", "two € \"cents\"".as_bytes()),
        event("event-3", "application/octet-stream", b"\x00\xff\xfe"),
        event("event-4", "application/json", b""),
    ]
}

/// Checks that the peer reads each of these messages as the event that it stands for.
pub(crate) fn reads(binding: &str, messages: &[(&Message, &OutgoingEvent)]) {
    let given = messages.iter().map(|(message, _)| {
        let headers: serde_json::Map<String, Value> = message
            .headers()
            .iter()
            .map(|(name, value)| (name.to_owned(), String::from_utf8(value.unwrap().to_vec()).unwrap().into()))
            .collect();
        let key = message.record_key().map(|key| String::from_utf8(key.to_vec()).unwrap());
        json!({"headers": headers, "key": key, "body": message.payload().unwrap().to_vec()})
    });
    let answer = ask(json!({"binding": binding, "read": given.collect::<Vec<_>>(), "write": []}));
    for ((message, event), read) in messages.iter().zip(answer["read"].as_array().unwrap()) {
        let kind = event.content_type.as_deref().unwrap();
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", event.key.as_str()),
            ("source", "/idem/ledger"),
            ("type", "Told"),
            ("datacontenttype", kind),
            ("idempotencykey", event.key.as_str()),
            ("correlationid", "order-1"),
            ("causationid", "order-1"),
        ] {
            assert_eq!(read["attributes"][name], value, "{name} in {message:?}");
        }
        // The peer makes a time up for an event in structured mode, which has none.
        if message.headers().iter().any(|(name, _)| name.ends_with("time")) {
            assert_eq!(read["attributes"]["time"], "2001-09-09 01:46:40+00:00", "{message:?}");
        }
        let data = &read["data"];
        match &event.payload[..] {
            b"" => assert!(data.is_null() || data == "", "{data}"),
            payload if kind == "application/json" => {
                assert_eq!(*data, serde_json::from_slice::<Value>(payload).unwrap())
            }
            payload if kind.starts_with("text/") => assert_eq!(*data, std::str::from_utf8(payload).unwrap()),
            payload => assert_eq!(data["bytes"], json!(payload)),
        }
    }
}

/// The messages that the peer writes: an event with a key of its producer's and one without, each in binary and in structured
/// mode.
pub(crate) fn written(binding: &str) -> Vec<Message> {
    let plain = json!({"id": "7", "source": "/shop", "type": "Ordered", "datacontenttype": "application/json"});
    let mut with_key = plain.clone();
    with_key["idempotencykey"] = "order-7".into();
    let answer = ask(json!({"binding": binding, "read": [], "write": [with_key, plain]}));
    let message = |told: &Value| {
        let body: Vec<u8> = serde_json::from_value(told["body"].clone()).unwrap();
        let headers = told["headers"].as_object().unwrap().iter();
        headers.fold(Message::new(body), |message, (name, value)| {
            message.with_header(name, value.as_str().unwrap().to_owned())
        })
    };
    answer["written"].as_array().unwrap().iter().map(message).collect()
}

/// Each of them is read with its key and its data, as they came from the broker.
pub(crate) fn are_read(messages: &[Message]) {
    let key = |message: &Message| default_key_source().key(message).unwrap().unwrap().as_str().to_owned();
    let [with_key, structured_with_key, plain, structured] = messages else { panic!("{messages:?}") };
    assert_eq!((key(with_key), key(structured_with_key)), ("order-7".to_owned(), "order-7".to_owned()));
    let of_event = CloudEvent.key(plain).unwrap().unwrap();
    assert_eq!((key(plain), key(structured)), (of_event.as_str().to_owned(), of_event.as_str().to_owned()));
    for message in [with_key, plain] {
        assert_eq!(message.message_type(), Some("Ordered"));
        assert_eq!(message.json::<Value>().unwrap(), json!({"cents": 1177}));
    }
    for message in [structured_with_key, structured] {
        assert_eq!(message.json::<Value>().unwrap()["data"], json!({"cents": 1177}));
    }
}

fn ask(question: Value) -> Value {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/cloudevents/bin/python");
    assert!(Path::new(python).exists(), "the SDK of CloudEvents for Python is missing: run ./test tools");
    let mut peer = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cloudevents/peer.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    peer.stdin.take().unwrap().write_all(question.to_string().as_bytes()).unwrap();
    let answer = peer.wait_with_output().unwrap();
    assert!(answer.status.success(), "the peer says why above");
    serde_json::from_slice(&answer.stdout).unwrap()
}
