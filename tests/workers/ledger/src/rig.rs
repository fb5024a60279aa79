//! A rig: the worker that the black-box tests run, on each store. Its flags are a contract; those that other workers have in
//! code are its own.

use std::{ffi::OsString, path::PathBuf};

use clap::ValueEnum;
use idem_core::{BoxError, Concurrency, Effects, Handler, handler::BatchHandler};
use idem_service::{Broker, Database, Exit, Service};

use crate::{Ledger, POSTGRES_TABLES, SQLITE_TABLES, author::Author};

/// The flags of a rig beyond those of every worker.
#[derive(Debug, clap::Args)]
struct Own {
    /// Send an event for each purchase to this topic or queue (on SQS the queue's URL) of the worker's broker [default: none]
    #[arg(long, value_name = "DESTINATION")]
    announce: Option<String>,

    /// The client library of the database; tokio-postgres is for PostgreSQL only [default: sqlx]
    #[arg(long, value_name = "NAME")]
    store: Option<Client>,

    /// Use the set-based handler
    #[arg(long)]
    batch_handler: bool,

    /// How the handlers of one unit run; pipelined, at once on one transaction, needs --store tokio-postgres
    #[arg(long, value_name = "POLICY", default_value = "in-order")]
    handlers: Handlers,

    #[command(flatten)]
    author: Author,
}

/// The flags of a rig for its broker's settings in code.
pub trait BrokerFlags<B>: clap::Args + Send + 'static {
    /// Sets what they say.
    fn set(self, broker: B) -> B;
}

/// Of a broker without any.
#[derive(Debug, clap::Args)]
pub struct NoFlags {}

impl<B> BrokerFlags<B> for NoFlags {
    fn set(self, broker: B) -> B {
        broker
    }
}

#[derive(Debug, clap::Args)]
struct All<F: clap::Args> {
    #[command(flatten)]
    own: Own,
    #[command(flatten)]
    broker: F,
}

/// The words of `--store`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// The usual one.
    Sqlx,
    /// For PostgreSQL alone.
    TokioPostgres,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Handlers {
    InOrder,
    Pipelined,
}

/// A store, and the client of its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// PostgreSQL on sqlx.
    Postgres,
    /// PostgreSQL on tokio-postgres.
    TokioPostgres,
    /// SQLite.
    Sqlite,
    /// DynamoDB.
    Dynamo,
}

impl Store {
    /// The store that these arguments name, or the variables and the file that a worker reads too. What is wrong with them, the
    /// worker itself reports.
    #[must_use]
    pub fn of(arguments: &[OsString]) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let file = given(arguments, "config").or_else(|| variable("IDEM_CONFIG")).map(PathBuf::from);
        let text = file.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        let in_file = |name: &str| table.get(name).and_then(toml::Value::as_str).map(str::to_owned);
        let setting = |name: &str, variables: [&str; 2]| {
            let of_file = |name: &str| std::fs::read_to_string(variable(&format!("{name}_FILE"))?).ok();
            let of_variable = || variables.into_iter().find_map(|name| variable(name).or_else(|| of_file(name)));
            given(arguments, name).or_else(of_variable).or_else(|| in_file(name))
        };
        let url = setting("database-url", ["DATABASE_URL", "IDEM_DATABASE_URL"]).unwrap_or_default();
        let client = setting("store", ["IDEM_STORE"; 2]);
        match client.as_deref() {
            _ if url.starts_with("sqlite:") => Self::Sqlite,
            _ if url.starts_with("dynamodb:") => Self::Dynamo,
            Some("tokio-postgres") => Self::TokioPostgres,
            Some(_) | None => Self::Postgres,
        }
    }
}

/// The value of a flag on the command line.
fn given(arguments: &[OsString], name: &str) -> Option<String> {
    let flag = format!("--{name}");
    let mut arguments = arguments.iter().filter_map(|argument| argument.to_str());
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix(&flag) {
            Some("") => return arguments.next().map(str::to_owned),
            Some(rest) if rest.starts_with('=') => return rest.get(1..).map(str::to_owned),
            Some(_) | None => {}
        }
    }
    None
}

/// Runs the ledger on the broker `B` with this command line, whose first element is the program's name.
pub fn run<B: Broker, F: BrokerFlags<B>>(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    run_around::<B, F, Ledger>(arguments, |ledger| ledger)
}

/// The same with something around the ledger.
pub fn run_around<B, F, H>(arguments: impl IntoIterator<Item = OsString>, around: fn(Ledger) -> H) -> Exit
where
    B: Broker,
    F: BrokerFlags<B>,
    H: Handles<idem_sqlx::PostgresStore>
        + Handles<idem_tokio_postgres::PostgresStore>
        + Handles<idem_sqlx::SqliteStore>
        + Handles<idem_dynamodb::DynamoStore>,
{
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match Store::of(&arguments) {
        Store::Postgres => run_on::<B, F, idem_sqlx::PostgresStore, H>(arguments, around, POSTGRES_TABLES),
        Store::TokioPostgres => {
            run_on::<B, F, idem_tokio_postgres::PostgresStore, H>(arguments, around, POSTGRES_TABLES)
        }
        Store::Sqlite => run_on::<B, F, idem_sqlx::SqliteStore, H>(arguments, around, SQLITE_TABLES),
        // --migrate makes the one table, in which the ledger's items are too.
        Store::Dynamo => run_on::<B, F, idem_dynamodb::DynamoStore, H>(arguments, around, ""),
    }
}

/// Both kinds of handlers on a store.
pub trait Handles<S: idem_core::Store>: Handler<S> + BatchHandler<S> {}

impl<S: idem_core::Store, H: Handler<S> + BatchHandler<S>> Handles<S> for H {}

fn run_on<B, F, D, H>(arguments: Vec<OsString>, around: fn(Ledger) -> H, tables: &'static str) -> Exit
where
    B: Broker,
    F: BrokerFlags<B>,
    D: Database,
    H: Handles<D::Store>,
{
    let service = async move |All { own, broker }: All<F>| -> Result<Service<B, D>, BoxError> {
        if own.store == Some(Client::TokioPostgres) && D::CLIENT != "tokio-postgres" {
            return Err("--store tokio-postgres needs a --database-url of PostgreSQL: leave it out".into());
        }
        let ledger = || around(Ledger::announcing(own.announce.as_deref()));
        let mut service = Service::new("ledger", Effects::InTransaction, ledger()).tables(tables);
        if own.batch_handler {
            service = service.batch(ledger());
        }
        if own.handlers == Handlers::Pipelined {
            service = service.consumer(|consumer| consumer.handlers(Concurrency::pipelined()));
        }
        let service = service.broker(|flags| broker.set(flags));
        Ok(own.author.set(service.publish_to(own.announce)))
    };
    Service::from_args(service).run_with(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_that_of_the_url_and_the_client() {
        for (line, store) in [
            ("--database-url postgres://h/d", Store::Postgres),
            ("--lanes 2 --database-url=postgres://h/d --store tokio-postgres", Store::TokioPostgres),
            ("--store=tokio-postgres --database-url sqlite:x", Store::Sqlite),
            ("--database-url mysql://h/d --store sqlx", Store::Postgres),
            ("--database-url dynamodb:purchases?region=eu-central-1", Store::Dynamo),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(Store::of(&arguments), store, "{line}");
        }
    }
}
