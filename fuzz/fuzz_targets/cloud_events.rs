//! See `properties::cloud_events`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::cloud_events(input));
