//! See `properties::keys`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::keys(input));
