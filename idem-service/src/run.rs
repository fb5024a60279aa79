//! From the command line to the exit status.

use std::{ffi::OsString, sync::Arc, time::Duration};

use idem_core::{
    BoxError, CancellationToken, ConfigError, DedupConsumer, DedupConsumerBuilder, RetryPolicy, Store, Worker,
    WorkerSettings, chain,
};
use idem_sqlx::{PostgresStore, SqliteStore};

use crate::{
    admin,
    broker::{Broker, Built},
    command_line::{self, CommandLine, Stop},
    database::{self, Database},
    exit::{self, Exit, Failure},
    key_secret, keys, logs,
    service::Service,
    settings::{self, DatabaseKind, Settings},
    signals, stack,
    status::Status,
};

/// How long a worker remembers the keys that it knows committed.
const COMMITTED_FOR: Duration = Duration::from_secs(300);

/// Runs a worker to its end.
pub(crate) fn run<B: Broker>(service: Service, arguments: Vec<OsString>) -> Exit {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let line = match command_line::read::<B>(&service, arguments, variables) {
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
    let ended = prepared.map_err(Failure::refused).and_then(|()| start(service, line));
    match ended {
        Ok(()) => Exit::Done,
        Err(Failure { exit, line }) => {
            logs::last_line(format, &line);
            exit
        }
    }
}

/// Starts the runtime, and prints the summary once the worker has ended.
fn start<B: Broker>(service: Service, line: CommandLine<B>) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let system = |error| Failure::new(Exit::Bug, format!("the system gives no thread or signal handler: {error}"));
    signals::listen(stop.clone()).map_err(system)?;
    let runtime = stack::runtime().map_err(system)?;
    let ended = runtime.block_on(async {
        let status = Arc::new(Status::new(&line.settings.consumer, stop));
        // In a task, whose panic is an answer.
        let ended = tokio::spawn(serve(service, line, Arc::clone(&status))).await;
        exit::print_summary(&status.summary());
        ended.unwrap_or_else(|_| Err(Failure::new(Exit::Bug, "the worker panicked, which is a bug in idem")))
    });
    // A handler that passed the drain deadline goes on until the process ends: it may block its thread, and is not
    // waited for. Ending the runtime under it would make the worker's tasks report that they died.
    std::mem::forget(runtime);
    ended
}

async fn serve<B: Broker>(service: Service, line: CommandLine<B>, status: Arc<Status>) -> Result<(), Failure> {
    let CommandLine { settings, broker, given } = line;
    tracing::info!(
        version = service.version,
        settings = given,
        connections = settings.connections(),
        forecast = settings.forecast(),
        "starting"
    );
    let database = settings.database().map_err(Failure::refused)?;
    if let Some(address) = &settings.admin {
        admin::serve(address, Arc::clone(&status)).await?;
    }
    let texts = |error: BoxError| chain(&*error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let built = broker.build().await.map_err(|error| Failure::refused(texts(error)))?;
    match database {
        DatabaseKind::Postgres => consume::<PostgresStore, B>(service, &settings, built, status).await,
        DatabaseKind::TokioPostgres => {
            consume::<idem_tokio_postgres::PostgresStore, B>(service, &settings, built, status).await
        }
        DatabaseKind::Sqlite => consume::<SqliteStore, B>(service, &settings, built, status).await,
    }
}

/// Opens the store, puts consumer and worker together, and runs them.
async fn consume<S: Database, B: Broker>(
    service: Service,
    settings: &Settings,
    built: Built<B::Source, B::Publisher>,
    status: Arc<Status>,
) -> Result<(), Failure> {
    let (name, version, effects) = (service.name, service.version, service.effects);
    let handlers = S::handlers(service).ok_or_else(|| {
        Failure::refused(format!("this worker has no handlers for {}: give another --database-url or --store", S::NAME))
    })?;
    let attach = match (settings.batch_handler, handlers.batch) {
        (false, _) => handlers.each,
        (true, Some(batch)) => batch,
        (true, None) => {
            return Err(Failure::refused("--batch-handler is given, and this worker has none: leave it out"));
        }
    };
    let opened = database::reach::<S, _, _>(settings, &status.stop, || S::of(settings)).await?;
    let Some(store) = opened.map(Arc::new) else { return Ok(()) };
    let consumer = attach(DedupConsumer::builder_shared(Arc::clone(&store), &settings.consumer))
        .handler_name(name)
        .version(version)
        .effects(effects);
    // Before the database is waited for, so that a wrong setting is told at once.
    let worker = worker::<S, B>(consumer, built, settings, &status)
        .map_err(|error| Failure::refused(settings::refused(&error)))?;
    let prepare = || store.prepare(settings, handlers.tables);
    if database::reach::<S, _, _>(settings, &status.stop, prepare).await?.is_none() {
        return Ok(());
    }
    let ended = worker.run(status.stop.clone().cancelled_owned()).await;
    ended.map(|_| ()).map_err(|error| Failure::new(exit::of_worker(&error), database::describe::<S>(&error)))
}

/// Hands the settings to core, which checks them.
fn worker<S: Store, B: Broker>(
    consumer: DedupConsumerBuilder<S>,
    built: Built<B::Source, B::Publisher>,
    settings: &Settings,
    status: &Arc<Status>,
) -> Result<Worker<S, B::Source>, ConfigError> {
    let mut consumer = consumer
        .key_source(keys::chain(settings.key.clone()))
        .retention(settings.retention)
        .handlers(settings.handlers())
        .payload_bytes_max(settings.payload_max)
        .busy_timeout(settings.busy_timeout)
        .handler_deadline(settings.handler_deadline);
    if let Some(lanes) = settings.lanes {
        consumer = consumer.lanes(lanes);
    }
    let source = Arc::new(built.source);
    let mut worker = Worker::builder_shared(consumer.build()?, Arc::clone(&source))
        .batch(settings.batch)
        .in_flight(settings.in_flight)
        // One message of the largest size fits, whatever was asked for.
        .in_flight_bytes(WorkerSettings::default().in_flight_bytes.max(settings.payload_max))
        .dead_letter_payload_bytes_max(settings.dead_letter_payload_max())
        .on_unkeepable(settings.on_unkeepable())
        .retry(RetryPolicy::new(settings.attempts, settings.backoff_first, settings.backoff_max))
        .on_conflict(settings.on_conflict())
        .older_than_retention(settings.older_than_retention())
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
    let worker = worker.build()?;
    status.built(worker.view(), move || B::partitions(&source));
    Ok(worker)
}
