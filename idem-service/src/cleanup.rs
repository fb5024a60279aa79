//! Cleanup beside a worker: its flags, and the task that runs it.

use std::{sync::Arc, time::Duration};

use idem_core::{BoxError, CancellationToken, Cleaner, Cleanup, CleanupSettings, CleanupView, Store};
use idem_sqlx::{Postgres, PostgresCleaner, PostgresOptions, Sqlite, SqliteCleaner};

use crate::{
    exit::Failure,
    settings::{self, DatabaseUrl, Settings},
    spans,
};

/// What a worker is told about the removal of what has expired.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Cleanup")]
pub(crate) struct CleanupFlags {
    /// How often this worker removes what has expired, or off; of all workers on a schema, one does it
    #[arg(long, env = "IDEM_CLEANUP_EVERY", value_name = "TIME", default_value = "1h", value_parser = every)]
    cleanup_every: Every,

    /// The login that may delete, where the worker's own may not [default: the worker's own]
    #[arg(long, env = "IDEM_CLEANUP_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    cleanup_database_url: Option<DatabaseUrl>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Off,
    After(Duration),
}

fn every(text: &str) -> Result<Every, String> {
    match text {
        "off" => Ok(Every::Off),
        _ => spans::span(text).map(Every::After).map_err(|error| format!("{error}, or off")),
    }
}

/// A store whose tables can be cleaned.
pub(crate) trait Cleanable: Store {
    /// What does it.
    type Cleaner: Cleaner;

    /// Nothing is connected yet.
    fn cleaner(store: &Arc<Self>, settings: &Settings) -> Result<Self::Cleaner, BoxError>;
}

impl Cleanable for Postgres {
    type Cleaner = PostgresCleaner;

    fn cleaner(_: &Arc<Self>, settings: &Settings) -> Result<PostgresCleaner, BoxError> {
        postgres_cleaner(settings)
    }
}

impl Cleanable for idem_tokio_postgres::Postgres {
    type Cleaner = PostgresCleaner;

    fn cleaner(_: &Arc<Self>, settings: &Settings) -> Result<PostgresCleaner, BoxError> {
        postgres_cleaner(settings)
    }
}

impl Cleanable for Sqlite {
    type Cleaner = SqliteCleaner;

    fn cleaner(store: &Arc<Self>, _: &Settings) -> Result<SqliteCleaner, BoxError> {
        Ok(SqliteCleaner::new(Arc::clone(store)))
    }
}

/// On PostgreSQL it has connections of its own, so the worker's client library does not matter.
fn postgres_cleaner(settings: &Settings) -> Result<PostgresCleaner, BoxError> {
    let url = settings.cleanup.cleanup_database_url.as_ref().unwrap_or(&settings.database_url);
    let options = PostgresOptions::parse(url.as_str())?.schema(settings.schema.clone());
    Ok(options.application_name("idem cleanup").build()?.cleaner())
}

/// Starts the task, and answers what can be seen of it; `None` where cleanup is off.
pub(crate) fn start<S: Cleanable>(
    store: &Arc<S>,
    settings: &Settings,
    stop: CancellationToken,
) -> Result<Option<CleanupView>, Failure> {
    let Every::After(every) = settings.cleanup.cleanup_every else { return Ok(None) };
    let cleaner = S::cleaner(store, settings).map_err(|error| Failure::refused(format!("cleanup: {error}")))?;
    let cleanup = Cleanup::new(cleaner, CleanupSettings { every, ..CleanupSettings::default() })
        .map_err(|error| Failure::refused(settings::refused(&error)))?;
    let view = cleanup.view();
    tokio::spawn(run(cleanup, stop));
    Ok(Some(view))
}

/// Runs cleanup, unless it is known that this role may not delete. What cannot be known yet, cleanup itself finds out.
async fn run<C: Cleaner>(mut cleanup: Cleanup<C>, stop: CancellationToken) {
    let cleaner = cleanup.cleaner();
    if let Ok(false) = cleaner.may_delete().await {
        let last = match cleaner.last().await {
            Ok(Some(last)) => format!("{} was the last, {} minutes ago", last.who, last.ago.as_secs() / 60),
            Ok(None) => "nobody has cleaned yet".to_owned(),
            Err(_) => "who was the last cannot be read".to_owned(),
        };
        cleaner.rest().await;
        return tracing::info!(
            last,
            "cleanup is off in this worker, because its role may not delete: give --cleanup-database-url, or run `idem \
             cleanup` elsewhere"
        );
    }
    cleanup.run(stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleanup_is_a_span_or_off() {
        assert_eq!(every("off"), Ok(Every::Off));
        assert_eq!(every("15m"), Ok(Every::After(Duration::from_secs(900))));
        assert!(every("never").is_err() && every("0").is_err());
    }
}
