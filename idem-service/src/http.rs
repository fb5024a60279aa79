//! Services over HTTP: settings, signals, logs, the admin endpoint, cleanup and the relay of events, around routes whose requests
//! have their effect once.

mod flags;
mod overdue;
mod run;
mod server;
mod settings;

use std::{ffi::OsString, fmt, future::Future, marker::PhantomData, pin::Pin, process::ExitCode};

use idem_core::{BoxError, Destination, Store, relay::Route};
use idem_http::IdempotencyBuilder;

use self::run::Started;
pub use self::settings::Opened;
#[cfg(feature = "postgres")]
use crate::database::Postgres;
#[cfg(feature = "sqlite")]
use crate::database::Sqlite;
#[cfg(feature = "tokio-postgres")]
use crate::database::TokioPostgres;
use crate::{
    beside::Beside,
    database::Database,
    exit::{Exit, Failure},
    kinds::Kind,
    service::NoSettings,
};

/// A service over HTTP, short of its settings: its routes for each store that it supports, and the tasks beside them.
///
/// Which store is used is said by `--database-url` and `--store`; one without routes is refused.
#[must_use]
pub struct HttpService {
    name: &'static str,
    version: &'static str,
    parts: Parts,
}

/// The parts that the application brings.
#[derive(Default)]
pub(crate) struct Parts {
    beside: Beside,
    on_store: Vec<(Kind, Serve)>,
}

/// Serves the routes of one store. A closure, so that stores of any type stand in one list, and others are not linked.
type Serve = Box<dyn FnOnce(Started) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send>;

impl HttpService {
    /// A service of this name, which scopes its keys and names its connections in the database's list: keep it over versions of
    /// the service.
    pub fn new(name: &'static str) -> Self {
        Self { name, version: env!("CARGO_PKG_VERSION"), parts: Parts::default() }
    }

    /// A service with settings of its own, `A`, which `--help`, variables and the file know as they know idem's. `build` is
    /// called once they are read and the log is written, and adds the parts made of them. Its error ends the process with
    /// status 2.
    pub fn configured<A, F, R>(self, build: F) -> HttpConfigured<A, F>
    where
        A: clap::Args + Send + 'static,
        F: FnOnce(Self, A) -> R + Send + 'static,
        R: Future<Output = Result<Self, BoxError>> + Send + 'static,
    {
        HttpConfigured { service: self, build, settings: PhantomData }
    }

