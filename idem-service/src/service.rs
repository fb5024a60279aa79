//! The application's part: its handlers and tables for each store, their effects, and the tasks beside them.

use std::{ffi::OsString, fmt, future::Future, marker::PhantomData, process::ExitCode};

use idem_core::{
    BatchHandler, BoxError, DedupConsumerBuilder, Destination, Effects, Handler, Store, WorkerSettings, relay::Route,
};

#[cfg(feature = "postgres")]
use crate::database::Postgres;
#[cfg(feature = "sqlite")]
use crate::database::Sqlite;
#[cfg(feature = "tokio-postgres")]
use crate::database::TokioPostgres;
use crate::{
    beside::Beside,
    broker::Broker,
    database::Database,
    exit::Exit,
    run,
    stores::{On, Stores},
};

/// A worker, short of its settings: the handlers for each store that it supports, and the tasks beside them.
///
/// Which store is used is said by `--database-url` and `--store`; one without handlers is refused.
#[must_use]
pub struct Service<L = ()> {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) stores: L,
    pub(crate) parts: Parts,
}

/// Changes the settings of the worker.
type WorkerHook = Box<dyn FnOnce(&mut WorkerSettings) + Send>;

/// The part that does not depend on the store.
pub(crate) struct Parts {
    pub(crate) effects: Effects,
    pub(crate) beside: Beside,
    pub(crate) worker: Vec<WorkerHook>,
}

impl Service {
    /// A worker whose handlers have this name, to which a consumer is
    /// [bound](idem_core::DedupConsumerBuilder::handler_name) at its first start: keep it over versions of one handler.
    pub fn new(name: &'static str, effects: Effects) -> Self {
        let parts = Parts { effects, beside: Beside::default(), worker: Vec::new() };
        Self { name, version: env!("CARGO_PKG_VERSION"), stores: (), parts }
    }

    /// A worker with settings of its own, `A`, which `--help`, variables and the file know as they know idem's.
    /// `build` is called once they are read and the log is written, and adds the parts made of them: it may connect to other
    /// systems, and handlers, hooks and routes capture those clients. Its error ends the worker with status 2, and the text
    /// stands in the log.
    ///
    /// ```no_run
    /// use std::{process::ExitCode, sync::Arc};
    ///
    /// use idem_service::{Broker, Effects, Handlers, Service, axum, idem_core::handler_fn};
    /// # use idem_service::idem_core::{BoxError, Handler, HandlerError, Message, Tx};
    /// # use idem_sqlx::PostgresStore;
    /// # struct Provider;
    /// # impl Provider {
    /// #     async fn connect(url: &str) -> Result<Self, BoxError> { Ok(Self) }
    /// #     async fn charge(&self, message: &Message) -> Result<(), BoxError> { Ok(()) }
    /// #     async fn say_goodbye(&self) {}
    /// #     fn is_well(&self) -> bool { true }
    /// # }
    ///
    /// #[derive(Debug, clap::Args)]
    /// struct Charging {
    ///     /// Where the provider of payments is
    ///     #[arg(long, env = "CHARGE_PROVIDER", value_name = "URL")]
    ///     provider: String,
    /// }
    ///
    /// fn run<Kafka: Broker>() -> ExitCode {
    ///     Service::new("charge", Effects::Outside)
    ///         .configured(async |service: Service, own: Charging| {
    ///             let provider = Arc::new(Provider::connect(&own.provider).await?);
    ///             let (leaving, asked) = (Arc::clone(&provider), Arc::clone(&provider));
    ///             let charge = handler_fn(async move |message: &Message, tx: &mut Tx<'_, PostgresStore>| {
    ///                 provider.charge(message).await?;
    ///                 // … and the writes through `tx`
    ///                 Ok(())
    ///             });
    ///             Ok(service
    ///                 .postgres(Handlers::new(charge))
    ///                 .worker(|settings| settings.strict_retention = true)
    ///                 .admin_routes(axum::Router::new().route(
    ///                     "/provider",
    ///                     axum::routing::get(async move || if asked.is_well() { "well" } else { "ill" }),
    ///                 ))
    ///                 .on_stop(async move || leaving.say_goodbye().await))
    ///         })
    ///         .run::<Kafka>()
    /// }
    /// ```
    pub fn configured<A, F>(self, build: F) -> Configured<A, F>
    where
        A: clap::Args + Send + 'static,
        F: Build<A>,
    {
        Configured { service: self, build, settings: PhantomData }
    }
}

