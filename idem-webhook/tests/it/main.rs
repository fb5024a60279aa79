//! Webhooks against a real HTTP server on this machine.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

#[path = "../../../tests/tests/it/worker/captured.rs"]
mod captured;
mod cloud_events;
mod fairness;
mod posts;
mod receiver;
mod relayed;
