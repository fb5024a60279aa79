//! Consumes purchases from Kafka into a ledger, each exactly once.

use std::process::ExitCode;

use idem_service::{Effects, Handlers, Service, kafka::Kafka};
use ledger::{Ledger, LedgerSettings, POSTGRES_TABLES, SQLITE_TABLES};

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if idem_testkit::failpoints::arm_from_env().is_err() {
        return ExitCode::FAILURE;
    }
    Service::new("ledger", Effects::InTransaction)
        .configured(async |service: Service, settings: LedgerSettings| {
            let ledger = || Ledger::with(&settings);
            Ok(service
                .publishes_to(settings.announce.clone())
                .postgres(Handlers::new(ledger()).batch(ledger()).tables(POSTGRES_TABLES))
                .tokio_postgres(Handlers::new(ledger()).batch(ledger()).tables(POSTGRES_TABLES))
                .sqlite(Handlers::new(ledger()).batch(ledger()).tables(SQLITE_TABLES)))
        })
        .run::<Kafka>()
}
