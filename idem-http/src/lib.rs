#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "server")]
mod date;
#[cfg(feature = "inbound")]
pub mod inbound;
#[cfg(any(feature = "inbound", feature = "server"))]
mod outcomes;
#[cfg(feature = "server")]
mod server;
#[cfg(any(feature = "inbound", feature = "server"))]
mod service;

pub use idem_core as core;

/// The header that says how often a client has sent a request, from 1. The client of `idem-http-client` sends it, so that the repeat is
/// looked up at once by an instance that has not had its key before. It is a hint, and decides nothing.
#[cfg(feature = "server")]
pub const ATTEMPT_HEADER: http::HeaderName = http::HeaderName::from_static("idempotency-attempt");

#[cfg(feature = "server")]
pub use self::server::*;

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "server"))]
mod guide_of_the_server {
    #[doc = include_str!("../../docs/guide/http.md")]
    struct Http;
}

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "inbound"))]
mod guide_of_inbound {
    #[doc = include_str!("../../docs/guide/http-in.md")]
    struct HttpIn;
}
