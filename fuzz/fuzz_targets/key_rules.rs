//! See `properties::key_rules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::key_rules(input));
