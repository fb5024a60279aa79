//! An entry point for the properties of any input.

use idem_core::Message;
use rdkafka::{
    Timestamp,
    message::{Header, OwnedHeaders, OwnedMessage},
};

use crate::options::LaneBy;

/// A record of the topic `topic` as a message.
#[must_use]
pub fn mapped(
    key: Option<&[u8]>,
    payload: Option<&[u8]>,
    headers: &[(String, Option<&[u8]>)],
    partition: i32,
    offset: i64,
) -> Message {
    let insert = |all: OwnedHeaders, (key, value): &(String, Option<&[u8]>)| all.insert(Header { key, value: *value });
    let headers = headers.iter().fold(OwnedHeaders::new(), insert);
    let (key, payload) = (key.map(<[u8]>::to_vec), payload.map(<[u8]>::to_vec));
    let time = Timestamp::CreateTime(1_700_000_000_000);
    let record = OwnedMessage::new(payload, key, "topic".to_owned(), time, partition, offset, Some(headers));
    crate::message::message(&record, LaneBy::Key)
}
