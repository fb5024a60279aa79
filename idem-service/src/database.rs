//! Opens the store that the settings name, and prepares its tables where that is asked for.

use std::{error::Error, future::Future, time::Duration};

use idem_core::{BoxError, CancellationToken, ErrorClass, RetryPolicy, Store, StoreError, chain};
use idem_sqlx::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection, postgres::PgConnectOptions,
    raw_sql, sqlite::SqliteConnectOptions,
};
use tokio::time::Instant;

use crate::{
    exit::{Exit, Failure},
    service::{Handlers, Service},
    settings::Settings,
};

/// What creating tables is serialized by: two `CREATE TABLE IF NOT EXISTS` of one table at once fail, one of them with a
/// unique violation in a catalogue. The bytes of `idem_svc`.
const TABLES_LOCK: i64 = 0x6964_656d_5f73_7663;

/// A store that workers run on.
pub(crate) trait Database: Store {
    /// What people call it.
    const NAME: &'static str;

    /// What the application does on it.
    fn handlers(service: Service) -> Option<Handlers<Self>>;

    /// The store. It need not be reached yet.
    fn of(settings: &Settings) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Reaches it, and brings its tables to what the settings ask for.
    fn prepare(&self, settings: &Settings, tables: &str) -> impl Future<Output = Result<(), BoxError>> + Send;
}

impl Database for PostgresStore {
    const NAME: &'static str = "PostgreSQL through sqlx";

    fn handlers(service: Service) -> Option<Handlers<Self>> {
        service.postgres
    }

    async fn of(settings: &Settings) -> Result<Self, BoxError> {
        let mut options = PostgresOptions::parse(settings.database_url.as_str())?.schema(settings.schema.clone());
        if let Some(url) = &settings.cleanup.cleanup_database_url {
            options = options.cleanup_url(url.as_str())?;
        }
        if let Some(name) = settings.application_name() {
            options = options.application_name(name);
        }
        Ok(options.build()?)
    }

    async fn prepare(&self, settings: &Settings, tables: &str) -> Result<(), BoxError> {
        let url = settings.database_url.as_str();
        // The store itself connects when it is used, through a pool that cannot tell a login that is refused from a
        // server that is not there.
        Self::connect(url).await?.disconnect().await;
        if settings.migrate {
            self.migrate().await?;
        }
        create_postgres_tables(settings, tables).await
    }
}

impl Database for idem_tokio_postgres::PostgresStore {
    const NAME: &'static str = "PostgreSQL through tokio-postgres";

    fn handlers(service: Service) -> Option<Handlers<Self>> {
        service.tokio_postgres
    }

    async fn of(settings: &Settings) -> Result<Self, BoxError> {
        let mut options = idem_tokio_postgres::PostgresOptions::parse(settings.database_url.as_str())?;
        if let Some(url) = &settings.cleanup.cleanup_database_url {
            options = options.cleanup_url(url.as_str())?;
        }
        if let Some(name) = settings.application_name() {
            options = options.application_name(name);
        }
        Ok(options.schema(settings.schema.clone()).build()?)
    }

    async fn prepare(&self, settings: &Settings, tables: &str) -> Result<(), BoxError> {
        // As above.
        Self::connect(settings.database_url.as_str()).await?.disconnect().await;
        if settings.migrate {
            self.migrate().await?;
        }
        create_postgres_tables(settings, tables).await
    }
}

/// Creates the application's tables where that is asked for.
async fn create_postgres_tables(settings: &Settings, tables: &str) -> Result<(), BoxError> {
    if settings.create_tables {
        let options: PgConnectOptions = settings.database_url.as_str().parse()?;
        let mut connection = PgConnection::connect_with(&options.disable_statement_logging()).await?;
        let statements =
            format!("BEGIN READ WRITE; SELECT pg_catalog.pg_advisory_xact_lock({TABLES_LOCK}); {tables}; COMMIT");
        raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await?;
        connection.close().await?;
    }
    Ok(())
}

impl Database for SqliteStore {
    const NAME: &'static str = "SQLite";

    fn handlers(service: Service) -> Option<Handlers<Self>> {
        service.sqlite
    }

    async fn of(settings: &Settings) -> Result<Self, BoxError> {
        let options: SqliteOptions = settings.database_url.as_str().parse()?;
        Ok(Self::connect(options.schema(settings.schema.clone())).await?)
    }

    async fn prepare(&self, settings: &Settings, tables: &str) -> Result<(), BoxError> {
        if settings.migrate {
            self.migrate().await?;
        }
        if settings.create_tables {
            let options: SqliteConnectOptions = settings.database_url.as_str().parse()?;
            let options = options.busy_timeout(SqliteOptions::BOOKKEEPING_TIMEOUT).disable_statement_logging();
            let mut connection = SqliteConnection::connect_with(&options).await?;
            raw_sql(AssertSqlSafe(format!("BEGIN IMMEDIATE; {tables}; COMMIT"))).execute(&mut connection).await?;
            connection.close().await?;
        }
        Ok(())
    }
}

/// Tries something with a database again and again while it cannot be reached, until the start-up time-out. `None`
/// where the stop came first.
pub(crate) async fn reach<S: Store, T, F>(
    settings: &Settings,
    stop: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Result<Option<T>, Failure>
where
    F: Future<Output = Result<T, BoxError>>,
{
    let (begun, limit) = (Instant::now(), settings.startup_timeout);
    let pauses = RetryPolicy::default().max(Duration::from_secs(5));
    let mut tries = 0;
    loop {
        let done = tokio::select! {
            done = attempt() => done,
            () = stop.cancelled() => return Ok(None),
        };
        let error = match done {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        let text = describe::<S>(&*error);
        if is_final::<S>(&*error) {
            return Err(Failure::refused(text));
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let line = format!("the database could not be reached for {limit:?}: {text}");
            return Err(Failure::new(Exit::Unreachable, line));
        }
        tries += 1;
        tracing::warn!(error = text, "the database cannot be reached yet");
        tokio::select! {
            () = tokio::time::sleep(pauses.backoff(tries, 1.0).min(left)) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// Whether a person must act before another try can go better.
fn is_final<S: Store>(error: &(dyn Error + 'static)) -> bool {
    let class = chain(error).find_map(|link| link.downcast_ref::<StoreError>()).map(StoreError::class);
    match class.or_else(|| S::classify(error)) {
        Some(ErrorClass::Infrastructure | ErrorClass::RunUnitAgain | ErrorClass::Transient) => false,
        // What no driver knows is a setting, such as a URL that cannot be read.
        Some(ErrorClass::Permanent | ErrorClass::Fatal) | None => true,
    }
}

/// An error and its sources in one line, without values of statements or rows (S4).
pub(crate) fn describe<S: Store>(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for link in chain(error) {
        let described = S::describe(link);
        let is_drivers = described.is_some();
        let text = described.unwrap_or_else(|| link.to_string());
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        // What stands behind the driver's error may quote values.
        if is_drivers {
            break;
        }
    }
    texts.join(": ")
}
