//! The worker from outside: real processes on a real broker and a real database, killed, stopped and cut off, and the
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
mod deliveries;
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
#[path = "../shared/purchase.rs"]
mod purchase;
mod queue;
mod refusals;
#[path = "../shared/chain.rs"]
mod shared_chain;
#[path = "../shared/chaos.rs"]
mod shared_chaos;
#[path = "../shared/inbox.rs"]
mod shared_inbox;
#[path = "../shared/page.rs"]
mod shared_page;
#[path = "../shared/storm.rs"]
mod shared_storm;
mod signs;
mod start;
mod storm;
#[path = "../shared/worker.rs"]
mod worker;

/// Many, because nothing keeps those of one customer out of two lanes, whose transactions would then wait for each other in
/// both directions.
const CUSTOMERS: i64 = 5_000;
