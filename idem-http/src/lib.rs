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
