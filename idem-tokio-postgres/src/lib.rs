#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use idem_core;
pub use idem_sql;
pub use idem_sql::{MigrateError, Pooler, PublishPlainError};
pub use tokio_postgres;

mod append;
mod claim;
mod connection;
mod driver;
mod error;
mod inbox;
mod link;
mod migrate;
mod options;
mod outbox;
mod pool;
mod pooler;
mod session;
mod statements;
mod store;
mod text;
mod tls;
mod unit;

pub use self::{
    connection::{PostgresConnection, PostgresTransaction, RunStatementError},
    options::PostgresOptions,
    outbox::PostgresOutbox,
    session::PostgresSession,
    store::PostgresStore,
    unit::PostgresUnit,
};
