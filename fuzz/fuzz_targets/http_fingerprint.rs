//! See `properties::http_fingerprint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::http_fingerprint(input));
