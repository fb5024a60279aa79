#![doc = include_str!("lib.md")]

pub use idem_core;
pub use idem_schema;
pub use tokio_postgres;

mod books;
mod claim;
mod connection;
mod error;
mod host;
mod lane;
mod letters;
mod migrate;
mod options;
mod pool;
mod pooler;
mod register;
mod session;
mod statements;
mod store;
mod text;
mod tls;
mod unit;
mod verify;

pub use self::{
    connection::{PostgresConnection, PostgresTransaction, RunStatementError},
    lane::PostgresLane,
    migrate::MigratePostgresError,
    options::{PostgresOptions, Statements},
    store::Postgres,
    unit::PostgresUnit,
};
