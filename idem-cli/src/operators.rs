//! What an operator can ask of a store: each verb is one method, and each database answers in its own way.

use idem_core::StoreError;

use crate::{
    command_line::{
        Clean, Command, Consumers, DeadLetters, Doctor, Erase, Forget, Forgotten, Migrate, Outbox, Retention, Show,
        shared::Limit,
    },
    exit::{Exit, Failure},
    report::{Report, Row},
};

/// A verb that a store does not have is refused by its name, with what serves instead.
pub(crate) trait Operators {
    async fn migrate(&self, command: Migrate) -> Result<Report, Failure>;
    async fn doctor(&self, asked: &Doctor) -> Result<Report, Failure>;
    async fn consumers(&self, command: Consumers) -> Result<Report, Failure>;
    async fn show(&self, asked: &Show) -> Result<Report, Failure>;
    async fn forget(&self, asked: &Forget) -> Result<Report, Failure>;
    async fn erase(&self, asked: &Erase) -> Result<Report, Failure>;
    async fn dead_letters(&self, command: DeadLetters) -> Result<Report, Failure>;
    async fn forgotten(&self, command: Forgotten) -> Result<Report, Failure>;
    async fn outbox(&self, command: Outbox) -> Result<Report, Failure>;
    async fn cleanup(&self, asked: &Clean) -> Result<Report, Failure>;
    async fn retention(&self, command: Retention) -> Result<Report, Failure>;
    async fn stats(&self) -> Result<Report, Failure>;
    async fn workers(&self, limit: &Limit) -> Result<Report, Failure>;
    async fn stuck(&self, limit: &Limit) -> Result<Report, Failure>;
}

/// Runs a command on a store.
pub(crate) async fn serve(store: &impl Operators, command: Command) -> Result<Report, Failure> {
    match command {
        Command::Migrate(command) => store.migrate(command).await,
        Command::Doctor(asked) => store.doctor(&asked).await,
        Command::Consumers(command) => store.consumers(command).await,
        Command::Pause(because) => store.consumers(Consumers::Pause(because)).await,
        Command::Resume { consumer } => store.consumers(Consumers::Resume { consumer }).await,
        Command::Show(asked) => store.show(&asked).await,
        Command::Forget(asked) => store.forget(&asked).await,
        Command::Erase(asked) => store.erase(&asked).await,
        Command::DeadLetters(command) => store.dead_letters(command).await,
        Command::Waiting(asked) => store.dead_letters(asked.list()).await,
        Command::Forgotten(command) => store.forgotten(command).await,
        Command::Outbox(command) => store.outbox(command).await,
        Command::Cleanup(asked) => store.cleanup(&asked).await,
        Command::Retention(command) => store.retention(command).await,
        Command::Stats => store.stats().await,
        Command::Workers(limit) => store.workers(&limit).await,
        Command::Stuck(limit) => store.stuck(&limit).await,
        Command::New(_) | Command::Completions { .. } => {
            Err(Failure::new(Exit::Bug, format!("`idem {}` needs no database", command.name())))
        }
    }
}

/// What `doctor` says of a store with which no worker can start.
pub(crate) fn unusable(error: StoreError) -> Result<Report, Failure> {
    let (StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure }) = error else {
        return Err(error.into());
    };
    let finding = [("level", "error".into()), ("finding", problem.into()), ("cure", cure.into())];
    Ok(Report::new().table("findings", std::iter::once(Row::new(finding)).collect()).exit(Exit::Found))
}
