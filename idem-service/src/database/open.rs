//! [`Database`], and the way to a store that can be reached.

use std::{error::Error, future::Future, sync::Arc, time::Duration};

use idem_core::{
    BoxError, CancellationToken, ErrorClass, Store, StoreError, config::RetryPolicy, inbox::Inbox, internal::chain,
    store,
};
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
use idem_sql::MigrateError;
use idem_sql::SchemaName;
use tokio::time::Instant;

use crate::{
    exit::{Exit, Failure},
    values::DatabaseUrl,
};

/// A store that workers run on, made of the settings that all of them have. A store of your own is one function more than
/// [`Store`] needs:
///
/// ```
/// use idem_service::{
///     Broker, Database, DatabaseSettings, Effects, Service,
///     idem_core::{BoxError, Handler},
/// };
/// use idem_testkit::MemoryStore;
///
/// /// For `--database-url memory:`; its rows end with the process.
/// #[derive(Debug)]
/// struct Memory;
///
/// impl Database for Memory {
///     type Store = MemoryStore;
///
///     const CLIENT: &'static str = "memory";
///     const SCHEMES: &'static [&'static str] = &["memory"];
///
///     async fn open(_: DatabaseSettings<'_>) -> Result<MemoryStore, BoxError> {
///         Ok(MemoryStore::new())
///     }
/// }
///
/// fn run<B: Broker>(handler: impl Handler<MemoryStore>) -> std::process::ExitCode {
///     Service::<B, Memory>::new("ledger", Effects::InTransaction, handler).run()
/// }
/// ```
pub trait Database: Sized + Send + Sync + 'static {
    /// The store. The stores of idem are databases themselves.
    type Store: Store;

    /// The client library of the database, for the log.
    const CLIENT: &'static str;

    /// The schemes of its URLs, without the colon; the one to name first.
    const SCHEMES: &'static [&'static str];

    /// Whether the store keeps copies of records at `--redis-url`. Where it does not, a start warns that the setting has no effect.
    const TAKES_COPIES: bool = false;

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

    /// The inboxes of the store, for `--inbox`. By default there are none, and the flag is refused.
    fn inbox(store: &Arc<Self::Store>) -> Option<Arc<dyn Inbox>> {
        let _ = store;
        None
    }

    /// Runs a worker; see [`Broker`](crate::Broker).
    #[cfg(feature = "kafka")]
    #[doc(hidden)]
    fn run_on_kafka(
        program: crate::program::Program<crate::service::Parts<crate::kafka::Kafka, Self::Store>>,
        arguments: Vec<std::ffi::OsString>,
    ) -> Exit {
        crate::run::run::<crate::kafka::Kafka, Self>(program, arguments)
    }

    /// The same.
    #[cfg(feature = "amqp")]
    #[doc(hidden)]
    fn run_on_amqp(
        program: crate::program::Program<crate::service::Parts<crate::amqp::Amqp, Self::Store>>,
        arguments: Vec<std::ffi::OsString>,
    ) -> Exit {
        crate::run::run::<crate::amqp::Amqp, Self>(program, arguments)
    }

    /// The same.
    #[cfg(feature = "sqs")]
    #[doc(hidden)]
    fn run_on_sqs(
        program: crate::program::Program<crate::service::Parts<crate::sqs::Sqs, Self::Store>>,
        arguments: Vec<std::ffi::OsString>,
    ) -> Exit {
        crate::run::run::<crate::sqs::Sqs, Self>(program, arguments)
    }

    /// The same of a service over HTTP.
    #[cfg(feature = "http")]
    #[doc(hidden)]
    fn serve(
        program: crate::program::Program<crate::http::Parts<Self::Store>>,
        arguments: Vec<std::ffi::OsString>,
    ) -> Exit {
        crate::http::run::<Self>(program, arguments)
    }
}

/// # Errors
/// One line, if the URL is of another database.
pub(crate) fn check_url<D: Database>(url: &DatabaseUrl) -> Result<(), String> {
    if D::SCHEMES.contains(&url.scheme()) {
        return Ok(());
    }
    let scheme = D::SCHEMES.first().copied().unwrap_or_default();
    let slashes = if scheme == "dynamodb" { "" } else { "//" };
    Err(format!("--database-url must begin with {scheme}:{slashes} (its value is not shown)"))
}

/// Warns of a Redis that nothing asks. `REDIS_URL` may be there for the application's own sake, so it is not refused.
pub(crate) fn warn_of_redis<D: Database>(url: Option<&DatabaseUrl>) {
    if url.is_some() && !D::TAKES_COPIES {
        tracing::warn!("--redis-url has no effect: of the databases, DynamoDB has copies of records in Redis");
    }
}

