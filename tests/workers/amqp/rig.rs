//! Consumes purchases from RabbitMQ into a ledger on each store, for the tests beside it.

use std::process::ExitCode;

use idem_service::Amqp;

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if idem_testkit::failpoints::arm_from_env().is_err() {
        return ExitCode::FAILURE;
    }
    ledger::rig::run::<Amqp>(std::env::args_os()).into()
}
