//! One file a command.

mod cleanup;
mod completions;
mod consumers;
mod dead_letters;
mod doctor;
mod forget;
mod migrate;
mod retention;
mod show;
mod stats;
mod stuck;
mod workers;

use crate::{
    command_line::{Command, CommandLine},
    database::Database,
    exit::Failure,
    report::Report,
};

/// Does what the command line says.
pub(crate) async fn run(line: CommandLine) -> Result<Report, Failure> {
    let target = &line.target;
    match line.command {
        Command::Completions { shell } => Ok(completions::run(shell)),
        Command::Migrate(command) => migrate::run(target, command).await,
        Command::Cleanup(clean) => cleanup::run(target, &clean).await,
        Command::Doctor => doctor::run(target).await,
        Command::Consumers(command) => consumers::run(Database::open(target).await?, command).await,
        Command::Show(show) => show::run(Database::open(target).await?, &show).await,
        Command::Forget(forget) => forget::run(Database::open(target).await?, &forget).await,
        Command::DeadLetters(command) => dead_letters::run(Database::open(target).await?, command).await,
        Command::Stats => stats::run(Database::open(target).await?).await,
        Command::Workers(limit) => workers::run(Database::open(target).await?, &limit).await,
        Command::Retention(command) => retention::run(Database::open(target).await?, command).await,
        Command::Stuck(limit) => stuck::run(Database::open(target).await?, &limit).await,
    }
}
