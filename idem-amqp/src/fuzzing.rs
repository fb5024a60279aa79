//! An entry point for the properties of any input.

use std::io;

use idem_core::Message;
use lapin::{
    BasicProperties,
    types::{AMQPValue, ByteArray, FieldTable, LongString, ShortString},
};

use crate::frames::Frames;

/// The bytes that the client library sees of these pieces, which arrive one after the other.
///
/// # Errors
/// A frame is larger than any that a broker sends.
pub fn pass<'a>(frame_max: usize, bytes: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Vec<u8>> {
    let (mut frames, mut out) = (Frames::new(frame_max), Vec::new());
    bytes.into_iter().try_for_each(|bytes| frames.pass(bytes, &mut out))?;
    Ok(out)
}

/// A header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A whole number.
    Number(i64),
    /// None.
    Void,
    /// A table, which is no single value.
    Table,
}

/// A delivery with these headers as a message. Names that the protocol has no room for are cut.
#[must_use]
pub fn mapped(headers: &[(String, Value)], payload: &[u8]) -> Message {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        let value = match value {
            Value::Text(text) => AMQPValue::LongString(LongString::from(text.as_str())),
            Value::Bytes(bytes) => AMQPValue::ByteArray(ByteArray::from(bytes.clone())),
            Value::Number(number) => AMQPValue::LongLongInt(*number),
            Value::Void => AMQPValue::Void,
            Value::Table => AMQPValue::FieldTable(FieldTable::default()),
        };
        let Ok(name) = ShortString::try_new(&name[..name.floor_char_boundary(255)]) else { continue };
        table.insert(name, value);
    }
    let properties = BasicProperties::default().with_headers(table);
    crate::message::message("exchange", "key", &properties, payload.to_vec()).0
}
