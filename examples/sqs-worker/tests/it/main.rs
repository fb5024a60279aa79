//! The worker from outside: real processes on an emulated SQS and a real database, killed, stopped and deployed, and the
//! ledger read back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and says why"
)]

mod breaker;
mod contract;
#[path = "../../../ledger/tests/shared/database.rs"]
mod database;
mod deaths;
#[path = "../../../ledger/tests/shared/flood.rs"]
mod flood;
mod floods;
#[path = "../../../ledger/tests/shared/input.rs"]
mod input;
#[path = "../../../ledger/tests/shared/purchase.rs"]
mod purchase;
mod queue;
mod refusals;
#[path = "../../../ledger/tests/shared/storm.rs"]
mod shared_storm;
mod stage;
mod storm;
#[path = "../../../ledger/tests/shared/worker.rs"]
mod worker;

/// Few, so that many purchases change one row.
const CUSTOMERS: i64 = 100;
