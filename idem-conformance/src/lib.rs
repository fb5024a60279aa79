//! Suites that show whether an implementation of one of idem's traits keeps its contract: a [store], also on
//! [PostgreSQL](postgres), a [source], or an [inbox]. Their cases cite
//! [failure modes](https://github.com/idem-rs/idem/blob/main/docs/internals/failure-modes.md).
//!
//! It belongs under `[dev-dependencies]`.
// The order of a hash map differs between two runs, and a failure must come again from its seed.
#![warn(clippy::iter_over_hash_type)]

pub mod inbox;
pub mod postgres;
pub mod source;
pub mod store;

use std::{future::Future, pin::Pin, time::Duration};

/// Runs the case of this name to its end, and fails after `limit`. Boxed, so that the runtime is compiled once and not for each
/// of some thousand cases.
#[allow(clippy::panic, reason = "a test without a runtime has failed")]
fn block_on(
    name: &str,
    mut runtime: tokio::runtime::Builder,
    limit: Duration,
    case: Pin<Box<dyn Future<Output = ()> + '_>>,
) {
    let runtime = runtime.enable_all().build().unwrap_or_else(|error| panic!("no runtime for {name}: {error}"));
    let ended = runtime.block_on(async { tokio::time::timeout(limit, case).await });
    assert!(ended.is_ok(), "{name} did not end within {limit:?}");
    // Tasks that wait for a server that hangs must not keep the test waiting.
    runtime.shutdown_background();
}
