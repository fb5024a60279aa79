//! The store on a real PostgreSQL: `IDEM_POSTGRES_URL`, as `./servers url postgres` prints it. Tests that restart, stop or
//! copy a server make a cluster of their own with `./servers scratch`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "in a test anything unexpected is a failure"
)]

mod conformance;
mod consumers;
mod errors;
mod fixture;
mod given_up;
mod handlers;
mod inbox;
mod outbox;
mod pipelined;
mod poolers;
#[path = "../../../idem-sql/tests/shared/scratch.rs"]
mod scratch;
mod servers;
mod tls;
