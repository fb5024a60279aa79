//! The protocol on the socket.
//!
//! A frame is four bytes of length, most significant first, and as many bytes of JSON. A client sends
//! `{"id": n, "ask": …}` and gets `{"id": n, "tell": …}`; several requests may be on their way at once, and are answered
//! in any order. `Stop` and `Finished` only say something, and are not answered. A connection has at most one seat at a
//! queue, taken by `Attach` and lost with the connection. Bytes are a JSON string where they are UTF-8, and
//! `{"hex": "…"}` where they are not.

use std::{io, time::SystemTime};

use idem_core::{
    Bytes, Message, SourceError,
    message::{Headers, OrderingKey, Origin},
    source::Settled,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    broker::Revoke,
    options::{Faults, QueueOptions},
    session::Facts,
    state::{Answer, Handed, Receipt},
    stats::{History, Stats},
};

/// The longest frame. A batch of many large messages is cut by its sender.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) id: u64,
    pub(super) tell: Tell,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Takes this connection's seat at a queue.
    Attach(String),
    Create(String, Box<QueueOptions>),
    Seat(SeatAsk),
    Queue(String, QueueAsk),
}

/// A consumer's request to its seat.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SeatAsk {
    Receive(usize),
    Settle(Vec<(Receipt, Answer)>),
    IsIdle,
    Finished(u64),
    Stop,
    Leave,
}

/// A request to a queue.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum QueueAsk {
    Facts,
    Publish(Vec<WireMessage>),
    Misbehave(Faults),
    Stats,
    Histories,
    Drained,
    Revoke(Revoke),
    Disconnect,
    ExpireLeases,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Tell {
    Done,
    Attached(Facts),
    Deliveries(Vec<WireDelivery>),
    Revoked(u64, Revoke),
    End,
    Gone,
    Settled(Vec<WireSettled>),
    Idle(bool),
    Published(Vec<String>),
    Stats(Stats),
    Histories(Vec<(String, History)>),
    Refused { problem: String, cure: String },
    DoesNotFit { problem: String, cure: String },
    Unavailable { why: String },
}

impl Tell {
    pub(super) fn error(error: &SourceError) -> Self {
        match error {
            SourceError::Refused { problem, cure } => Self::Refused { problem: problem.clone(), cure: cure.clone() },
            SourceError::DoesNotFit { problem, cure } => {
                Self::DoesNotFit { problem: problem.clone(), cure: cure.clone() }
            }
            SourceError::Unavailable { source, .. } => Self::Unavailable { why: source.to_string() },
            // The enum may grow; an unknown variant may be tried again.
            other => Self::Unavailable { why: other.to_string() },
        }
    }