impl<L> Service<L> {
    /// The application's version, which is noted with each record. Defaults to idem's. Under
    /// [`configured`](Service::configured) it is set before.
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// The handlers may publish to these destinations of the worker's own broker, each a topic or a queue by its name (on SQS
    /// its URL). Events are committed with the handler's effects, and this worker relays them, unless `--relay off` says
    /// that another process does. A store without an outbox is refused at the start, and so is the queue or topic that the worker
    /// consumes, or that its dead letters go to: where a handler means that, the destination has a route of its own by
    /// [`relays`](Self::relays). May be called several times.
    ///
    /// ```
    /// use std::process::ExitCode;
    ///
    /// use idem_service::{
    ///     Broker, Effects, Handlers, Service,
    ///     idem_core::{Event, Message, Tx, handler_fn},
    /// };
    /// use idem_sqlx::PostgresStore;
    ///
    /// fn run<Kafka: Broker>() -> ExitCode {
    ///     let charge = handler_fn(async |message: &Message, tx: &mut Tx<'_, PostgresStore>| {
    ///         // … the writes through `tx`, and with them:
    ///         tx.publish(message, Event::to("payments").event_type("PaymentCharged").json(&1177)?)?;
    ///         Ok(())
    ///     });
    ///     Service::new("charge", Effects::InTransaction)
    ///         .publishes_to(["payments"])
    ///         .postgres(Handlers::new(charge))
    ///         .run::<Kafka>()
    /// }
    /// ```
    pub fn publishes_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.parts.beside.publishes_to(destinations);
        self
    }

    /// Brings events along this route, for a destination outside the worker's own broker, or one whose receivers remember ids
    /// for another time than `--receiver-keeps`. May be called once a destination.
    pub fn relays(mut self, route: Route) -> Self {
        self.parts.beside.relays(route);
        self
    }

    /// Makes the settings that have no flag, after the flags; see [`WorkerSettings`]. May be called several times.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use idem_service::{Effects, Service};
    ///
    /// // Operators are obeyed at once, and a message that waits for a table is charged after a minute.
    /// let service = Service::new("ledger", Effects::InTransaction).worker(|settings| {
    ///     settings.control_every = Duration::from_millis(500);
    ///     settings.database_wait_max = Duration::from_secs(60);
    /// });
    /// ```
    pub fn worker(mut self, set: impl FnOnce(&mut WorkerSettings) + Send + 'static) -> Self {
        self.parts.worker.push(Box::new(set));
        self
    }

    /// Serves these on the admin port beside idem's own, where `--admin` is given, and under its limits: one request a
    /// connection, 30 s in all, the hosts of `--admin-host`, no password. A path that idem has too (`/`, `/metrics`,
    /// `/healthz`, `/readyz`) panics when a worker starts with `--admin`, and one that is given twice panics here.
    ///
    /// ```
    /// use idem_service::{Effects, Service, axum::{Router, routing::get}};
    ///
    /// let version = get(async || env!("CARGO_PKG_VERSION"));
    /// let service = Service::new("ledger", Effects::InTransaction).admin_routes(Router::new().route("/version", version));
    /// ```
    pub fn admin_routes(mut self, routes: axum::Router) -> Self {
        self.parts.beside.serves_admin(routes);
        self
    }

    /// Runs this once the database is reached and its tables are as asked for, before anything is received. Its error ends
    /// the worker with status 2. Several run one after the other, in the order given. Nothing bounds a hook in time, and none is
    /// dropped: a signal to stop is heeded once it has ended, and a second one ends the process.
    ///
    /// ```
    /// use idem_service::{Effects, Service};
    ///
    /// let service = Service::new("ledger", Effects::InTransaction).on_start(async || {
    ///     std::fs::metadata("templates/receipt.html").map_err(|error| format!("templates/receipt.html: {error}"))?;
    ///     Ok(())
    /// });
    /// ```
    pub fn on_start<F, R>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.parts.beside.on_start(hook);
        self
    }

    /// Runs this once the worker has drained or failed, also where the broker was never reached, before the process ends. It is
    /// not run where the database was not reached, where an [`on_start`](Self::on_start) failed, or after a second signal.
    /// Nothing bounds it in time.
    pub fn on_stop<F, R>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.parts.beside.on_stop(hook);
        self
    }
}

impl<L: Stores> Service<L> {
    /// The handlers on the store of a [`Database`], your own or another crate's.
    pub fn store<D: Database>(self, handlers: Handlers<D::Store>) -> Service<(L, On<D>)> {
        let Self { name, version, stores, parts } = self;
        Service { name, version, stores: (stores, On::new(handlers)), parts }
    }

    /// The handlers on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres(self, handlers: Handlers<idem_sqlx::PostgresStore>) -> Service<(L, On<Postgres>)> {
        self.store(handlers)
    }

    /// The handlers on PostgreSQL through tokio-postgres, for `--store tokio-postgres`; they may run at once, with
    /// `--handlers pipelined`.
    #[cfg(feature = "tokio-postgres")]
    pub fn tokio_postgres(
        self,
        handlers: Handlers<idem_tokio_postgres::PostgresStore>,
    ) -> Service<(L, On<TokioPostgres>)> {
        self.store(handlers)
    }

    /// The handlers on SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(self, handlers: Handlers<idem_sqlx::SqliteStore>) -> Service<(L, On<Sqlite>)> {
        self.store(handlers)
    }

    /// Runs the worker on the broker `B`, with the settings of the command line and the environment, until it is
    /// stopped. Call it as the whole of `main`: it installs the handlers of SIGTERM and SIGINT, the log and its hook of
    /// panics.
    #[must_use]
    pub fn run<B: Broker>(self) -> ExitCode {
        self.run_with::<B>(std::env::args_os()).into()
    }

    /// The same with a command line of the caller's, whose first element is the program's name. The process is to end with
    /// this status: a handler past the drain deadline may still hold a thread.
    pub fn run_with<B: Broker>(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let (name, version, arguments) = (self.name, self.version, arguments.into_iter().collect());
        run::run::<B, NoSettings, _, _>(name, version, arguments, |_| std::future::ready(Ok(self)))
    }
}

