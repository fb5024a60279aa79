//! What an application hands over: its handlers and tables for each store, and what they do.

use std::{ffi::OsString, fmt, process::ExitCode};

use idem_core::{BatchHandler, DedupConsumerBuilder, Effects, Handler, Store};
use idem_sqlx::{PostgresStore, SqliteStore};

use crate::{broker::Broker, exit::Exit, run};

/// A worker, short of its settings: the handlers for each store that it supports.
///
/// Which store is used is said by `--database-url` and `--store`; one without handlers is refused.
#[derive(Debug)]
#[must_use]
pub struct Service {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) effects: Effects,
    pub(crate) postgres: Option<Handlers<PostgresStore>>,
    pub(crate) tokio_postgres: Option<Handlers<idem_tokio_postgres::PostgresStore>>,
    pub(crate) sqlite: Option<Handlers<SqliteStore>>,
}

impl Service {
    /// A worker whose handlers have this name, to which a consumer is
    /// [bound](idem_core::DedupConsumerBuilder::handler_name) at its first start: keep it over versions of one handler.
    pub fn new(name: &'static str, effects: Effects) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self { name, version, effects, postgres: None, tokio_postgres: None, sqlite: None }
    }

    /// The application's version, which is noted with each record. Defaults to idem's.
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// The handlers on PostgreSQL.
    pub fn postgres(mut self, handlers: Handlers<PostgresStore>) -> Self {
        self.postgres = Some(handlers);
        self
    }

    /// The handlers on PostgreSQL through tokio-postgres, for `--store tokio-postgres`; they may run at once, with
    /// `--handlers pipelined`.
    pub fn tokio_postgres(mut self, handlers: Handlers<idem_tokio_postgres::PostgresStore>) -> Self {
        self.tokio_postgres = Some(handlers);
        self
    }

    /// The handlers on SQLite.
    pub fn sqlite(mut self, handlers: Handlers<SqliteStore>) -> Self {
        self.sqlite = Some(handlers);
        self
    }

    /// Runs the worker on the broker `B`, with the settings of the command line and the environment, until it is
    /// stopped. Call it as the whole of `main`: it installs the handlers of SIGTERM and SIGINT and the log.
    #[must_use]
    pub fn run<B: Broker>(self) -> ExitCode {
        self.run_with::<B>(std::env::args_os()).into()
    }

    /// The same with a command line of the caller's, whose first element is the program's name. The process is to end
    /// with this status: what passed the drain deadline still runs.
    pub fn run_with<B: Broker>(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        run::run::<B>(self, arguments.into_iter().collect())
    }
}

/// Gives a consumer its handler. A closure, so that handlers of any type stand in one field.
type Attach<S> = Box<dyn FnOnce(DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> + Send>;

/// What an application does with messages on one store, and the tables it needs there.
#[must_use]
pub struct Handlers<S: Store> {
    pub(crate) each: Attach<S>,
    pub(crate) batch: Option<Attach<S>>,
    pub(crate) tables: &'static str,
}

impl<S: Store> Handlers<S> {
    /// A handler that is called for each message.
    pub fn new(handler: impl Handler<S>) -> Self {
        Self { each: Box::new(|consumer| consumer.handler(handler)), batch: None, tables: "" }
    }

    /// The same effect with set-based statements, for `--batch-handler`.
    pub fn batch(mut self, handler: impl BatchHandler<S>) -> Self {
        self.batch = Some(Box::new(|consumer| consumer.batch_handler(handler)));
        self
    }

    /// The statements that `--create-tables` runs, in one transaction; workers that start together run them one after
    /// the other. They change nothing where the tables are there: `CREATE TABLE IF NOT EXISTS`.
    pub fn tables(mut self, statements: &'static str) -> Self {
        self.tables = statements;
        self
    }
}

impl<S: Store> fmt::Debug for Handlers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("batch", &self.batch.is_some()).field("tables", &self.tables).finish()
    }
}
