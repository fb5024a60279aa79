//! The RabbitMQ source against a real broker.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

mod attach;
mod broker;
mod cloud_events;
mod deaf;
mod epochs;
mod events;
mod hostile;
mod large;
mod limits;
mod member;
mod own_server;
mod publisher;
mod raw;
mod retry;
#[cfg(feature = "tls")]
mod security;
mod suite;
mod timeouts;
