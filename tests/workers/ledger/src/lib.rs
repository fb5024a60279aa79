//! The application of the rigs, which the black-box tests run: each purchase is a row, and each customer has a total.
//!
//! `purchase.rs` is the form of a message; `postgres.rs` and `sqlite.rs` have the tables, and they and
//! `tokio_postgres.rs` each the same effect twice, message by message and set-based; `dynamodb.rs` has it message by message. `announce.rs` publishes each purchase,
//! where that is asked for. `rig.rs` is the worker, on the store that its flags name.

mod announce;
#[cfg(feature = "rig")]
mod author;
#[cfg(feature = "demo")]
pub mod demo;
mod dynamodb;
mod postgres;
mod purchase;
#[cfg(feature = "rig")]
pub mod rig;
mod sqlite;
mod tokio_postgres;

use std::sync::LazyLock;

use idem_core::Message;

pub use self::{postgres::POSTGRES_TABLES, purchase::Purchase, sqlite::SQLITE_TABLES};

/// The handlers, for each store.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Where purchases are announced.
    announce_to: Option<Box<str>>,
}

/// Which process wrote a row, for people who look at it: `host:process id`.
static HANDLED_BY: LazyLock<String> = LazyLock::new(|| {
    let host = std::env::var("HOSTNAME").or_else(|_| std::fs::read_to_string("/etc/hostname")).unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
});

/// The key under which idem handles the message.
fn key(message: &Message) -> &str {
    message.key().map_or("", |key| key.as_str())
}
