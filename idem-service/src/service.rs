//! A worker: its handler, what is beside it, and the settings that only its author can know.

use std::{ffi::OsString, fmt, future::Future, marker::PhantomData, process::ExitCode};

use idem_core::{
    BoxError, Effects, Handler, Store,
    config::WorkerSettings,
    consumer::DedupConsumerBuilder,
    handler::{BatchHandler, BoxHandler},
    outbox::{CloudEvents, Destination},
    relay::Route,
};

use crate::{
    beside::Beside,
    broker::Broker,
    database::Database,
    exit::Exit,
    program::{Application, FromArgs, Program},
};

/// A worker on the broker `B` and the database `D`, short of the settings that its operator gives.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use idem_service::prelude::*;
///
/// #[derive(serde::Deserialize)]
/// struct Purchase {
///     cents: i64,
/// }
///
/// async fn buy(bought: Purchase, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
///     let add = "UPDATE totals SET cents = cents + $1";
///     sqlx::query(add).bind(bought.cents).execute(tx.connection()).await?;
///     Ok(())
/// }
///
/// fn main() -> ExitCode {
///     Service::<Kafka, PostgresStore>::new("purchases", Effects::InTransaction, json_fn(buy)).run()
/// }
/// ```
#[must_use]
pub struct Service<B, D: Database> {
    parts: Parts<B, D::Store>,
    on: PhantomData<fn() -> D>,
}

/// Changes the settings of the worker.
pub(crate) type WorkerHook = Box<dyn FnOnce(&mut WorkerSettings) + Send>;

/// Changes the settings of the broker.
type BrokerHook<B> = Box<dyn FnOnce(B) -> B + Send>;

