//! The Kafka source against a real broker, and against a mock cluster where errors are injected.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

mod cloud_events;
mod cluster;
mod events;
mod faults;
mod member;
mod positions;
mod publisher;
mod rebalances;
mod records;
#[cfg(feature = "ssl")]
mod security;
mod shared_group;
mod suite;
#[cfg(feature = "ssl")]
mod tokens;
mod wire;
