//! Frames of RabbitMQ.

use amq_protocol::frame::{AMQPFrame, parsing::parse_frame};
use idem_amqp::fuzzing::{Value, mapped, pass};

use crate::lines;

/// A content header's kind, channel and end; class, weight and body size stand before the properties.
const HEADER: [u8; 3] = [2, 0, 1];
const BEFORE_PROPERTIES: [u8; 12] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const END: [u8; 1] = [0xCE];

/// G14: the bytes that a broker sends are passed on unchanged, however they are cut, and a frame with any properties is one
/// that the client library reads whole.
pub fn frames(input: &[u8]) {
    let [most, least, cut, bytes @ ..] = input else { return };
    let frame_max = usize::from(u16::from_be_bytes([*most, *least]));
    let in_parts = pass(frame_max, bytes.chunks(usize::from(*cut).max(1))).ok();
    assert_eq!(pass(frame_max, [bytes]).ok(), in_parts, "the same however it is cut");

    let size = u32::try_from(BEFORE_PROPERTIES.len() + bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let frame = [&HEADER[..], &size, &BEFORE_PROPERTIES, bytes, &END].concat();
    let passed = pass(0, [&frame[..]]).unwrap_or_default();
    match parse_frame(&passed[..]) {
        Ok((rest, AMQPFrame::Header(..))) => assert!(rest.is_empty(), "one frame is one frame"),
        read => panic!("the library reads {read:?}"),
    }
}

/// G19: headers of any type and name become those of a message in one way: a text or bytes keep their value, nothing is
/// dropped but the broker's own headers, and two deliveries that differ in their payload differ in their origin. The input is
/// lines of `name=value`, whose value's first byte says its type.
pub fn amqp(input: &[u8]) {
    let headers: Vec<(String, Value)> = lines(input)
        .map(|(name, value)| {
            let value = match value {
                None => Value::Void,
                Some([b'0', text @ ..]) => Value::Bytes(text.to_vec()),
                Some([b'1', text @ ..]) => Value::Number(i64::try_from(text.len()).unwrap_or(i64::MAX)),
                Some([b'2', ..]) => Value::Table,
                Some(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
            };
            (name, value)
        })
        .collect();
    let [message, again, other] = [b"payload".as_slice(), b"payload", b"another"].map(|body| mapped(&headers, body));
    assert_eq!(message.origin().as_str(), again.origin().as_str(), "one delivery has one origin");
    assert_ne!(message.origin().as_str(), other.origin().as_str(), "another payload has another origin");
    assert_eq!(message.headers(), again.headers());
    for (name, value) in message.headers().iter() {
        // A table is as the broker has it: of two headers of one name it keeps the last.
        let Some((_, sent)) = headers.iter().rev().find(|(sent, _)| cut(sent) == name) else {
            panic!("nobody sent a header {name:?}")
        };
        let same = match sent {
            Value::Text(text) => value == Some(text.as_bytes()),
            Value::Bytes(bytes) => value == Some(&bytes[..]),
            Value::Number(number) => value == Some(number.to_string().as_bytes()),
            Value::Void | Value::Table => value.is_none(),
        };
        assert!(same, "{name:?} was {sent:?} and is {value:?}");
    }
}

/// A name in a table has 255 bytes at most.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(255)]
}
