//! The commands on a SQLite file; those that make no sense there are refused by name.

mod consumers;
mod dead_letters;
mod file;
mod forgotten;
mod keys;
mod outbox;
mod retention;

use std::sync::Arc;

use idem_core::{Store as _, StoreError, store::Bookkeeping as _};
use idem_sqlx::{SqliteOptions, SqliteStore};

use self::file::File;
use crate::{
    command_line::{Clean, Command, Consumers, Doctor, Migrate, Outbox, Target},
    commands::{self, cleanup, services},
    exit::{Exit, Failure},
    report::{Report, Row},
};

/// Whether the database is a file of SQLite's.
pub(crate) fn is_meant(target: &Target) -> bool {
    target.database_url.as_deref().is_some_and(|url| url.starts_with("sqlite:"))
}

pub(crate) async fn run(target: &Target, command: Command) -> Result<Report, Failure> {
    let options: SqliteOptions = target.database_url.as_deref().unwrap_or_default().parse()?;
    let options = options.schema(target.schema.clone());
    if let Command::Migrate(Migrate::Up) = command {
        return up(&SqliteStore::connect(options).await?).await;
    }
    // A mistyped name must not make a file.
    let store = Arc::new(SqliteStore::connect(options.create_if_missing(false)).await?);
    match command {
        Command::Cleanup(clean) if !clean.print_sql => clean_up(&store, &clean).await,
        Command::Doctor(asked) => doctor(&store, target, &asked).await,
        Command::Show(show) => keys::show(File::open(target).await?, &show).await,
        Command::Forget(forget) => keys::forget(File::open(target).await?, &forget).await,
        Command::Erase(erase) => keys::erase(File::open(target).await?, &erase).await,
        Command::Forgotten(command) => forgotten::run(File::open(target).await?, command).await,
        Command::Retention(command) => retention::run(File::open(target).await?, command).await,
        Command::Stats => consumers::stats(File::open(target).await?).await,
        Command::Workers(limit) => consumers::workers(File::open(target).await?, &limit).await,
        Command::Stuck(limit) => {
            let mut file = File::open(target).await?;
            let standing = consumers::standing(&store, &mut file, target).await?;
            consumers::stuck(&standing, file, &limit).await
        }
        Command::Consumers(command) => consumers::run(&store, target, command).await,
        Command::Pause(because) => consumers::run(&store, target, Consumers::Pause(because)).await,
        Command::Resume { consumer } => consumers::run(&store, target, Consumers::Resume { consumer }).await,
        Command::DeadLetters(command) => dead_letters::run(File::open(target).await?, command).await,
        Command::Waiting(asked) => dead_letters::run(File::open(target).await?, asked.list()).await,
        Command::Outbox(Outbox::List { destination, state, limit }) => {
            let outbox = store.outbox().ok_or_else(|| Failure::refused(commands::outbox::NO_OUTBOX))?;
            commands::outbox::list(&*outbox, File::open(target).await?, destination.as_deref(), state, &limit).await
        }
        Command::Outbox(command) => commands::outbox::run_on(File::open(target).await?, command).await,
        other @ (Command::Migrate(_) | Command::Cleanup(_) | Command::Completions { .. } | Command::New(_)) => {
            Err(only_on_postgres(other.name()))
        }
    }
}

fn only_on_postgres(name: &str) -> Failure {
    Failure::refused(format!(
        "`idem {name}` in this form is for PostgreSQL: on a file, any client of SQLite's can read and write the tables"
    ))
}

async fn up(store: &SqliteStore) -> Result<Report, Failure> {
    let applied = store.migrate().await?;
    if applied.is_empty() {
        return Ok(Report::said("the file is up to date"));
    }
    Ok(applied.iter().fold(Report::new(), |report, version| report.line(format!("migration {version} was applied"))))
}

async fn clean_up(store: &Arc<SqliteStore>, clean: &Clean) -> Result<Report, Failure> {
    cleanup::on([store.cleaner(), store.cleaner()], cleanup::settings(clean)?, clean.dry_run).await
}

