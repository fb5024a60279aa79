//! S10, F14: any body is opened as an envelope of SNS or EventBridge, or is the message itself. One that cannot be read is
//! kept whole.
#![no_main]

use idem_core::{Bytes, Headers};
use idem_sqs::Envelope;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &str| {
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
});
