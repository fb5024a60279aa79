//! See `properties::amqp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::amqp(input));
