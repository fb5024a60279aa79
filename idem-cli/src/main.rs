//! The command `idem`: what an operator does with records, consumers, dead letters and the schema.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what a command does")]

mod audit;
mod command_line;
mod commands;
mod confirm;
mod database;
mod exit;
mod report;
mod spans;
mod sqlite;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    command_line::CommandLine,
    exit::{Exit, Failure},
};

fn main() -> ExitCode {
    let exit = match CommandLine::try_parse() {
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

fn run(line: CommandLine) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Bug, format!("the system gives no runtime: {error}")))?;
    let is_json = line.is_json();
    audit::start_log(is_json)?;
    let report = runtime.block_on(commands::run(line))?;
    Ok(report.print(is_json))
}
