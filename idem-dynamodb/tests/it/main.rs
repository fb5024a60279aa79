//! The store on a server that speaks DynamoDB's protocol, at `IDEM_DYNAMODB_URL`, as `./servers url dynamodb` prints it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "anything unexpected in a test is a failure"
)]

mod commits;
mod conformance;
mod copies;
mod due;
mod fixture;
mod handlers;
mod letters;
mod operators;
mod tables;
