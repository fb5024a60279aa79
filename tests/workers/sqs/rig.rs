//! Consumes purchases from SQS into a ledger on each store, for the tests beside it.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum;
use idem_service::{Sqs, clap, idem_sqs::Envelope, values};
use ledger::rig::BrokerFlags;

/// The settings of SQS that other workers have in code.
#[derive(Debug, clap::Args)]
struct Flags {
    /// The envelope around the producer's message [default: none]
    #[arg(long, value_name = "WHAT")]
    envelope: Option<EnvelopeFlag>,

    /// How long SQS hides a message from others before it must be extended; longer than --handler-deadline
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::span)]
    visibility: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EnvelopeFlag {
    Sns,
    #[value(name = "eventbridge")]
    EventBridge,
}

impl BrokerFlags<Sqs> for Flags {
    fn set(self, sqs: Sqs) -> Sqs {
        let sqs = sqs.visibility(self.visibility);
        match self.envelope {
            None => sqs,
            Some(EnvelopeFlag::Sns) => sqs.envelope(Envelope::Sns),
            Some(EnvelopeFlag::EventBridge) => sqs.envelope(Envelope::EventBridge),
        }
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    if idem_testkit::failpoints::arm_from_env().is_err() {
        return ExitCode::FAILURE;
    }
    ledger::rig::run::<Sqs, Flags>(std::env::args_os()).into()
}
