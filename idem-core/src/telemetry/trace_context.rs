//! The producer's trace, as W3C's Trace Context has it in the header `traceparent`.

use std::fmt;

use crate::message::Message;

/// The header with the trace and the producer's span.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// The header with what the tracing systems on the way have added.
pub(crate) const TRACESTATE: &str = "tracestate";

/// The trace and span under which a message was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContext {
    /// The trace's id; never 0.
    pub trace_id: u128,
    /// The id of the producer's span; never 0.
    pub span_id: u64,
    /// The flags; the lowest bit says that the trace is sampled.
    pub flags: u8,
}

impl TraceContext {
    /// The context of a span; `None` where one of the ids is 0, as of a span that does not exist.
    #[must_use]
    pub fn new(trace_id: u128, span_id: u64, flags: u8) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    /// The context in a message's header `traceparent`. An invalid or repeated header has none.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        Self::parse(message.headers().text(TRACEPARENT)?)
    }

    /// Parses the value of `traceparent`, level 2 of the recommendation: `00-<trace id>-<span id>-<flags>`. Of a higher
    /// version only what version 00 knows is read.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace_id, span_id) = (hex(trace_id, 32)?, u64::try_from(hex(span_id, 16)?).ok()?);
        let flags = u8::try_from(hex(flags, 2)?).ok()?;
        Self::new(trace_id, span_id, flags)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// A number of exactly so many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == digits && text.bytes().all(is_digit)).then(|| u128::from_str_radix(text, 16).ok())?
}
