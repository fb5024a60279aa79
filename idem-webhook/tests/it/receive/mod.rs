//! Events that come in over HTTP, on a real server and a real database.

mod crowded;
mod faults;
mod fixture;
mod handled;
mod inbox;
mod signed;
mod sns;

/// A client of HTTP for tests: no proxy, and no tries of its own.
fn http_client() -> reqwest::Client {
    // Another test was first, or this one is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().retry(reqwest::retry::never()).build().unwrap()
}