/// As on PostgreSQL.
const SERVICES: &str = r#"
WITH timed AS (
    SELECT * FROM (SELECT r.consumer, r.key_id FROM "{schema}_processed_results" AS r
        WHERE r.answer_until > {now} ORDER BY r.answer_until LIMIT 10000)
    UNION SELECT * FROM (SELECT r.consumer, r.key_id FROM "{schema}_processed_results" AS r
        WHERE r.answer_until IS NOT NULL ORDER BY r.answer_until DESC LIMIT 10000)
    UNION SELECT * FROM (SELECT p.consumer, p.key_id FROM "{schema}_processed_messages" AS p
        WHERE p.expires_at > {now} ORDER BY p.expires_at LIMIT 10000)
    UNION SELECT * FROM (SELECT p.consumer, p.key_id FROM "{schema}_processed_messages" AS p
        ORDER BY p.expires_at DESC LIMIT 10000)
), answers AS (
    SELECT r.consumer, count(*) FILTER (WHERE r.answer_until > p.expires_at) AS outliving,
        max(r.stored_at) FILTER (WHERE r.sealed_with IS NULL)
            > min(r.stored_at) FILTER (WHERE r.sealed_with IS NOT NULL) AS unsealed,
        group_concat(DISTINCT r.sealed_with) AS sealed_with
    FROM timed AS t JOIN "{schema}_processed_results" AS r ON r.consumer = t.consumer AND r.key_id = t.key_id
    JOIN "{schema}_processed_messages" AS p ON p.consumer = r.consumer AND p.key_id = r.key_id
    WHERE r.kind & 6 = 0 GROUP BY r.consumer
), expired AS (
    SELECT p.consumer, p.processed_at FROM "{schema}_processed_messages" AS p WHERE p.expires_at < {now} ORDER BY p.expires_at LIMIT 10000
)
SELECT c.name AS service, c.handler = 'http' AS serves, c.retention / 1000000 AS keys_for, ifnull(a.outliving, 0) AS outliving,
    ifnull(a.unsealed, 0) AS unsealed, a.sealed_with,
    (SELECT ({now} - min(e.processed_at)) / 1000000 FROM expired AS e WHERE e.consumer = c.id) AS oldest
FROM "{schema}_consumers" AS c LEFT JOIN answers AS a ON a.consumer = c.id
WHERE c.handler = 'http' OR a.sealed_with IS NOT NULL ORDER BY c.name"#;

async fn doctor(store: &Arc<SqliteStore>, target: &Target, asked: &Doctor) -> Result<Report, Failure> {
    let mut file = File::open(target).await?;
    match store.bookkeeping().verify().await {
        Ok(()) => {
            let mut findings = consumers::standing(store, &mut file, target).await?.findings();
            findings.extend(match store.outbox() {
                Some(outbox) => {
                    let readers = file.table(outbox::READERS, &[]).await?;
                    let keys = file.table(outbox::SHARED_KEYS, &[]).await?;
                    commands::outbox::findings(&outbox.backlog(None).await?, &readers, &keys)
                }
                None => Vec::new(),
            });
            let facts = file.table(SERVICES, &[]).await?;
            findings.extend(services::findings(&facts, asked));
            let told = services::services(&facts);
            let services = |report: Report| if told.is_empty() { report } else { report.table("services", told) };
            if findings.is_empty() {
                return Ok(services(Report::new()).line("All is well."));
            }
            // A notice is nothing that a script should stop for.
            let is_grave = findings.iter().any(|row| row.text("level") != "notice");
            let report = services(Report::new().table("findings", findings.into_iter().collect()));
            Ok(report.exit(if is_grave { Exit::Found } else { Exit::Done }))
        }
        Err(StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure }) => {
            let finding = [("level", "error".into()), ("finding", problem.into()), ("cure", cure.into())];
            Ok(Report::new().table("findings", std::iter::once(Row::new(finding)).collect()).exit(Exit::Found))
        }
        Err(error) => Err(error.into()),
    }
}
