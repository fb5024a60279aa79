//! From the command line to the exit status.

use std::{ffi::OsString, future::Future, sync::Arc, time::Duration};

use idem_core::{
    BoxError, CancellationToken, ConfigError, DedupConsumer, DedupConsumerBuilder, RetryPolicy, Route, Store, Worker,
    WorkerError, WorkerSettings, chain, outbox::RelayBuilder, store,
};
use idem_schema::SchemaName;

use crate::{
    admin,
    broker::{Broker, Built},
    command_line::{self, CommandLine, Stop},
    database::{self, Database},
    exit::{self, Exit, Failure},
    key_secret, keys, logs, metrics, private, relay,
    service::{Handlers, Parts, Service},
    settings::{self, Settings},
    signals, stack,
    status::{Identity, Status},
    stores::{Started, Stores},
};

/// How long a worker remembers the keys that it knows committed.
const COMMITTED_FOR: Duration = Duration::from_secs(300);

/// Runs a worker to its end. `build` makes the service of its own settings.
pub(crate) fn run<B, A, R, L>(
    name: &'static str,
    version: &'static str,
    arguments: Vec<OsString>,
    build: impl FnOnce(A) -> R + Send + 'static,
) -> Exit
where
    B: Broker,
    A: clap::Args + Send + 'static,
    R: Future<Output = Result<Service<L>, BoxError>> + Send + 'static,
    L: Stores,
{
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let line = match command_line::read::<B, A>(name, version, &L::kinds(), arguments, variables) {
        Ok(line) => line,
        Err(Stop::Answered) => return Exit::Done,
        Err(Stop::Refused(text)) => {
            logs::last_line(logs::LogFormat::Text, &text);
            return Exit::Refused;
        }
    };
    let format = line.settings.log_format;
    let secret = line.settings.key_secret_file.as_deref();
    let prepared = logs::start(format).and_then(|()| secret.map_or(Ok(()), key_secret::hide_keys));
    let ended = prepared.map_err(Failure::refused).and_then(|()| start(name, version, line, build));
    match ended {
        Ok(()) => Exit::Done,
        Err(Failure { exit, line }) => {
            logs::last_line(format, &line);
            exit
        }
    }
}

/// Starts the runtime, and prints the summary once the worker has ended.
fn start<B, A, R, L>(
    name: &'static str,
    version: &'static str,
    line: CommandLine<B, A>,
    build: impl FnOnce(A) -> R + Send + 'static,
) -> Result<(), Failure>
where
    B: Broker,
    A: Send + 'static,
    R: Future<Output = Result<Service<L>, BoxError>> + Send + 'static,
    L: Stores,
{
    let stop = CancellationToken::new();
    let system = |error| Failure::new(Exit::Bug, format!("the system gives no thread or signal handler: {error}"));
    signals::listen(stop.clone()).map_err(system)?;
    let runtime = stack::runtime().map_err(system)?;
    let ended = runtime.block_on(async {
        let (status, checks) = (Arc::new(Status::new(&line.settings.consumer, stop)), line.settings.check);
        // In a task, whose panic is an answer.
        let ended = tokio::spawn(serve(name, version, line, build, Arc::clone(&status))).await;
        // Of a run, which a check is not.
        if !checks {
            exit::print_summary(&status.summary());
        }
        ended.unwrap_or_else(|_| {
            let why = "the worker panicked; the place is on standard error. Outside of the application's own functions and \
                       hooks that is a bug in idem: report it, with the log";
            Err(Failure::new(Exit::Bug, why))
        })
    });
    // A handler that passed the drain deadline may block its thread, and is not waited for.
    std::mem::forget(runtime);
    ended
}

async fn serve<B, A, R, L>(
    name: &'static str,
    version: &'static str,
    line: CommandLine<B, A>,
    build: impl FnOnce(A) -> R + Send,
    status: Arc<Status>,
) -> Result<(), Failure>
where
    B: Broker,
    A: Send,
    R: Future<Output = Result<Service<L>, BoxError>> + Send + 'static,
    L: Stores,
{
    let CommandLine { settings, broker, own, given, secrets, exposed, foreign } = line;
    tracing::info!(
        version,
        settings = given,
        connections = settings.connections(),
        forecast = settings.forecast(),
        "starting"
    );
    if !foreign.is_empty() {
        let variables = foreign.join(" ");
        tracing::warn!(
            variables,
            "variables that begin like the broker's are no settings of this worker, and are not read"
        );
    }
    for flag in &exposed {
        tracing::warn!(
            "the password in {flag} stands in the list of processes, where every login of this machine can read it; give it \
             by a variable or by --config"
        );
    }
    for (file, flag) in &secrets {
        private::warn_if_others_may(file, flag);
    }
    status.identify(Identity {
        program: name,
        version,
        process: process(),
        place: broker.place(),
        schema: Some(settings.schema.to_string()).filter(|schema| schema != SchemaName::DEFAULT),
        keys_are_hidden: settings.key_secret_file.is_some(),
    });
    status.supervise("rates", Arc::clone(&status).count());
    let database = settings.database(&L::kinds()).map_err(Failure::refused)?;
    // Before anything takes the handle of a metric.
    let recorded = settings.admin.as_ref().map(|_| metrics::install(&status));
    let Service { stores, mut parts, .. } = build(own).await.map_err(|error| Failure::refused(texts(&error)))?;
    if let Some((address, recorded)) = settings.admin.as_ref().zip(recorded) {
        admin::serve(address, &settings.admin_host, Arc::clone(&status), recorded, std::mem::take(&mut parts.routes))
            .await?;
    }
    let built = broker.build().await.map_err(|error| Failure::refused(texts(&error)))?;
    stores.consume(database, Started::<B> { name, version, parts, settings, built, status }).await
}

