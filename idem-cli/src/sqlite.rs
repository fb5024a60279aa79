//! The commands on a SQLite file; those that make no sense there are refused by name.

mod consumers;
mod dead_letters;
mod file;
mod forgotten;
mod keys;
mod outbox;
mod retention;

use std::sync::Arc;

use idem_core::{Store as _, store::Bookkeeping as _};
use idem_sqlx::{SqliteOptions, SqliteStore};

use self::file::File;
use crate::{
    command_line::{
        Clean, Consumers, DeadLetters, Doctor, Erase, Forget, Forgotten, Migrate, Outbox, Retention, Show, Target,
        shared::Limit,
    },
    commands::{self, cleanup, services},
    exit::{Exit, Failure},
    operators::{Operators, unusable},
    report::Report,
};

/// Whether the database is a file of SQLite's.
pub(crate) fn is_meant(target: &Target) -> bool {
    target.database_url.as_deref().is_some_and(|url| url.starts_with("sqlite:"))
}

/// A file, for every verb whose statements are no client's own.
pub(crate) struct Sqlite<'t>(pub(crate) &'t Target);

impl Sqlite<'_> {
    fn options(&self) -> Result<SqliteOptions, Failure> {
        let options: SqliteOptions = self.0.database_url.as_deref().unwrap_or_default().parse()?;
        Ok(options.schema(self.0.schema.clone()))
    }

    /// A mistyped name must not make a file.
    async fn store(&self) -> Result<Arc<SqliteStore>, Failure> {
        Ok(Arc::new(SqliteStore::connect(self.options()?.create_if_missing(false)).await?))
    }

    async fn open(&self) -> Result<File, Failure> {
        self.store().await?;
        File::open(self.0).await
    }
}

impl Operators for Sqlite<'_> {
    async fn migrate(&self, command: Migrate) -> Result<Report, Failure> {
        match command {
            Migrate::Up => up(&SqliteStore::connect(self.options()?).await?).await,
            Migrate::Down(_) | Migrate::Status | Migrate::Print { .. } => Err(only_on_postgres("migrate")),
        }
    }

    async fn doctor(&self, asked: &Doctor) -> Result<Report, Failure> {
        doctor(&self.store().await?, self.0, asked).await
    }

    async fn consumers(&self, command: Consumers) -> Result<Report, Failure> {
        consumers::run(&*self.store().await?, self.0, command).await
    }

    async fn show(&self, asked: &Show) -> Result<Report, Failure> {
        keys::show(self.open().await?, asked).await
    }

    async fn forget(&self, asked: &Forget) -> Result<Report, Failure> {
        keys::forget(self.open().await?, asked).await
    }

    async fn erase(&self, asked: &Erase) -> Result<Report, Failure> {
        keys::erase(self.open().await?, asked).await
    }

    async fn dead_letters(&self, command: DeadLetters) -> Result<Report, Failure> {
        dead_letters::run(self.open().await?, command).await
    }

    async fn forgotten(&self, command: Forgotten) -> Result<Report, Failure> {
        forgotten::run(self.open().await?, command).await
    }

    async fn outbox(&self, command: Outbox) -> Result<Report, Failure> {
        let (store, file) = (self.store().await?, File::open(self.0).await?);
        let Outbox::List { destination, state, limit } = command else {
            return commands::outbox::run_on(file, command).await;
        };
        let outbox = store.outbox().ok_or_else(|| Failure::refused(commands::outbox::NO_OUTBOX))?;
        commands::outbox::list(&*outbox, file, destination.as_deref(), state, &limit).await
    }

    async fn cleanup(&self, asked: &Clean) -> Result<Report, Failure> {
        if asked.print_sql {
            return Err(only_on_postgres("cleanup"));
        }
        clean_up(&self.store().await?, asked).await
    }

    async fn retention(&self, command: Retention) -> Result<Report, Failure> {
        retention::run(self.open().await?, command).await
    }

    async fn stats(&self) -> Result<Report, Failure> {
        consumers::stats(self.open().await?).await
    }

    async fn workers(&self, limit: &Limit) -> Result<Report, Failure> {
        consumers::workers(self.open().await?, limit).await
    }

    async fn stuck(&self, limit: &Limit) -> Result<Report, Failure> {
        let (store, mut file) = (self.store().await?, File::open(self.0).await?);
        let standing = consumers::standing(&store, &mut file, self.0).await?;
        consumers::stuck(&standing, file, limit).await
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
        Err(error) => unusable(error),
    }
}
