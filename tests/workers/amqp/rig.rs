//! Consumes purchases from RabbitMQ into a ledger on each store, for the tests beside it.

use std::{process::ExitCode, time::Duration};

use idem_service::{Amqp, clap, values};
use ledger::rig::BrokerFlags;

/// The settings of RabbitMQ that other workers have in code.
#[derive(Debug, clap::Args)]
struct Flags {
    /// The consumer_timeout of the broker, where it is not the broker's own default
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = values::span)]
    consumer_timeout: Duration,
}

impl BrokerFlags<Amqp> for Flags {
    fn set(self, amqp: Amqp) -> Amqp {
        amqp.consumer_timeout(self.consumer_timeout)
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if idem_testkit::failpoints::arm_from_env().is_err() {
        return ExitCode::FAILURE;
    }
    ledger::rig::run::<Amqp, Flags>(std::env::args_os()).into()
}
