//! The worker's settings that a broker's flags need: they are no flags of the broker, and only read.

use std::time::Duration;

use clap::{ArgMatches, Command, FromArgMatches, error::ErrorKind};

use crate::inbox::Part;

/// Settings of every worker.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "each broker reads some of them")]
pub(crate) struct WorkerFlags {
    pub(crate) consumer: String,
    /// How long a handler may have a message of the broker: behind an inbox it has none.
    pub(crate) handler_deadline: Duration,
    pub(crate) drain: Duration,
}

impl clap::Args for WorkerFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for WorkerFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingRequiredArgument);
        let span = |id| matches.try_get_one::<Duration>(id).ok().flatten().copied().ok_or_else(missing);
        let consumer = matches.try_get_one::<String>("consumer").ok().flatten().cloned().ok_or_else(missing)?;
        let part = matches.try_get_one::<Part>("inbox").ok().flatten().copied().unwrap_or(Part::Off);
        let handler_deadline = match part {
            Part::Off => span("handler_deadline")?,
            Part::On | Part::Receive | Part::Process => Duration::ZERO,
        };
        Ok(Self { consumer, handler_deadline, drain: span("drain")? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
