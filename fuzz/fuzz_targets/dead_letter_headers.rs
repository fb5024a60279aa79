//! S10: headers of any shape come back from the column of a dead letter as they were, and any text is read or refused. The
//! input is a text, and also lines of `name=value`.
#![no_main]

use idem_core::{Bytes, Headers};
use idem_schema::{decode_headers, encode_headers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(headers) = std::str::from_utf8(input).ok().and_then(decode_headers) {
        comes_back(headers);
    }
    let mut headers = Headers::default();
    for line in input.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        headers.push(&name, parts.next().map(Bytes::copy_from_slice));
    }
    comes_back(headers);
});

fn comes_back(headers: Headers) {
    match encode_headers(&headers) {
        Some(text) => assert_eq!(decode_headers(&text), Some(headers)),
        None => assert!(headers.is_empty()),
    }
}
