//! Consumes purchases from RabbitMQ into a ledger, each exactly once.

use std::process::ExitCode;

use idem_service::{Effects, Handlers, Service, amqp::Amqp};
use ledger::{Ledger, POSTGRES_TABLES, SQLITE_TABLES};

fn main() -> ExitCode {
    Service::new("ledger", Effects::InTransaction)
        .postgres(Handlers::new(Ledger).batch(Ledger).tables(POSTGRES_TABLES))
        .tokio_postgres(Handlers::new(Ledger).batch(Ledger).tables(POSTGRES_TABLES))
        .sqlite(Handlers::new(Ledger).batch(Ledger).tables(SQLITE_TABLES))
        .run::<Amqp>()
}
