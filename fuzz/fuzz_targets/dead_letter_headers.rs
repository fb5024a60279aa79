//! See `properties::dead_letter_headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::dead_letter_headers(input));
