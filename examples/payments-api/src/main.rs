//! Payments over HTTP: one debit and one answer for each `Idempotency-Key`, whatever clients, networks and processes do.

mod bearer;
mod books;
mod postgres;
mod problems;
mod transactions;

use std::process::ExitCode;

use idem_service::prelude::*;

use self::transactions::Payments;

fn main() -> ExitCode {
    let service = async |payments: Payments| Ok(transactions::service(payments, postgres::TABLES));
    HttpService::<PostgresStore>::from_args(service).run()
}
