//! Consumes purchases from Kafka into a ledger on each store, for the tests beside it.

use std::process::ExitCode;

use clap::ValueEnum;
use idem_service::{Kafka, clap, idem_kafka::LaneBy};
use ledger::rig::BrokerFlags;

/// The settings of Kafka that other workers have in code.
#[derive(Debug, clap::Args)]
struct Flags {
    /// Which messages are handled in turn: those with one record key, or all of a partition
    #[arg(long, value_name = "WHAT", default_value = "key")]
    lane_by: LaneByFlag,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LaneByFlag {
    Partition,
    Key,
}

impl BrokerFlags<Kafka> for Flags {
    fn set(self, kafka: Kafka) -> Kafka {
        kafka.lane_by(match self.lane_by {
            LaneByFlag::Partition => LaneBy::Partition,
            LaneByFlag::Key => LaneBy::Key,
        })
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if idem_testkit::failpoints::arm_from_env().is_err() {
        return ExitCode::FAILURE;
    }
    ledger::rig::run::<Kafka, Flags>(std::env::args_os()).into()
}
