//! The stored headers of a message, and the envelopes that a message comes in.

use idem_core::{Bytes, message::Headers};
use idem_sql::{decode_headers, encode_headers};
use idem_sqs::Envelope;

use crate::lines;

/// S10: headers of any shape come back from the column of a dead letter as they were, and any text is read or refused. The
/// input is a text, and also lines of `name=value`.
pub fn dead_letter_headers(input: &[u8]) {
    let comes_back = |headers: Headers| match encode_headers(&headers) {
        Some(text) => assert_eq!(decode_headers(&text), Some(headers)),
        None => assert!(headers.is_empty()),
    };
    if let Some(headers) = std::str::from_utf8(input).ok().and_then(decode_headers) {
        comes_back(headers);
    }
    let mut headers = Headers::default();
    lines(input).for_each(|(name, value)| headers.push(&name, value.map(Bytes::copy_from_slice)));
    comes_back(headers);
}

/// S10, F14: any body is opened as an envelope of SNS or EventBridge, or is the message itself. One that cannot be read is
/// kept whole.
pub fn envelopes(input: &[u8]) {
    let Ok(body) = std::str::from_utf8(input) else { return };
    for envelope in [Envelope::Sns, Envelope::EventBridge] {
        let mut headers = Headers::default();
        headers.push("own", Some(Bytes::from_static(b"1")));
        let message = envelope.open(body.to_owned(), headers, "id");
        let is_own = message.headers().text("own") == Some("1") && message.id() == Some("id");
        assert!(message.problem().is_none() || is_own, "what cannot be read is handed over as it is");
        if is_own && message.problem().is_some() {
            assert_eq!(message.payload().map(|payload| &payload[..]), Some(body.as_bytes()));
        }
    }
}
