//! The stores that a worker runs on: opens the one that the settings name, and prepares its tables where that is asked for.

pub(crate) mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

pub use self::open::{Database, DatabaseSettings};
#[cfg(feature = "postgres")]
pub use self::postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use self::sqlite::Sqlite;
#[cfg(feature = "tokio-postgres")]
pub use self::tokio_postgres::TokioPostgres;
