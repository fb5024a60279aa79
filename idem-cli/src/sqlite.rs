//! The commands that make sense on SQLite, through the store itself; the others are refused by name.

use std::sync::Arc;

use idem_core::{
    AuditEntry, Bookkeeping as _, Cleanup, ConsumerName, ControlState, DeadLetterId, ParkedDeadLetter, Store as _,
    StoreError, Tenant,
};
use idem_sqlx::{Sqlite, SqliteOptions};

use crate::{
    audit,
    command_line::{Because, Clean, Command, Consumers, DeadLetters, Migrate, Replay, Target},
    commands::cleanup,
    confirm::confirm,
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
        return up(&Sqlite::connect(options).await?).await;
    }
    // A mistyped name must not make a file.
    let store = Arc::new(Sqlite::connect(options.create_if_missing(false)).await?);
    match command {
        Command::Cleanup(clean) if !clean.print_sql => clean_up(&store, &clean).await,
        Command::Doctor(_) => doctor(&store).await,
        Command::Consumers(Consumers::Pause(Because { consumer, reason })) => {
            set(&store, target, &consumer, ControlState::Paused, &reason).await
        }
        Command::Consumers(Consumers::Resume { consumer }) => {
            set(&store, target, &consumer, ControlState::Running, "").await
        }
        Command::DeadLetters(DeadLetters::List { which, limit }) if which.group.is_none() => match which.consumer {
            Some(consumer) => list(&store, &consumer, limit.limit).await,
            None => Err(Failure::refused("give --consumer")),
        },
        Command::DeadLetters(DeadLetters::Replay(asked))
            if !asked.which.id.is_empty() && !asked.is_mended() && asked.which.group.is_none() =>
        {
            replay(&store, &asked).await
        }
        other @ (Command::Migrate(_)
        | Command::Consumers(_)
        | Command::Show(_)
        | Command::Forget(_)
        | Command::Forgotten(_)
        | Command::Erase(_)
        | Command::Import(_)
        | Command::DeadLetters(_)
        | Command::Cleanup(_)
        | Command::Stats
        | Command::Workers(_)
        | Command::Retention(_)
        | Command::Stuck(_)
        | Command::Completions { .. }) => Err(Failure::refused(format!(
            "`idem {}` in this form is for PostgreSQL. On SQLite there are migrate up, cleanup, doctor, consumers pause and \
             resume, dead-letters list --consumer and replay by ids; any client of SQLite's can read the tables",
            other.name()
        ))),
    }
}

async fn up(store: &Sqlite) -> Result<Report, Failure> {
    let applied = store.migrate().await?;
    if applied.is_empty() {
        return Ok(Report::said("the file is up to date"));
    }
    Ok(applied.iter().fold(Report::new(), |report, version| report.line(format!("migration {version} was applied"))))
}

async fn clean_up(store: &Arc<Sqlite>, clean: &Clean) -> Result<Report, Failure> {
    let settings = cleanup::settings(clean)?;
    if clean.dry_run {
        return Ok(cleanup::previewed(&store.cleaner().preview(&settings).await?));
    }
    let mut runner = Cleanup::new(store.cleaner(), settings).map_err(|error| Failure::refused(error.to_string()))?;
    Ok(cleanup::cleaned(&runner.cycle().await?))
}

async fn doctor(store: &Sqlite) -> Result<Report, Failure> {
    match store.bookkeeping().verify().await {
        Ok(()) => Ok(Report::said("All is well.")),
        Err(StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure }) => {
            let finding = [("level", "error".into()), ("finding", problem.into()), ("cure", cure.into())];
            Ok(Report::new().table("findings", std::iter::once(Row::new(finding)).collect()).exit(Exit::Found))
        }
        Err(error) => Err(error.into()),
    }
}

async fn set(
    store: &Sqlite,
    target: &Target,
    consumer: &str,
    state: ControlState,
    reason: &str,
) -> Result<Report, Failure> {
    let name = ConsumerName::new(consumer).map_err(|error| Failure::refused(error.to_string()))?;
    let scope = store.bookkeeping().scope(&name, &Tenant::default()).await?;
    store.bookkeeping().set_control(scope, state, &target.by, reason).await?;
    let (action, is) = if state == ControlState::Running { ("resume", "running") } else { ("pause", "paused") };
    let entry = AuditEntry { who: target.by.clone(), action, scope, key: None, details: reason.to_owned() };
    store.bookkeeping().audit(&entry).await?;
    audit::tell(audit::Line { who: &target.by, action, consumer, key: None, details: reason });
    Ok(Report::said(format!("{consumer} is {is}; a running worker obeys within 5 s")))
}

async fn list(store: &Sqlite, consumer: &str, limit: i64) -> Result<Report, Failure> {
    let name = ConsumerName::new(consumer).map_err(|error| Failure::refused(error.to_string()))?;
    let max = u32::try_from(limit).unwrap_or(u32::MAX);
    // One more than is shown tells whether there are more.
    let mut letters = store.bookkeeping().dead_letters(&name, max.saturating_add(1)).await?;
    let is_all = letters.len() <= max as usize;
    letters.truncate(max as usize);
    let report = Report::new().table("dead letters", letters.iter().map(row).collect());
    Ok(if is_all { report } else { report.line(format!("the newest {max}; --limit N shows more")) })
}

async fn replay(store: &Sqlite, asked: &Replay) -> Result<Report, Failure> {
    let ids: Vec<DeadLetterId> = asked.which.id.iter().copied().map(DeadLetterId).collect();
    confirm(&format!("This has a running worker handle {} dead letters again", ids.len()), asked.yes.yes)?;
    match store.bookkeeping().request_replay(&ids).await? {
        // A mistyped number must not look like success.
        0 => Err(Failure::refused(
            "none of them can be replayed: there is no such dead letter, it awaits a replay already, or its payload was too \
             large to keep. `idem dead-letters list --consumer NAME` shows those that there are",
        )),
        asked => Ok(Report::said(format!("{asked} asked for"))),
    }
}

fn row(letter: &ParkedDeadLetter) -> Row {
    Row::new([
        ("id", letter.id.0.into()),
        ("key", letter.key.as_ref().map(|key| key.as_str()).into()),
        ("reason", letter.reason.as_str().into()),
        ("group", letter.fingerprint.map(|group| group.to_string()).into()),
        ("attempts", letter.attempts.into()),
        ("copies", letter.copies.into()),
        ("error", letter.error.as_str().into()),
        ("payload_kept", letter.payload_kept.into()),
        ("replay", letter.replayed.as_deref().into()),
    ])
}
