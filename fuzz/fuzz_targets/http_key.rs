//! See `properties::http_key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::http_key(input));