/// The settings of the database.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseSettings<'s> {
    pub(crate) url: &'s DatabaseUrl,
    pub(crate) redis_url: Option<&'s DatabaseUrl>,
    pub(crate) copies_plain: bool,
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

    /// `--redis-url`: where copies of records are kept. It may hold a password.
    #[must_use]
    pub fn redis_url(&self) -> Option<&'s str> {
        self.redis_url.map(DatabaseUrl::as_str)
    }

    /// `--copies-plain`: whether results that are not encrypted are copied too.
    #[must_use]
    pub fn copies_plain(&self) -> bool {
        self.copies_plain
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

/// The error of the store itself, which says whether another try can go better.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
pub(super) fn migrated(done: Result<Vec<u32>, MigrateError>) -> Result<(), BoxError> {
    match done {
        Ok(_) => Ok(()),
        Err(MigrateError::Store(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// How often an application's tables are created, where other processes create them at the same time.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
const TABLES_TRIES: usize = 10;

/// Creates an application's tables on PostgreSQL. `CREATE TABLE IF NOT EXISTS` looks before it creates, so of two at once one fails with
/// the row of the other in a catalogue, and then runs again. An advisory lock would be open to any login of the database (S51).
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
pub(super) async fn create_tables<S: Store, F: Future<Output = Result<(), BoxError>> + Send>(
    run: impl Fn() -> F + Send,
) -> Result<(), BoxError> {
    for _ in 1..TABLES_TRIES {
        match run().await {
            Err(error) if is_made_meanwhile::<S>(&*error) => {}
            done => return done,
        }
    }
    run().await
}

/// The statements that create an application's tables on PostgreSQL.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
pub(super) fn postgres_tables(tables: &str) -> String {
    format!("BEGIN READ WRITE; {tables}; COMMIT")
}

/// Whether another session was first to make the same table, schema, type, function or grant.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
fn is_made_meanwhile<S: Store>(error: &(dyn Error + 'static)) -> bool {
    let code = chain(error).find_map(S::code);
    matches!(code.as_deref(), Some("23505" | "42P06" | "42P07" | "42710" | "42723" | "XX000"))
}

/// How long the first try may take at least, however short the start-up time-out is: a connection over a slow network.
const FIRST_TRY: Duration = Duration::from_secs(6);

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
    let (mut tries, mut is_outage) = (0, true);
    let mut text =
        "no answer came in time: the server does not answer, or a statement waits for a lock, which pg_locks shows"
            .to_owned();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let within = if tries == 0 { left.max(FIRST_TRY) } else { left };
        let done = tokio::select! {
            done = tokio::time::timeout(within, attempt()) => done,
            () = stop.cancelled() => return Ok(None),
        };
        match done {
            Ok(Ok(done)) => return Ok(Some(done)),
            Ok(Err(error)) => {
                text = store::describe::<S>(&*error);
                if is_final::<S>(&*error) {
                    return Err(Failure::refused(text));
                }
                is_outage = is_out::<S>(&*error);
            }
            // The error of the try before says why, if there was one.
            Err(_too_long) => {}
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let was = if is_outage { "could not be reached" } else { "was not ready" };
            let line = format!("the database {was} for {limit:?}: {text}");
            return Err(Failure::new(Exit::Unreachable, line));
        }
        tries += 1;
        let is = if is_outage { "cannot be reached" } else { "is not ready" };
        tracing::warn!(error = text, "the database {is} yet");
        tokio::select! {
            () = tokio::time::sleep(pauses.backoff(tries, 1.0).min(left)) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// Whether the database cannot be reached, in contrast to one that answers and cannot serve this now.
fn is_out<S: Store>(error: &(dyn Error + 'static)) -> bool {
    match chain(error).find_map(|link| link.downcast_ref::<StoreError>()) {
        Some(StoreError::Failed { .. }) => false,
        Some(error) => error.class() == ErrorClass::Infrastructure,
        None => S::classify(error) == Some(ErrorClass::Infrastructure),
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

#[cfg(all(test, feature = "dynamodb", feature = "postgres", feature = "sqlite"))]
mod tests {
    use idem_dynamodb::DynamoStore;
    use idem_sqlx::{PostgresStore, SqliteStore};

    use super::*;

    #[test]
    fn a_url_of_another_database_is_refused() {
        for (url, of) in [
            ("postgres://h/d", Some(0)),
            ("postgresql://h/d", Some(0)),
            ("sqlite://x", Some(1)),
            ("sqlite:x", Some(1)),
            ("dynamodb:purchases", Some(2)),
            ("mysql://h/d", None),
            ("h", None),
        ] {
            let given = DatabaseUrl::from(url.to_owned());
            let checked = [
                check_url::<PostgresStore>(&given),
                check_url::<SqliteStore>(&given),
                check_url::<DynamoStore>(&given),
            ];
            assert_eq!(checked.iter().position(Result::is_ok), of, "{url}");
            assert_eq!(checked.iter().filter(|checked| checked.is_ok()).count(), usize::from(of.is_some()), "{url}");
            let refused = checked[2].as_ref().err().is_none_or(|text| text.contains("with dynamodb: ("));
            assert!(refused, "{:?}", checked[2]);
        }
    }
}
