//! See `properties::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::frames(input));
