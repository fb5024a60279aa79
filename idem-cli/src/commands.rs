//! One file a command.

pub(crate) mod cleanup;
mod completions;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
mod doctor;
pub(crate) mod erase;
pub(crate) mod forget;
pub(crate) mod forgotten;
mod migrate;
pub(crate) mod new;
pub(crate) mod outbox;
pub(crate) mod progress;
pub(crate) mod requests;
pub(crate) mod retention;
pub(crate) mod services;
pub(crate) mod show;
pub(crate) mod standing;
mod stats;
pub(crate) mod stuck;
mod workers;

use crate::{
    command_line::{Command, CommandLine, Consumers},
    database::Database,
    exit::Failure,
    report::Report,
    sqlite,
};

/// Runs the command.
pub(crate) async fn run(line: CommandLine) -> Result<Report, Failure> {
    let target = &line.target;
    let needs_database = !matches!(line.command, Command::Completions { .. } | Command::New(_));
    if needs_database && sqlite::is_meant(target) {
        return sqlite::run(target, line.command).await;
    }
    match line.command {
        Command::New(new) => new::run(&new),
        Command::Completions { shell } => Ok(completions::run(shell)),
        Command::Migrate(command) => migrate::run(target, command).await,
        Command::Cleanup(clean) => cleanup::run(target, &clean).await,
        Command::Doctor(doctor) => doctor::run(target, &doctor).await,
        Command::Consumers(command) => consumers::run(target, command).await,
        Command::Pause(because) => consumers::run(target, Consumers::Pause(because)).await,
        Command::Resume { consumer } => consumers::run(target, Consumers::Resume { consumer }).await,
        Command::Show(show) => show::run(Database::open(target).await?, &show).await,
        Command::Forget(forget) => forget::run(Database::open(target).await?, &forget).await,
        Command::Forgotten(command) => forgotten::run(Database::open(target).await?, command).await,
        Command::Erase(erase) => erase::run(Database::open(target).await?, &erase).await,
        Command::DeadLetters(command) => dead_letters::run(Database::open(target).await?, command).await,
        Command::Waiting(asked) => dead_letters::run(Database::open(target).await?, asked.list()).await,
        Command::Outbox(command) => outbox::run(target, command).await,
        Command::Stats => stats::run(Database::open(target).await?).await,
        Command::Workers(limit) => workers::run(Database::open(target).await?, &limit).await,
        Command::Retention(command) => retention::run(Database::open(target).await?, command).await,
        Command::Stuck(limit) => stuck::run(target, &limit).await,
    }
}
