//! Protected routes.

mod answer;
mod ask;
mod axum_layer;
mod builder;
mod counts;
mod digest;
mod error;
mod fingerprint;
mod flight;
#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gates;
mod idempotent_tx;
mod key;
mod problem;
mod profile;
mod request_key;
mod route;
mod run;
mod scope;
mod scoped_key;
mod state;
mod tenants;
mod tx_error;
mod verify_digest;

pub use self::{
    answer::{ALLOWED_HEADERS, EXPOSED_HEADERS},
    ask::AskService,
    axum_layer::{IdempotencyLayer, Idempotent},
    builder::IdempotencyBuilder,
    counts::{RouteCounts, WaitingRepeats},
    digest::check_digests,
    fingerprint::{Fingerprint, HashSecret},
    idempotent_tx::IdempotentTx,
    profile::Profile,
    request_key::RequestKey,
    scope::{Authenticated, SenderFn},
    scoped_key::ScopedKey,
    state::Idempotency,
    tx_error::TxError,
    verify_digest::{DigestVerified, VerifiedBody, VerifyDigest},
};
