//! The suites, run for the store, the sources and the inbox of the test kit.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "in a test anything unexpected is a failure"
)]

mod inbox;
mod source;
mod store;
