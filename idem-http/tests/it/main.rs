//! HTTP against real databases.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

mod server;
mod together;

/// The settings of a client of HTTP for tests: no proxy.
fn http_settings() -> reqwest::ClientBuilder {
    // Another test was first, or this one is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}
