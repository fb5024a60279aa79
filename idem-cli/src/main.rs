//! The command `idem`, for an operator of records, consumers, dead letters and the schema.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what a command does")]

mod audit;
mod command_line;
mod commands;
mod confirm;
mod database;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod exit;
mod operators;
mod report;
mod spans;
mod sqlite;

use std::{path::Path, process::ExitCode};

use clap::Parser as _;

use crate::{
    command_line::{Command, CommandLine, Outbox},
    exit::{Exit, Failure},
};

fn main() -> ExitCode {
    let exit = match CommandLine::try_parse() {
        Ok(CommandLine { command: Command::Outbox(Outbox::Relay { config }), .. }) => return relay(&config),
        Ok(line) => run(line).unwrap_or_else(Failure::tell),
        Err(error) if !error.use_stderr() => {
            // Help or the version. A reader that went away wants no help any more.
            let _ = error.print();
            Exit::Done
        }
        Err(error) => Failure::refused(error.render().to_string()).tell(),
    };
    exit.into()
}

/// A relay is the whole of its process, with a runtime, a log and exit statuses of its own: those of a worker.
#[cfg(feature = "relay")]
fn relay(config: &Path) -> ExitCode {
    idem_service::relay(config).into()
}

#[cfg(not(feature = "relay"))]
fn relay(_: &Path) -> ExitCode {
    let why = "this build of idem links no broker's client, so that it cannot relay: build it with the broker's feature, such \
               as `cargo install idem-cli --features kafka` (or amqp, or sqs), or have a worker relay";
    Failure::refused(why).tell().into()
}

fn run(mut line: CommandLine) -> Result<Exit, Failure> {
    // Those that ask no database have no use for it.
    if !matches!(line.command, Command::New(_) | Command::Completions { .. }) {
        line.target.read_file()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Bug, format!("the system gives no runtime: {error}")))?;
    let is_json = line.is_json();
    audit::start_log(is_json)?;
    let report = runtime.block_on(commands::run(line))?;
    Ok(report.print(is_json))
}
