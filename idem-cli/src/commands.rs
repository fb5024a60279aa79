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

#[cfg(feature = "dynamodb")]
use crate::dynamodb;
use crate::{
    command_line::{
        Clean, Command, CommandLine, Consumers, DeadLetters, Doctor, Erase, Forget, Forgotten, Migrate, Outbox,
        Retention, Show, Target, shared::Limit,
    },
    database::Database,
    exit::Failure,
    operators::{Operators, serve},
    report::Report,
    sqlite,
};

/// Runs the command.
pub(crate) async fn run(line: CommandLine) -> Result<Report, Failure> {
    let target = &line.target;
    match line.command {
        Command::New(new) => new::run(&new),
        Command::Completions { shell } => Ok(completions::run(shell)),
        command if sqlite::is_meant(target) => serve(&sqlite::Sqlite(target), command).await,
        #[cfg(feature = "dynamodb")]
        command if is_on_dynamodb(target) => serve(&dynamodb::Dynamo::open(target).await?, command).await,
        #[cfg(not(feature = "dynamodb"))]
        _ if is_on_dynamodb(target) => Err(Failure::refused(
            "this build of idem links no client of DynamoDB: build it with `cargo install idem-cli --features dynamodb`",
        )),
        command => serve(&Postgres(target), command).await,
    }
}

fn is_on_dynamodb(target: &Target) -> bool {
    target.database_url.as_deref().is_some_and(|url| url.starts_with("dynamodb:"))
}

/// PostgreSQL, which every verb is for.
struct Postgres<'t>(&'t Target);

impl Postgres<'_> {
    async fn open(&self) -> Result<Database, Failure> {
        Database::open(self.0).await
    }
}

impl Operators for Postgres<'_> {
    async fn migrate(&self, command: Migrate) -> Result<Report, Failure> {
        migrate::run(self.0, command).await
    }

    async fn doctor(&self, asked: &Doctor) -> Result<Report, Failure> {
        doctor::run(self.0, asked).await
    }

    async fn consumers(&self, command: Consumers) -> Result<Report, Failure> {
        consumers::run(self.0, command).await
    }

    async fn show(&self, asked: &Show) -> Result<Report, Failure> {
        show::run(self.open().await?, asked).await
    }

    async fn forget(&self, asked: &Forget) -> Result<Report, Failure> {
        forget::run(self.open().await?, asked).await
    }

    async fn erase(&self, asked: &Erase) -> Result<Report, Failure> {
        erase::run(self.open().await?, asked).await
    }

    async fn dead_letters(&self, command: DeadLetters) -> Result<Report, Failure> {
        dead_letters::run(self.open().await?, command).await
    }

    async fn forgotten(&self, command: Forgotten) -> Result<Report, Failure> {
        forgotten::run(self.open().await?, command).await
    }

    async fn outbox(&self, command: Outbox) -> Result<Report, Failure> {
        outbox::run(self.0, command).await
    }

    async fn cleanup(&self, asked: &Clean) -> Result<Report, Failure> {
        cleanup::run(self.0, asked).await
    }

    async fn retention(&self, command: Retention) -> Result<Report, Failure> {
        retention::run(self.open().await?, command).await
    }

    async fn stats(&self) -> Result<Report, Failure> {
        stats::run(self.open().await?).await
    }

    async fn workers(&self, limit: &Limit) -> Result<Report, Failure> {
        workers::run(self.open().await?, limit).await
    }

    async fn stuck(&self, limit: &Limit) -> Result<Report, Failure> {
        stuck::run(self.0, limit).await
    }
}
