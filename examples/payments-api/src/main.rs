//! Payments over HTTP: one debit and one answer for each `Idempotency-Key`, whatever clients, networks and processes do.

mod bearer;
mod books;
mod postgres;
mod problems;
mod sqlite;
mod tokio_postgres;
mod transactions;

use std::process::ExitCode;

use idem_service::{Api, HttpService};

use self::{books::Books, transactions::Payments};

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if let Err(error) = idem_testkit::failpoints::arm_from_env() {
        tracing::error!("{error}");
        return ExitCode::FAILURE;
    }
    #[cfg(all(feature = "failpoints", idem_bugs))]
    if let Err(error) = idem_testkit::bugs::plant_from_env() {
        tracing::error!("{error}");
        return ExitCode::FAILURE;
    }
    HttpService::new("payments")
        .configured(async |service: HttpService, payments: Payments| {
            Ok(service
                .publishes_to(payments.announce.clone())
                .postgres(api(&payments, postgres::TABLES))
                .tokio_postgres(api(&payments, postgres::TABLES))
                .sqlite(api(&payments, sqlite::TABLES)))
        })
        .run()
}

/// The routes on one store. Keys are those of the tenant that the bearer token names.
fn api<S: Books>(payments: &Payments, tables: &'static str) -> Api<S> {
    let payments = payments.clone();
    Api::new(|opened| transactions::routes(opened, payments))
        .idempotency(|idempotency| idempotency.tenant(bearer::tenant).problem_types("/problems/"))
        .tables(tables)
}