    /// The application's version, which is noted with each record. Defaults to idem's. Under
    /// [`configured`](Self::configured) it is set before.
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// Requests may publish to these destinations: topics of the Kafka that `--brokers` names, unless
    /// [`relays`](Self::relays) says otherwise. Events are committed with the request's effects, and this process relays
    /// them, unless `--relay off` says that another one does. May be called several times.
    pub fn publishes_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.parts.beside.publishes_to(destinations);
        self
    }

    /// Brings events along this route. May be called once a destination.
    pub fn relays(mut self, route: Route) -> Self {
        self.parts.beside.relays(route);
        self
    }

    /// Serves these on the admin port beside idem's own, as [`Service::admin_routes`](crate::Service::admin_routes) does.
    pub fn admin_routes(mut self, routes: axum::Router) -> Self {
        self.parts.beside.serves_admin(routes);
        self
    }

    /// Runs this once the database is reached and its tables are as asked for, before anything is served. Its error ends the
    /// process with status 2. Several run one after the other; nothing bounds them in time.
    pub fn on_start<F, R>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.parts.beside.on_start(hook);
        self
    }

    /// Runs this once the last request has been answered, before the process ends. It is not run where the database was never
    /// reached, or after a second signal. Nothing bounds it in time.
    pub fn on_stop<F, R>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.parts.beside.on_stop(hook);
        self
    }

    /// The routes on the store of a [`Database`], your own or another crate's.
    pub fn store<D: Database>(mut self, api: Api<D::Store>) -> Self {
        let serve = |started| Box::pin(run::serve::<D>(api, started)) as Pin<Box<dyn Future<Output = _> + Send>>;
        self.parts.on_store.push((Kind::of::<D>(), Box::new(serve)));
        self
    }

    /// The routes on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres(self, api: Api<idem_sqlx::PostgresStore>) -> Self {
        self.store::<Postgres>(api)
    }

    /// The routes on PostgreSQL through tokio-postgres, for `--store tokio-postgres`.
    #[cfg(feature = "tokio-postgres")]
    pub fn tokio_postgres(self, api: Api<idem_tokio_postgres::PostgresStore>) -> Self {
        self.store::<TokioPostgres>(api)
    }

    /// The routes on SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(self, api: Api<idem_sqlx::SqliteStore>) -> Self {
        self.store::<Sqlite>(api)
    }

    /// Serves with the settings of the command line and the environment until it is stopped. Call it as the whole of `main`: it
    /// installs the handlers of SIGTERM and SIGINT, the log and its hook of panics.
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// The same with a command line of the caller's, whose first element is the program's name. The process is to end with this
    /// status: a request past the drain deadline may still hold a thread.
    pub fn run_with(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let (name, version) = (self.name, self.version);
        let build = |_: NoSettings| std::future::ready(Ok(self));
        run::run(name, version, arguments.into_iter().collect(), build)
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

/// An [`HttpService`] that is made once its own settings are read; see [`HttpService::configured`].
#[must_use]
pub struct HttpConfigured<A, F> {
    service: HttpService,
    build: F,
    settings: PhantomData<fn() -> A>,
}

impl<A, F> fmt::Debug for HttpConfigured<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfigured").field("service", &self.service).finish_non_exhaustive()
    }
}

impl<A, F, R> HttpConfigured<A, F>
where
    A: clap::Args + Send + 'static,
    F: FnOnce(HttpService, A) -> R + Send + 'static,
    R: Future<Output = Result<HttpService, BoxError>> + Send + 'static,
{
    /// As [`HttpService::run`].
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// As [`HttpService::run_with`].
    pub fn run_with(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let Self { service, build, .. } = self;
        let (name, version) = (service.name, service.version);
        run::run(name, version, arguments.into_iter().collect(), |own| build(service, own))
    }
}

/// Makes the routes.
type Routes<S> = Box<dyn FnOnce(Opened<S>) -> Result<axum::Router, BoxError> + Send>;

/// The routes for one store, and the tables they need there.
#[must_use]
pub struct Api<S: Store> {
    routes: Routes<S>,
    idempotency: settings::Set<S>,
    tables: &'static str,
}

impl<S: Store> Api<S> {
    /// Routes that this makes. It is called once, and its error ends the process with status 2.
    pub fn new(routes: impl FnOnce(Opened<S>) -> Result<axum::Router, BoxError> + Send + 'static) -> Self {
        Self { routes: Box::new(routes), idempotency: Box::new(|builder| builder), tables: "" }
    }

    /// Makes the settings that have no flag, after the flags: the owner of the keys, which is required, headers that are kept,
    /// and the others of [`IdempotencyBuilder`]. Each call adds to those before it, and wins where both set the same.
    pub fn idempotency(
        mut self,
        set: impl FnOnce(IdempotencyBuilder<S>) -> IdempotencyBuilder<S> + Send + 'static,
    ) -> Self {
        let before = self.idempotency;
        self.idempotency = Box::new(move |builder| set(before(builder)));
        self
    }

    /// The statements that `--create-tables` runs, in one transaction; processes that start together run them one after the
    /// other. They change nothing where the tables are there: `CREATE TABLE IF NOT EXISTS`.
    pub fn tables(mut self, statements: &'static str) -> Self {
        self.tables = statements;
        self
    }
}

impl<S: Store> fmt::Debug for Api<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("tables", &self.tables).finish_non_exhaustive()
    }
}
