//! The stores that a worker runs on: opens the one that the settings name, and prepares its tables where that is asked for.

use std::{error::Error, future::Future, time::Duration};

use idem_core::{BoxError, CancellationToken, ErrorClass, RetryPolicy, Store, StoreError, chain, store};
use idem_schema::SchemaName;
use tokio::time::Instant;

use crate::{
    exit::{Exit, Failure},
    flags::DatabaseUrl,
};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "postgres")]
pub use self::postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use self::sqlite::Sqlite;
#[cfg(feature = "tokio-postgres")]
pub use self::tokio_postgres::TokioPostgres;

/// A store that workers run on, made of the settings that all of them have. A store of your own is one function more than
/// [`Store`] asks for:
///
/// ```
/// use idem_service::{Broker, Effects, Handlers, Service, database::{Database, DatabaseSettings}, idem_core::{BoxError, Handler}};
/// use idem_testkit::MemoryStore;
///
/// /// For `--database-url memory:`; its rows end with the process.
/// #[derive(Debug)]
/// struct Memory;
///
/// impl Database for Memory {
///     type Store = MemoryStore;
///
///     const DATABASE: &'static str = "the memory";
///     const CLIENT: &'static str = "memory";
///     const SCHEMES: &'static [&'static str] = &["memory"];
///
///     async fn open(_: DatabaseSettings<'_>) -> Result<MemoryStore, BoxError> {
///         Ok(MemoryStore::new())
///     }
/// }
///
/// fn run<Kafka: Broker>(handler: impl Handler<MemoryStore>) -> std::process::ExitCode {
///     Service::new("ledger", Effects::InTransaction).store::<Memory>(Handlers::new(handler)).run::<Kafka>()
/// }
/// ```
pub trait Database: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The database's name for people, such as `PostgreSQL`.
    const DATABASE: &'static str;

    /// The word of `--store` for it, which distinguishes two clients of one database.
    const CLIENT: &'static str;

    /// The schemes of its URLs, without the colon; the one to name first.
    const SCHEMES: &'static [&'static str];

    /// Whether the handlers of a unit may run at once on its transaction, as
    /// [`StoreCapabilities::concurrent_handlers`](idem_core::store::StoreCapabilities) says of the store itself: `--handlers
    /// pipelined` is refused before anything is connected.
    const SHARES_TRANSACTION: bool = false;

    /// Makes the store. It need not be reached yet; where it is, and cannot be, this is tried again until the start-up
    /// time-out.
    ///
    /// # Errors
    /// The store's error. One that is neither a [`StoreError`] nor its driver's is a wrong setting, and ends
    /// the worker with status 2. No text may hold the URL.
    fn open(settings: DatabaseSettings<'_>) -> impl Future<Output = Result<Self::Store, BoxError>> + Send;

    /// Reaches the database, brings idem's tables up to date with `--migrate`, and runs `tables`, the application's
    /// statements, with `--create-tables`. It is tried again as `open` is. By default it does nothing: both flags are then
    /// accepted without any effect, so a store that can make its tables overrides it.
    ///
    /// # Errors
    /// As for `open`.
    fn prepare(
        store: &Self::Store,
        settings: DatabaseSettings<'_>,
        tables: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (store, settings, tables);
        std::future::ready(Ok(()))
    }
}

/// The settings of the database.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseSettings<'s> {
    pub(crate) url: &'s DatabaseUrl,
    pub(crate) schema: &'s SchemaName,
    pub(crate) cleanup_url: Option<&'s DatabaseUrl>,
    pub(crate) application_name: Option<&'s str>,
    pub(crate) migrate: bool,
    pub(crate) create_tables: bool,
}

impl<'s> DatabaseSettings<'s> {
    /// `--database-url`, which may hold a password.
    #[must_use]
    pub fn url(&self) -> &'s str {
        self.url.as_str()
    }

    /// `--schema`: where idem's tables are.
    #[must_use]
    pub fn schema(&self) -> &'s str {
        self.schema.as_str()
    }

    /// `--cleanup-database-url`: the login that may delete, where it is another.
    #[must_use]
    pub fn cleanup_url(&self) -> Option<&'s str> {
        self.cleanup_url.map(DatabaseUrl::as_str)
    }

    /// The name of the connections in the database's list, unless the URL or `PGAPPNAME` has one.
    #[must_use]
    pub fn application_name(&self) -> Option<&'s str> {
        self.application_name
    }

    /// `--migrate`: whether idem's tables are to be created or updated.
    #[must_use]
    pub fn migrate(&self) -> bool {
        self.migrate
    }

    /// `--create-tables`: whether the application's tables are to be created.
    #[must_use]
    pub fn create_tables(&self) -> bool {
        self.create_tables
    }
}

/// The lock that serializes creating tables: two `CREATE TABLE IF NOT EXISTS` of one table at once fail, one of them with a
/// unique violation in a catalogue. The bytes of `idem_svc`.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
const TABLES_LOCK: i64 = 0x6964_656d_5f73_7663;

/// The statements that create an application's tables on PostgreSQL.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
fn postgres_tables(tables: &str) -> String {
    format!("BEGIN READ WRITE; SELECT pg_catalog.pg_advisory_xact_lock({TABLES_LOCK}); {tables}; COMMIT")
}

/// Tries something with a database again and again while it cannot be reached, until the start-up time-out. `None`
/// where the stop came first.
pub(crate) async fn reach<S: Store, T, F>(
    limit: Duration,
    stop: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Result<Option<T>, Failure>
where
    F: Future<Output = Result<T, BoxError>>,
{
    let begun = Instant::now();
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
        let text = store::describe::<S>(&*error);
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
        // An error that no driver knows is a setting, such as a URL that cannot be read.
        Some(ErrorClass::Permanent | ErrorClass::Fatal) | None => true,
    }
}
