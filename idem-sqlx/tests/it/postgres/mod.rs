//! The store on a real PostgreSQL: `IDEM_POSTGRES_URL`, as `./servers url postgres` prints it. Tests that restart, stop or
//! copy a server make a cluster of their own with `./servers scratch`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "in a test anything unexpected is a failure"
)]

mod bookkeeping;
mod claims;
mod cleanup;
mod commits;
mod conformance;
mod consumers;
mod crashes;
mod due;
mod errors;
mod failover;
mod fixture;
mod full_disk;
mod given_up;
mod handlers;
mod inbox;
mod lookups;
mod outbox;
mod poolers;
#[cfg(feature = "failpoints")]
mod prove;
mod roles;
mod schema;
#[path = "../../../../idem-sql/tests/shared/scratch.rs"]
mod scratch;
mod servers;
mod stolen;
mod usurpers;
mod writers;
