//! The routes of `examples/payments-api` on each store, for the tests beside it.

#[path = "../../../../examples/payments-api/src/bearer.rs"]
mod bearer;
#[path = "../../../../examples/payments-api/src/books.rs"]
mod books;
#[path = "../../../../examples/payments-dynamodb/src/dynamodb.rs"]
mod dynamodb;
#[path = "../../../../examples/payments-api/src/postgres.rs"]
mod postgres;
#[path = "../../../../examples/payments-api/src/problems.rs"]
mod problems;
mod sqlite;
mod tokio_postgres;
#[path = "../../../../examples/payments-api/src/transactions.rs"]
mod transactions;

use std::{ffi::OsString, process::ExitCode};

use idem_service::{Database, Exit, HttpService, idem_core::BoxError, idem_tokio_postgres};
use ledger::rig::{Client, Store};

use self::{books::Books, transactions::Payments};

/// The flags of the rig beyond those of every service.
#[derive(Debug, clap::Args)]
struct Own {
    #[command(flatten)]
    payments: Payments,

    /// The client library of the database; tokio-postgres is for PostgreSQL only [default: sqlx]
    #[arg(long, value_name = "NAME")]
    store: Option<Client>,
}

/// Bugs that the store on DynamoDB plants by itself.
#[cfg(all(feature = "failpoints", idem_bugs))]
const OF_THE_STORE: [&str; 2] = ["CopyRuns", "CopiesOfOtherTables"];

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if let Err(error) = idem_testkit::failpoints::arm_from_env() {
        tracing::error!("{error}");
        return ExitCode::FAILURE;
    }
    #[cfg(all(feature = "failpoints", idem_bugs))]
    if let Err(error) = idem_testkit::bugs::plant_from_env()
        && !OF_THE_STORE.contains(&&*error.name)
    {
        tracing::error!("{error}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match Store::of(&arguments) {
        Store::Postgres => run::<idem_sqlx::PostgresStore>(arguments, postgres::TABLES),
        Store::TokioPostgres => run::<idem_tokio_postgres::PostgresStore>(arguments, postgres::TABLES),
        Store::Sqlite => run::<idem_sqlx::SqliteStore>(arguments, sqlite::TABLES),
        // --migrate makes the one table.
        Store::Dynamo => run::<idem_dynamodb::DynamoStore>(arguments, ""),
    }
    .into()
}

fn run<D: Database>(arguments: Vec<OsString>, tables: &'static str) -> Exit
where
    D::Store: Books,
{
    let service = async move |own: Own| -> Result<HttpService<D>, BoxError> {
        if own.store == Some(Client::TokioPostgres) && D::CLIENT != "tokio-postgres" {
            return Err("--store tokio-postgres needs a --database-url of PostgreSQL: leave it out".into());
        }
        Ok(transactions::service(own.payments, tables))
    };
    HttpService::from_args(service).run_with(arguments)
}
