#![doc = include_str!("lib.md")]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "inbound")]
pub mod inbound;
#[cfg(feature = "server")]
mod server;

pub use idem_core as core;

#[cfg(feature = "server")]
pub use self::server::*;

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "client", feature = "reqwest"))]
mod guide_of_the_client {
    #[doc = include_str!("../../docs/guide/http-client.md")]
    struct HttpClient;
}

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "inbound"))]
mod guide_of_inbound {
    #[doc = include_str!("../../docs/guide/http-in.md")]
    struct HttpIn;
}