    /// The error that the broker reports, or else the answer.
    pub(super) fn ok(self, doing: &'static str) -> Result<Self, SourceError> {
        match self {
            Self::Refused { problem, cure } => Err(SourceError::Refused { problem, cure }),
            Self::DoesNotFit { problem, cure } => Err(SourceError::DoesNotFit { problem, cure }),
            Self::Unavailable { why } => Err(SourceError::Unavailable { doing, source: why.into() }),
            told @ (Self::Done
            | Self::Attached(_)
            | Self::Deliveries(_)
            | Self::Revoked(..)
            | Self::End
            | Self::Gone
            | Self::Settled(_)
            | Self::Idle(_)
            | Self::Published(_)
            | Self::Stats(_)
            | Self::Histories(_)) => Ok(told),
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum WireSettled {
    Settled,
    Stale,
    Unknown,
}

impl From<Settled> for WireSettled {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Settled => Self::Settled,
            Settled::Stale => Self::Stale,
            Settled::Unknown => Self::Unknown,
        }
    }
}

impl From<WireSettled> for Settled {
    fn from(settled: WireSettled) -> Self {
        match settled {
            WireSettled::Settled => Self::Settled,
            WireSettled::Stale => Self::Stale,
            WireSettled::Unknown => Self::Unknown,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireDelivery {
    message: WireMessage,
    attempt: u32,
    redelivered: bool,
    receipt: Receipt,
}

impl From<Handed> for WireDelivery {
    fn from(handed: Handed) -> Self {
        let Handed { message, attempt, redelivered, receipt } = handed;
        Self { message: WireMessage::from(&message), attempt, redelivered, receipt }
    }
}

impl TryFrom<WireDelivery> for Handed {
    type Error = io::Error;

    fn try_from(wire: WireDelivery) -> io::Result<Self> {
        let WireDelivery { message, attempt, redelivered, receipt } = wire;
        Ok(Self { message: message.try_into()?, attempt, redelivered, receipt })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireMessage {
    payload: Option<WireBytes>,
    headers: Vec<(String, Option<WireBytes>)>,
    id: Option<String>,
    record_key: Option<WireBytes>,
    message_type: Option<String>,
    ordering_key: Option<WireBytes>,
    origin: String,
    sent_at: Option<SystemTime>,
}

impl From<&Message> for WireMessage {
    fn from(message: &Message) -> Self {
        let headers = message.headers().iter().map(|(name, value)| (name.to_owned(), value.map(WireBytes::from)));
        Self {
            payload: message.payload().map(|payload| WireBytes::from(&**payload)),
            headers: headers.collect(),
            id: message.id().map(str::to_owned),
            record_key: message.record_key().map(|key| WireBytes::from(&**key)),
            message_type: message.message_type().map(str::to_owned),
            ordering_key: message.ordering_key().map(|key| WireBytes::from(key.as_bytes())),
            origin: message.origin().as_str().to_owned(),
            sent_at: message.sent_at(),
        }
    }
}

impl TryFrom<WireMessage> for Message {
    type Error = io::Error;

    fn try_from(wire: WireMessage) -> io::Result<Self> {
        let mut message = match wire.payload {
            Some(payload) => Self::new(Bytes::try_from(payload)?),
            None => Self::tombstone(),
        };
        let mut headers = Headers::default();
        for (name, value) in wire.headers {
            headers.push(&name, value.map(Bytes::try_from).transpose()?);
        }
        message = message.with_headers(headers).with_origin(Origin::new(&wire.origin));
        if let Some(id) = wire.id {
            message = message.with_id(&id);
        }
        if let Some(key) = wire.record_key {
            message = message.with_record_key(Bytes::try_from(key)?);
        }
        if let Some(message_type) = wire.message_type {
            message = message.with_type(&message_type);
        }
        if let Some(key) = wire.ordering_key {
            message = message.with_ordering_key(OrderingKey::new(Bytes::try_from(key)?));
        }
        if let Some(at) = wire.sent_at {
            message = message.with_sent_at(at);
        }
        Ok(message)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum WireBytes {
    Text(String),
    Hex { hex: String },
}

impl From<&[u8]> for WireBytes {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
                Self::Hex { hex: bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect() }
            }
        }
    }
}

impl TryFrom<WireBytes> for Bytes {
    type Error = io::Error;

    fn try_from(wire: WireBytes) -> io::Result<Self> {
        let hex = match wire {
            WireBytes::Text(text) => return Ok(text.into()),
            WireBytes::Hex { hex } => hex,
        };
        let half = |digit: u8| char::from(digit).to_digit(16);
        let byte = |pair: &[u8]| match pair {
            [high, low] => u8::try_from(half(*high)? << 4 | half(*low)?).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Into::into).ok_or_else(|| invalid("bytes that are no pairs of hexadecimal digits"))
    }
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads one frame; `None` at the end of the stream.
pub(super) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a frame that is longer than 64 MiB"));
    }
    // Grown as the bytes come, so that a length alone allocates nothing.
    let mut frame = Vec::new();
    let read = from.take(length as u64).read_to_end(&mut frame).await?;
    if read < length {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&frame)?))
}

/// Writes frames that [`frame`] made.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    to.write_all(frame).await?;
    to.flush().await
}

/// One frame.
pub(super) fn frame(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, content)?;
    let length = frame.len() - 4;
    let length = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| invalid("a frame that is longer than 64 MiB"))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

#[cfg(test)]
mod tests;
