//! The SQL stores of idem on [sqlx](https://docs.rs/sqlx): a handler's writes through its transaction and the record of
//! the message's key are committed together or not at all.
//!
//! | feature | store | for |
//! |---|---|---|
//! | `postgres` | `PostgresStore` | any number of workers on one server |
//! | `sqlite` | `SqliteStore` | one process on one machine, nothing to install: one writer, in a file |
//!
//! No feature is on by default. A handler is given the connection of its unit of work, `&mut PgConnection` or
//! `&mut SqliteConnection`, and runs its statements on that; sqlx's own nested transactions work on it.
//!
//! The crate re-exports [`idem_core`] and [`idem_sql`] whole, so that versions agree.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use idem_core;
pub use idem_sql;
pub use idem_sql::{MigrateError, PublishPlainError};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(all(feature = "failpoints", feature = "postgres"))]
pub use self::postgres::PostgresScratch;
#[cfg(feature = "postgres")]
pub use self::postgres::{Pooler, PostgresOptions, PostgresOutbox, PostgresSession, PostgresStore, PostgresUnit};
#[cfg(all(feature = "failpoints", feature = "sqlite"))]
pub use self::sqlite::SqliteScratch;
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteOptions, SqliteOutbox, SqliteSession, SqliteStore, SqliteUnit, Synchronous};