/// Changes the settings of the consumer.
pub(crate) type ConsumerHook<S> = Box<dyn FnOnce(DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> + Send>;

/// The parts that the application brings. The handlers are boxed, so that they alone are compiled where they are.
#[doc(hidden)]
pub struct Parts<B, S: Store> {
    pub(crate) name: &'static str,
    pub(crate) version: Option<&'static str>,
    pub(crate) effects: Effects,
    pub(crate) handler: BoxHandler<S>,
    /// Gives the consumer its handler for batches, in place of the other.
    pub(crate) batch: Option<ConsumerHook<S>>,
    pub(crate) keys: Vec<String>,
    pub(crate) consumer: Vec<ConsumerHook<S>>,
    pub(crate) broker: Vec<BrokerHook<B>>,
    pub(crate) tables: &'static str,
    pub(crate) beside: Beside,
    pub(crate) worker: Vec<WorkerHook>,
}

impl<B, S: Store> fmt::Debug for Parts<B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

impl<B: Broker, D: Database> Service<B, D> {
    /// A worker whose handler has this name, to which a consumer is
    /// [bound](idem_core::consumer::DedupConsumerBuilder::handler_name) at its first start: keep it over versions of one handler.
    pub fn new(name: &'static str, effects: Effects, handler: impl Handler<D::Store>) -> Self {
        let parts = Parts {
            name,
            version: None,
            effects,
            handler: handler.boxed(),
            batch: None,
            keys: Vec::new(),
            consumer: Vec::new(),
            broker: Vec::new(),
            tables: "",
            beside: Beside::default(),
            worker: Vec::new(),
        };
        Self { parts, on: PhantomData }
    }

    /// A worker with settings of its own, `A`, which `--help`, variables and the file know as they know idem's.
    /// `build` is called once they are read and the log is written, and makes the worker of them: it may connect to other
    /// systems, and handlers, hooks and routes capture those clients. Its error ends the worker with status 2, and the text
    /// is in the log.
    ///
    /// ```no_run
    /// use std::{process::ExitCode, sync::Arc};
    ///
    /// use idem_service::{axum, prelude::*};
    /// # use idem_service::idem_core::BoxError;
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
    /// fn main() -> ExitCode {
    ///     let service = async |own: Charging| {
    ///         let provider = Arc::new(Provider::connect(&own.provider).await?);
    ///         let (leaving, asked) = (Arc::clone(&provider), Arc::clone(&provider));
    ///         let charge = handler_fn(async move |message: &Message, tx: &mut Tx<'_, PostgresStore>| {
    ///             provider.charge(message).await?;
    ///             // … and the writes through `tx`
    ///             Ok(())
    ///         });
    ///         let state = axum::routing::get(async move || if asked.is_well() { "well" } else { "ill" });
    ///         Ok(Service::new("charge", Effects::Outside, charge)
    ///             .worker(|settings| settings.strict_retention = true)
    ///             .admin_routes(axum::Router::new().route("/provider", state))
    ///             .on_stop(async move || leaving.say_goodbye().await))
    ///     };
    ///     Service::<Kafka, PostgresStore>::from_args(service).run()
    /// }
    /// ```
    pub fn from_args<A, F, R>(build: F) -> FromArgs<Self>
    where
        A: clap::Args + Send + 'static,
        F: FnOnce(A) -> R + Send + 'static,
        R: Future<Output = Result<Self, BoxError>> + Send + 'static,
    {
        FromArgs::new(build)
    }

    /// Runs the worker with the settings of the command line and the environment, until it is stopped. Call it as the whole of
    /// `main`: it installs the handlers of SIGTERM and SIGINT, the log and its hook of panics.
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// The same with a command line of the caller's, whose first element is the program's name. The process is to end with
    /// this status: a handler past the drain deadline may still hold a thread.
    pub fn run_with(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let program = Program::of(self.parts.name, self.parts.version, self.parts);
        Self::run_program(program, arguments.into_iter().collect())
    }

    /// Handles messages with set-based statements, in place of the handler given to [`new`](Self::new), whose effect it has:
    /// a [`BatchHandler`].
    pub fn batch(mut self, handler: impl BatchHandler<D::Store>) -> Self {
        self.parts.batch = Some(Box::new(|consumer| consumer.batch_handler(handler)));
        self
    }

    /// Makes the settings of the consumer that have no flag, after the flags: tenants, a policy for keys, rules of hashing,
    /// types without protection. May be called several times, and the last call wins where two set the same.
    ///
    /// ```
    /// use idem_service::{
    ///     Broker, Database, Effects, Service,
    ///     idem_core::{Handler, Tenant, hash::HashRules},
    /// };
    ///
    /// fn ledger<B: Broker, D: Database>(handler: impl Handler<D::Store>, rules: HashRules) -> Service<B, D> {
    ///     Service::new("ledger", Effects::InTransaction, handler).consumer(|consumer| {
    ///         consumer
    ///             .tenant_from(|message| Tenant::new(message.headers().text("tenant")?).ok())
    ///             .hash_rules(rules)
    ///     })
    /// }
    /// ```
    pub fn consumer(
        mut self,
        set: impl FnOnce(DedupConsumerBuilder<D::Store>) -> DedupConsumerBuilder<D::Store> + Send + 'static,
    ) -> Self {
        self.parts.consumer.push(Box::new(set));
        self
    }

    /// Takes keys by this rule; the first rule that a message has a key for wins. Without any rule the header and the member
    /// `idempotencykey` of a JSON payload are looked at, which must agree where both are present. A consumer is bound to its
    /// rules at its first start.
    ///
    /// | rule | |
    /// |---|---|
    /// | `header:NAME` | a header or attribute, by its exact name |
    /// | `json:/POINTER` | a string in a JSON payload, by JSON pointer |
    /// | `record-key` | the broker's record key |
    /// | `cloudevents` | `idempotencykey` of a CloudEvent, else its `source` and `id` |
    /// | `message-id` | the broker's message id, which changes when a producer sends again |
    /// | `type` | the message's type, for `join(type,A)`; no key by itself |
    /// | `join(A,B)` | both of two others as one key; a message that lacks either has none |
    ///
    /// A rule of another form ends the worker with status 2. Any other source of keys is set by
    /// [`consumer`](Self::consumer).
    pub fn key(mut self, rule: impl Into<String>) -> Self {
        self.parts.keys.push(rule.into());
        self
    }

    /// Makes the settings of the broker that have no flag: [`Kafka::lane_by`](crate::Kafka) and so on. May be called several
    /// times.
    pub fn broker(mut self, set: impl FnOnce(B) -> B + Send + 'static) -> Self {
        self.parts.broker.push(Box::new(set));
        self
    }

    /// The statements that `--create-tables` runs, in one transaction; workers that start together run them one after
    /// the other. They change nothing where the tables are there: `CREATE TABLE IF NOT EXISTS`.
    pub fn tables(mut self, statements: &'static str) -> Self {
        self.parts.tables = statements;
        self
    }

    /// The application's version, which `--version` prints and which is noted with each record. Defaults to idem's.
    pub fn version(mut self, version: &'static str) -> Self {
        self.parts.version = Some(version);
        self
    }

    /// The handlers may publish to these destinations of the worker's own broker, each a topic or a queue by its name (on SQS
    /// its URL). Events are committed with the handler's effects, and this worker relays them, unless `--relay off` says
    /// that another process does. A store without an outbox is refused at the start, and so is the queue or topic that the worker
    /// consumes, or that its dead letters go to: where a handler means that, the destination has a route of its own by
    /// [`relay`](Self::relay). May be called several times.
    ///
    /// ```no_run
    /// use std::process::ExitCode;
    ///
    /// use idem_service::prelude::*;
    ///
    /// fn main() -> ExitCode {
    ///     let charge = handler_fn(async |message: &Message, tx: &mut Tx<'_, PostgresStore>| {
    ///         // … the writes through `tx`, and with them:
    ///         tx.publish(message, Event::to("payments").event_type("PaymentCharged").json(&1177)?)?;
    ///         Ok(())
    ///     });
    ///     Service::<Kafka, PostgresStore>::new("charge", Effects::InTransaction, charge).publish_to(["payments"]).run()
    /// }
    /// ```
    pub fn publish_to(mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) -> Self {
        self.parts.beside.publish_to(destinations);
        self
    }

    /// How the events that this worker relays to its broker are written, and their `source`. Defaults to [`CloudEvents::binary`],
    /// and to `/idem/` and the consumer's name, with the tenant before it where there is one. Change it only while no copy can come: a
    /// copy in another form has other bytes.
    ///
    /// ```
    /// use idem_service::{Broker, Database, Service, idem_core::outbox::CloudEvents};
    ///
    /// fn written<B: Broker, D: Database>(service: Service<B, D>) -> Service<B, D> {
    ///     service.cloud_events(CloudEvents::structured())
    /// }
    /// ```
    pub fn cloud_events(mut self, form: CloudEvents) -> Self {
        self.parts.beside.cloud_events = Some(form);
        self
    }

    /// Brings events along this route, for a destination outside the worker's own broker, or one whose receivers remember ids
    /// for another time than `--receiver-keeps`. May be called once a destination.
    pub fn relay(mut self, route: Route) -> Self {
        self.parts.beside.relay(route);
        self
    }

    /// Makes the settings that have no flag, after the flags; see [`WorkerSettings`]. May be called several times.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use idem_service::{Broker, Database, Service};
    ///
    /// /// Operators are obeyed at once, and a message that waits for a table is charged after a minute.
    /// fn watched<B: Broker, D: Database>(service: Service<B, D>) -> Service<B, D> {
    ///     service.worker(|settings| {
    ///         settings.control_every = Duration::from_millis(500);
    ///         settings.database_wait_max = Duration::from_secs(60);
    ///     })
    /// }
    /// ```
    pub fn worker(mut self, set: impl FnOnce(&mut WorkerSettings) + Send + 'static) -> Self {
        self.parts.worker.push(Box::new(set));
        self
    }

    /// Serves these on the admin port beside idem's own, where `--admin` is given, and under its limits: one request a
    /// connection, 30 s in all, the hosts of `--admin-host`, no password. idem's own paths
    /// (`/`, `/metrics`, `/healthz`, `/readyz`) stay idem's, and a path that is given twice panics here.
    ///
    /// ```
    /// use idem_service::{Broker, Database, Service, axum::{Router, routing::get}};
    ///
    /// fn versioned<B: Broker, D: Database>(service: Service<B, D>) -> Service<B, D> {
    ///     service.admin_routes(Router::new().route("/version", get(async || env!("CARGO_PKG_VERSION"))))
    /// }
    /// ```
    #[cfg(feature = "axum")]
    pub fn admin_routes(mut self, routes: axum::Router) -> Self {
        self.parts.beside.serves_admin(routes);
        self
    }

    /// Runs this once the database is reached and its tables are as asked for, before anything is received. Its error ends
    /// the worker with status 2. Several run one after the other, in the order given. Nothing bounds a hook in time, and none is
    /// dropped: a signal to stop is heeded once it has ended, and a second one ends the process.
    ///
    /// ```
    /// use idem_service::{Broker, Database, Service};
    ///
    /// fn with_receipts<B: Broker, D: Database>(service: Service<B, D>) -> Service<B, D> {
    ///     service.on_start(async || {
    ///         std::fs::metadata("templates/receipt.html").map_err(|error| format!("templates/receipt.html: {error}"))?;
    ///         Ok(())
    ///     })
    /// }
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

impl<B: Broker, D: Database> Application for Service<B, D> {
    type Parts = Parts<B, D::Store>;

    fn into_parts(self) -> Parts<B, D::Store> {
        self.parts
    }

    fn run_program(program: Program<Parts<B, D::Store>>, arguments: Vec<OsString>) -> Exit {
        B::run_on::<D>(program, arguments)
    }
}

impl<B, D: Database> fmt::Debug for Service<B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("parts", &self.parts).finish()
    }
}
