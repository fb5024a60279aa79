//! The worker from outside: real processes on an emulated SQS and a real database, killed, stopped and deployed, and the
//! ledger read back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

mod breaker;
#[path = "../../../idem-service/tests/it/browser.rs"]
mod browser;
mod chain;
mod chaos;
mod contract;
#[path = "../shared/database.rs"]
mod database;
mod deaths;
mod dynamodb;
mod fixture;
#[path = "../shared/flood.rs"]
mod flood;
mod floods;
mod inbox;
#[path = "../shared/input.rs"]
mod input;
#[path = "../../../idem-service/tests/it/looks.rs"]
mod looks;
#[path = "../shared/own_servers.rs"]
mod own_servers;
mod page;
#[path = "../shared/purchase.rs"]
mod purchase;
mod queue;
mod refusals;
#[path = "../shared/chain.rs"]
mod shared_chain;
#[path = "../shared/chaos.rs"]
mod shared_chaos;
#[path = "../shared/dynamodb.rs"]
mod shared_dynamodb;
#[path = "../shared/dynamodb_deaths.rs"]
mod shared_dynamodb_deaths;
#[path = "../shared/inbox.rs"]
mod shared_inbox;
#[path = "../shared/page.rs"]
mod shared_page;
#[path = "../shared/storm.rs"]
mod shared_storm;
mod storm;
#[path = "../shared/worker.rs"]
mod worker;

/// Few, so that many purchases change one row.
const CUSTOMERS: i64 = 100;