/// An error and its sources in one line.
fn texts(error: &BoxError) -> String {
    chain(&**error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Opens the store, puts consumer and worker together, and runs them.
pub(crate) async fn consume<D: Database, B: Broker>(
    handlers: Handlers<D::Store>,
    started: Started<B>,
) -> Result<(), Failure> {
    let Started { name, version, mut parts, settings, built, status } = started;
    let attach = match (settings.batch_handler, handlers.batch) {
        (false, _) => handlers.each,
        (true, Some(batch)) => batch,
        (true, None) => {
            return Err(Failure::refused("--batch-handler is given, and this worker has none: leave it out"));
        }
    };
    let open = || D::open(settings.for_database());
    let opened = database::reach::<D::Store, _, _>(settings.startup_timeout, &status.stop, open).await?;
    let Some(store) = opened.map(Arc::new) else { return Ok(()) };
    let consumer = attach(DedupConsumer::builder_shared(Arc::clone(&store), &settings.consumer))
        .handler_name(name)
        .version(version)
        .publishes_to(parts.destinations.clone())
        .effects(parts.effects);
    let (on_start, on_stop) = (std::mem::take(&mut parts.on_start), std::mem::take(&mut parts.on_stop));
    // Before the database is waited for, so that a wrong setting is told at once.
    let consumer = (handlers.consumer)(with_settings(consumer, &settings));
    let own = std::mem::take(&mut parts.relayed);
    let told = (settings.event_format, settings.receiver_keeps);
    let routes = if settings.relay {
        relay::routes(&parts.destinations, own, built.events.as_ref(), told)
            .map_err(|error| Failure::refused(texts(&error)))?
    } else {
        Vec::new()
    };
    let worker = worker::<D::Store, B>(consumer, built, routes, &settings, parts, &status)
        .map_err(|error| Failure::refused(settings::refused(&error)))?;
    let prepare = || D::prepare(&store, settings.for_database(), handlers.tables);
    if database::reach::<D::Store, _, _>(settings.startup_timeout, &status.stop, prepare).await?.is_none() {
        return Ok(());
    }
    if settings.check {
        let checked = worker.check(status.stop.clone().cancelled_owned()).await;
        checked.map_err(ended_with::<D::Store>)?;
        tracing::info!("checked: the worker could start; nothing was received or written");
        return Ok(());
    }
    for hook in on_start {
        hook().await.map_err(|error| Failure::refused(store::describe::<D::Store>(&*error)))?;
    }
    let ended = worker.run(status.stop.clone().cancelled_owned()).await;
    for hook in on_stop {
        hook().await;
    }
    ended.map(|_| ()).map_err(ended_with::<D::Store>)
}

fn ended_with<S: Store>(error: WorkerError) -> Failure {
    Failure::new(exit::of_worker(&error), database::ended(&store::describe::<S>(&error)))
}

/// What people know this process by.
pub(crate) fn process() -> String {
    format!("{}:{}", idem_schema::host_name(), std::process::id())
}

/// Hands the settings of a consumer to its builder.
fn with_settings<S: Store>(consumer: DedupConsumerBuilder<S>, settings: &Settings) -> DedupConsumerBuilder<S> {
    let consumer = consumer
        .key_source(keys::chain(settings.key.clone()))
        .key_policy(settings.key_policy())
        .retention(settings.retention)
        .handlers(settings.handlers())
        .payload_bytes_max(settings.payload_max)
        .headers_max(settings.headers_max)
        .headers_bytes_max(settings.headers_bytes_max)
        .busy_timeout(settings.busy_timeout)
        .handler_deadline(settings.handler_deadline);
    match settings.lanes {
        Some(lanes) => consumer.lanes(lanes),
        None => consumer,
    }
}

/// Hands the settings to core, which checks them.
fn worker<S: Store, B: Broker>(
    consumer: DedupConsumerBuilder<S>,
    built: Built<B::Source, B::Publisher>,
    routes: Vec<Route>,
    settings: &Settings,
    parts: Parts,
    status: &Arc<Status>,
) -> Result<Worker<S, B::Source>, ConfigError> {
    let source = Arc::new(built.source);
    let mut worker = Worker::builder_shared(consumer.build()?, Arc::clone(&source))
        .batch(settings.batch)
        .in_flight(settings.in_flight)
        // One message of the largest size fits, whatever was asked for.
        .in_flight_bytes(WorkerSettings::default().in_flight_bytes.max(settings.payload_max))
        .dead_letter_payload_bytes_max(settings.dead_letter_payload_max())
        .dead_letters_bytes_max(settings.dead_letters_bytes_max.0)
        .on_unkeepable(settings.on_unkeepable())
        .retry(RetryPolicy::new(settings.attempts, settings.backoff_first, settings.backoff_max))
        .on_conflict(settings.on_conflict())
        .older_than_retention(settings.older_than_retention())
        .strict_retention(settings.strict_retention)
        .breaker(settings.dead_letter_breaker)
        .cache_for(COMMITTED_FOR)
        .cleanup(settings.cleanup.settings())
        .drain(settings.drain)
        .startup_timeout(settings.startup_timeout);
    if let Some(idle_for) = settings.until_idle {
        worker = worker.until_idle(idle_for);
    }
    if let Some(publisher) = built.publisher {
        worker = worker.publisher(publisher);
    }
    if !routes.is_empty() {
        worker = worker.relay(|relay| routes.into_iter().fold(relay.named(process()), RelayBuilder::route));
    }
    for set in parts.worker {
        worker = worker.settings(set);
    }
    let worker = worker.build()?;
    status.built(worker.view(), move || B::partitions(&source));
    Ok(worker)
}
