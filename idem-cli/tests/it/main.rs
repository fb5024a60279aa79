//! The command as a process, on a real PostgreSQL: `IDEM_POSTGRES_URL`, as `./servers url postgres` prints it.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test anything unexpected is a failure"
)]

mod answers;
mod audit;
mod cleaning;
mod consumers;
mod dead_letters;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "dynamodb")]
#[allow(dead_code, reason = "its own tests use all of it")]
#[path = "../../../idem-dynamodb/tests/it/fixture.rs"]
mod dynamodb_fixture;
mod erase;
mod first_aid;
mod fixture;
mod forget;
mod guide;
mod inbox;
mod kept;
mod migrating;
mod outbox;
mod progress;
#[cfg(all(feature = "amqp", feature = "webhooks"))]
#[allow(dead_code, reason = "its own tests use all of it")]
#[path = "../../../idem-webhook/tests/it/send/receiver.rs"]
mod receiver;
#[cfg(all(feature = "amqp", feature = "webhooks"))]
mod relay;
mod requests;
mod schema;
mod secrets;
mod seeing;
mod sqlite;
mod unread;
mod usurpers;
