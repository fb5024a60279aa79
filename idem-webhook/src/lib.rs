#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "receive")]
pub mod receive;
#[cfg(feature = "send")]
pub mod send;
mod signature;

#[cfg(any(feature = "receive", feature = "send"))]
pub use idem_core;

pub use self::signature::{ParseSecretError, Secret, sign, verify};

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "receive"))]
mod guide {
    #[doc = include_str!("../../docs/guide/http-in.md")]
    struct HttpIn;
}
