//! Tests of the test kit itself.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "in a test anything unexpected is a failure"
)]

mod deliver;
mod guide;
mod in_order;
mod later;
mod memory;
#[cfg(feature = "failpoints")]
mod prove;
mod relay;
mod remote;
mod run_once;
mod shared_units;
