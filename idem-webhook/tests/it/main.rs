//! Webhooks that are sent, to a real HTTP server on this machine, and webhooks that come in, to a real server and a real database.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

#[cfg(feature = "send")]
#[path = "../../../tests/tests/it/worker/captured.rs"]
mod captured;
#[cfg(all(feature = "axum", feature = "reqwest", feature = "send"))]
mod receive;
#[cfg(feature = "send")]
mod send;