impl<L> fmt::Debug for Service<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

/// Of an application without settings of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct NoSettings {}

/// A [`Service`] that is made once its own settings are read; see [`Service::configured`].
#[must_use]
pub struct Configured<A, F> {
    service: Service,
    build: F,
    settings: PhantomData<fn() -> A>,
}

impl<A, F> fmt::Debug for Configured<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configured").field("service", &self.service).finish_non_exhaustive()
    }
}

/// A function that makes a service of its settings; see [`Service::configured`].
pub trait Build<A>: Send + 'static {
    /// The stores that it has handlers for.
    type Stores: Stores;
    /// The future of the call.
    type Future: Future<Output = Result<Service<Self::Stores>, BoxError>> + Send + 'static;

    /// Makes it.
    fn build(self, service: Service, settings: A) -> Self::Future;
}

impl<A, F, R, L> Build<A> for F
where
    F: FnOnce(Service, A) -> R + Send + 'static,
    R: Future<Output = Result<Service<L>, BoxError>> + Send + 'static,
    L: Stores,
{
    type Stores = L;
    type Future = R;

    fn build(self, service: Service, settings: A) -> R {
        self(service, settings)
    }
}

impl<A: clap::Args + Send + 'static, F: Build<A>> Configured<A, F> {
    /// As [`Service::run`].
    #[must_use]
    pub fn run<B: Broker>(self) -> ExitCode {
        self.run_with::<B>(std::env::args_os()).into()
    }

    /// As [`Service::run_with`].
    pub fn run_with<B: Broker>(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let Self { service, build, .. } = self;
        let (name, version, arguments) = (service.name, service.version, arguments.into_iter().collect());
        run::run::<B, A, _, _>(name, version, arguments, |own| build.build(service, own))
    }
}

/// Gives a consumer its handler. A closure, so that handlers of any type stand in one field.
type Attach<S> = Box<dyn FnOnce(DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> + Send>;

/// An application's handlers for one store, and the tables they need there.
#[must_use]
pub struct Handlers<S: Store> {
    pub(crate) each: Attach<S>,
    pub(crate) batch: Option<Attach<S>>,
    pub(crate) consumer: Attach<S>,
    pub(crate) tables: &'static str,
}

impl<S: Store> Handlers<S> {
    /// A handler that is called for each message.
    pub fn new(handler: impl Handler<S>) -> Self {
        let each = Box::new(|consumer: DedupConsumerBuilder<S>| consumer.handler(handler));
        Self { each, batch: None, consumer: Box::new(|consumer| consumer), tables: "" }
    }

    /// The same effect with set-based statements, for `--batch-handler`: a [`BatchHandler`], such as the one in
    /// `examples/ledger`.
    pub fn batch(mut self, handler: impl BatchHandler<S>) -> Self {
        self.batch = Some(Box::new(|consumer| consumer.batch_handler(handler)));
        self
    }

    /// Makes the settings that have no flag, after the flags: tenants, a policy for keys, rules of hashing, types without
    /// protection. Each call adds to those before it, and wins where both set the same.
    ///
    /// ```
    /// use idem_service::{
    ///     Handlers,
    ///     idem_core::{Handler, HashRules, JsonMembers, Store, Tenant},
    /// };
    ///
    /// fn handlers<S: Store>(handler: impl Handler<S>, rules: HashRules) -> Handlers<S> {
    ///     Handlers::new(handler).consumer(|consumer| {
    ///         consumer
    ///             .tenant_of(|message| Tenant::new(message.headers().text("tenant")?).ok())
    ///             .hash_rules(rules)
    ///     })
    /// }
    /// ```
    pub fn consumer(
        mut self,
        set: impl FnOnce(DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> + Send + 'static,
    ) -> Self {
        let before = self.consumer;
        self.consumer = Box::new(move |consumer| set(before(consumer)));
        self
    }

    /// The statements that `--create-tables` runs, in one transaction; workers that start together run them one after
    /// the other. They change nothing where the tables are there: `CREATE TABLE IF NOT EXISTS`.
    pub fn tables(mut self, statements: &'static str) -> Self {
        self.tables = statements;
        self
    }
}

impl<S: Store> fmt::Debug for Handlers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("batch", &self.batch.is_some()).field("tables", &self.tables).finish()
    }
}
