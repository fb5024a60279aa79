//! Tools for the tests of idem's users: a [broker in the process](memory) that redelivers and misbehaves on request, a store
//! in memory, [`deliver`] for a handler's own tests, `prove`, which kills it everywhere (with the feature `failpoints`),
//! and a [driver](source_driver) for a source's tests. The suites for stores and sources are in `idem-conformance`.
//!
//! It belongs under `[dev-dependencies]`. Nothing here keeps a message when the process ends.
#![cfg_attr(docsrs, feature(doc_cfg))]
// The order of a hash map differs between two runs, and ./sim runs a life again from its seed alone.
#![warn(clippy::iter_over_hash_type)]

#[cfg(idem_bugs)]
pub mod bugs;
#[cfg(feature = "collector")]
pub mod collector;
mod dead_letter;
mod decide;
mod deliver;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod memory;
mod memory_store;
mod outgoing_event;
mod proof;
#[cfg(feature = "failpoints")]
mod prove;
pub mod proxy;
mod seed;
pub mod source_driver;
pub mod sqs;

pub use idem_core;

#[cfg(feature = "failpoints")]
pub use self::prove::{MemoryScratch, NotProven, Promise, Proof, Proven, prove};
pub use self::{
    dead_letter::dead_letter,
    decide::Decide,
    deliver::*,
    memory_store::*,
    outgoing_event::outgoing_event,
    proof::durables,
    seed::{rng, seed},
};
