//! Tests over several crates: the engine, real databases, the broker of the test kit, processes that die.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

mod crash;
mod docs;
mod proving;
mod statements;
mod support;
mod worker;
