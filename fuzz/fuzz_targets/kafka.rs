//! See `properties::kafka`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::kafka(input));
