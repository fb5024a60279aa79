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
mod key;
mod made;
mod problem;
mod profile;
mod request_key;
mod route;
mod run;
mod scope;
mod scoped_key;
mod state;
mod step_error;
mod tenants;
mod verify_digest;

pub use self::{
    answer::{ALLOWED_HEADERS, EXPOSED_HEADERS},
    ask::AskService,
    axum_layer::{Idem, IdempotencyLayer, Idempotent},
    builder::IdempotencyBuilder,
    counts::{RouteCounts, WaitingRepeats},
    digest::check_digests,
    fingerprint::{Fingerprint, HashSecret},
    profile::Profile,
    request_key::RequestKey,
    scope::Authenticated,
    scoped_key::ScopedKey,
    state::Idempotency,
    step_error::StepError,
    verify_digest::{DigestVerified, VerifiedBody, VerifyDigest},
};
