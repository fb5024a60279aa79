//! The routes of `examples/payments-api` from outside: real processes on a real database, killed and cut off, and the books read back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

mod announce;
mod canary;
mod client;
mod collections;
mod contract;
mod copies;
#[path = "../shared/database.rs"]
mod database;
mod deaths;
mod dynamodb;
mod fixture;
mod openapi;
mod outages;
#[allow(dead_code, reason = "here nothing is sent to a topic")]
#[path = "../shared/purchase.rs"]
mod purchase;
mod readme;
mod seen;
#[allow(dead_code, reason = "of the workers' ledger")]
#[path = "../shared/dynamodb.rs"]
mod shared_dynamodb;
mod slow;
mod stops;
#[allow(dead_code, reason = "here nothing is sent to a topic")]
#[path = "../kafka/topic.rs"]
mod topic;
#[path = "../shared/worker.rs"]
mod worker;

/// Of the purchases that workers are sent; here they come over HTTP.
#[allow(dead_code, reason = "the workers' own files have it")]
const CUSTOMERS: i64 = 100;
