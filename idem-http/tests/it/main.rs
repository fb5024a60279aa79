//! HTTP against real databases.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

#[cfg(all(feature = "inbound", feature = "reqwest"))]
mod inbound;
#[cfg(feature = "server")]
mod server;
#[cfg(all(feature = "server", feature = "inbound", feature = "reqwest"))]
mod together;

/// A client of HTTP for tests: no proxy, and no tries of its own.
#[cfg(feature = "reqwest")]
fn http_client() -> reqwest::Client {
    http_settings().retry(reqwest::retry::never()).build().unwrap()
}

/// The settings of one.
#[cfg(feature = "reqwest")]
fn http_settings() -> reqwest::ClientBuilder {
    // Another test was first, or this one is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}
