#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod ask;
mod clock;
mod date;
mod ended;
mod intent;
mod judge;
mod meaning;
mod prepare;
mod profile;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retries;
mod send;
mod window;

#[cfg(feature = "reqwest")]
pub use self::reqwest::Reqwest;
pub use self::{
    answer::Answer,
    ended::{Ended, Indeterminate, KeyState, KeyStateKind, Refusal, Undecided},
    intent::Intent,
    meaning::Meaning,
    prepare::PrepareRequestError,
    profile::{KeyPlace, Profile},
    retries::Retries,
    send::IdempotentClient,
};

/// The header that says how often a request has been sent, from 1. It is sent to servers that run idem, which then look the repeat up at
/// once, also on an instance that has not had its key before. It is a hint, and decides nothing.
const ATTEMPT_HEADER: http::HeaderName = http::HeaderName::from_static("idempotency-attempt");

/// The programs in the guide compile.
#[cfg(all(doctest, feature = "reqwest"))]
mod guide {
    #[doc = include_str!("../../docs/guide/http-client.md")]
    struct HttpClient;
}
