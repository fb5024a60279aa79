#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod date;
mod outcomes;
mod server;
mod service;

pub use idem_core;

/// The header that says how often a client has sent a request, from 1. The client of `idem-http-client` sends it, so that the repeat is
/// looked up at once by an instance that has not had its key before. It is a hint, and decides nothing.
pub const ATTEMPT_HEADER: http::HeaderName = http::HeaderName::from_static("idempotency-attempt");

pub use self::server::*;

/// The programs in the guide compile.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/guide/http.md")]
    struct Http;
}
