//! Services over HTTP: settings, signals, logs, the admin endpoint, cleanup and the relay of events, around routes whose requests
//! have their effect once.

mod flags;
mod overdue;
mod run;
mod server;
mod settings;

use std::{ffi::OsString, fmt, future::Future, marker::PhantomData, process::ExitCode};

use idem_core::{
    BoxError, Store,
    outbox::{CloudEvents, Destination},
    relay::Route,
};
use idem_http::IdempotencyBuilder;

pub(crate) use self::run::run;
pub use self::settings::Opened;
use crate::{
    beside::Beside,
    database::Database,
    exit::Exit,
    program::{Application, FromArgs, Program},
};

/// A service over HTTP on the database `D`, short of the settings that its operator gives.
#[must_use]
pub struct HttpService<D: Database> {
    parts: Parts<D::Store>,
    on: PhantomData<fn() -> D>,
}

/// Makes the routes.
type Routes<S> = Box<dyn FnOnce(Opened<S>) -> Result<axum::Router, BoxError> + Send>;

/// The parts that the application brings.
#[doc(hidden)]
pub struct Parts<S: Store> {
    name: &'static str,
    version: Option<&'static str>,
    routes: Routes<S>,
    idempotency: Vec<settings::Set<S>>,
    tables: &'static str,
    beside: Beside,
}

impl<S: Store> fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

impl<D: Database> HttpService<D> {
    /// A service of this name, which scopes its keys and names its connections in the database's list: keep it over versions of
    /// the service. `routes` is called once, and its error ends the process with status 2.
    pub fn new(
        name: &'static str,
        routes: impl FnOnce(Opened<D::Store>) -> Result<axum::Router, BoxError> + Send + 'static,
    ) -> Self {
        let (idempotency, beside) = (Vec::new(), Beside::default());
        let parts = Parts { name, version: None, routes: Box::new(routes), idempotency, tables: "", beside };
        Self { parts, on: PhantomData }
    }

    /// A service with settings of its own, `A`, which `--help`, variables and the file know as they know idem's. `build` is
    /// called once they are read and the log is written, and makes the service of them. Its error ends the process with
    /// status 2.
    pub fn from_args<A, F, R>(build: F) -> FromArgs<Self>
    where
        A: clap::Args + Send + 'static,
        F: FnOnce(A) -> R + Send + 'static,
        R: Future<Output = Result<Self, BoxError>> + Send + 'static,
    {
        FromArgs::new(build)
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
        let program = Program::of(self.parts.name, self.parts.version, self.parts);
        Self::run_program(program, arguments.into_iter().collect())
    }

    /// Makes the settings that have no flag, after the flags: the owner of the keys, which is required, headers that are kept,
    /// and the others of [`IdempotencyBuilder`]. May be called several times, and the last call wins where two set the same.
    pub fn idempotency(
        mut self,
        set: impl FnOnce(IdempotencyBuilder<D::Store>) -> IdempotencyBuilder<D::Store> + Send + 'static,
    ) -> Self {
        self.parts.idempotency.push(Box::new(set));
        self
    }

    /// The statements that `--create-tables` runs, in one transaction; processes that start together run them one after the
    /// other. They change nothing where the tables are there: `CREATE TABLE IF NOT EXISTS`.
    pub fn tables(mut self, statements: &'static str) -> Self {
        self.parts.tables = statements;
        self
    }

    /// The application's version, which `--version` prints and which is noted with each record. Defaults to idem's.
    pub fn version(mut self, version: &'static str) -> Self {
        self.parts.version = Some(version);
        self
    }

    /// Requests may publish to these destinations: topics of the Kafka that `--brokers` names, unless
    /// [`relay`](Self::relay) says otherwise. Events are committed with the request's effects, and this process relays
    /// them, unless `--relay off` says that another one does. May be called several times.
    pub fn publish_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.parts.beside.publish_to(destinations);
        self
    }

    /// How the events that this service relays to its broker are written, and their `source`. Defaults to [`CloudEvents::binary`], with `--profile guardia` to
    /// [`CloudEvents::structured`],
    /// and to `/idem/` and the consumer's name, with the tenant before it where there is one. Change it only while no copy can come: a
    /// copy in another form has other bytes.
    ///
    /// ```
    /// use idem_service::{Database, HttpService, idem_core::outbox::CloudEvents};
    ///
    /// fn written<D: Database>(service: HttpService<D>) -> HttpService<D> {
    ///     service.cloud_events(CloudEvents::structured())
    /// }
    /// ```
    pub fn cloud_events(mut self, form: CloudEvents) -> Self {
        self.parts.beside.cloud_events = Some(form);
        self
    }

    /// Brings events along this route. May be called once a destination.
    pub fn relay(mut self, route: Route) -> Self {
        self.parts.beside.relay(route);
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
}

impl<D: Database> Application for HttpService<D> {
    type Parts = Parts<D::Store>;

    fn into_parts(self) -> Parts<D::Store> {
        self.parts
    }

    fn run_program(program: Program<Parts<D::Store>>, arguments: Vec<OsString>) -> Exit {
        D::serve(program, arguments)
    }
}

impl<D: Database> fmt::Debug for HttpService<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").field("parts", &self.parts).finish()
    }
}
