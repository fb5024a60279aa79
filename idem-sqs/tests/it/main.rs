//! The SQS source on ElasticMQ and on the test kit's strict fake: the emulator is lenient where SQS is not.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

mod events;
mod faults;
mod fifo;
mod member;
mod messages;
mod publisher;
mod server;
mod suite;
mod visibility;
