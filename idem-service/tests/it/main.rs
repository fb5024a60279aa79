//! Workers as processes: settings, signals, exit codes, the summary, the admin endpoints.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

mod admin;
mod browser;
mod canary;
mod cleanup;
mod config;
mod endings;
mod events;
mod hidden_keys;
mod looks;
mod open;
mod page;
mod place;
mod postgres;
mod process;
mod refusals;
mod secrets;
#[cfg(feature = "http")]
mod strangers;
mod unread;
mod worker;
