//! HTTP against real databases.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

#[cfg(all(feature = "server", feature = "axum"))]
mod server;
