//! The worker from outside: real processes on a real broker and a real database, killed, stopped and deployed, and the
//! ledger read back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and says why"
)]

#[path = "../../../idem-service/tests/it/browser.rs"]
mod browser;
mod chain;
mod chaos;
#[path = "../shared/database.rs"]
mod database;
mod deploys;
mod dynamodb;
mod fixture;
#[path = "../shared/flood.rs"]
mod flood;
mod floods;
mod inbox;
#[path = "../shared/input.rs"]
mod input;
mod large;
mod later;
#[path = "../../../idem-service/tests/it/looks.rs"]
mod looks;
mod outages;
#[path = "../shared/own_servers.rs"]
mod own_servers;
mod page;
mod positions;
#[path = "../shared/purchase.rs"]
mod purchase;
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
mod start;
mod storm;
mod topic;
mod traces;
#[path = "../shared/worker.rs"]
mod worker;

/// Few, so that many purchases change one row.
const CUSTOMERS: i64 = 100;
