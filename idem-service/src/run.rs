//! A worker: its source, store and consumer are built of the settings, and it runs or is checked.

use std::{ffi::OsString, sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, ConfigError, ConsumerName, DedupConsumer, Source, Store, Worker,
    config::WorkerSettings,
    consumer::DedupConsumerBuilder,
    dead_letter::Publisher,
    inbox::{Inbox, Receiver},
    key::KeySource,
    relay::{RelayBuilder, Route},
};

use crate::{
    admin,
    broker::{Broker, Built},
    command_line::{self, CommandLine},
    database::open::{Database, check_url, reach, warn_of_redis},
    exit::{self, Exit, Failure},
    inbox::{self, Part},
    keys,
    life::{self, texts},
    metrics,
    program::{Build, Program},
    relay, secret_files,
    service::{ConsumerHook, Parts, WorkerHook},
    settings::{self, Settings},
    status::{Identity, Status, process},
};

/// How long a worker remembers the keys that it knows committed.
const COMMITTED_FOR: Duration = Duration::from_secs(300);

/// Runs a worker to its end.
pub(crate) fn run<B: Broker, D: Database>(program: Program<Parts<B, D::Store>>, arguments: Vec<OsString>) -> Exit {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let (name, version, shown) = (program.name(&arguments), program.version(), program.shown_version());
    let own = command_line::Own { flags: program.flags, read: program.read };
    let read = command_line::read::<B, _>(name, shown, own, arguments, variables);
    life::run(
        read,
        |line| &line.settings.flags,
        |line| {
            let (consumer, checks) = (line.settings.consumer.clone(), line.settings.check);
            let serve = |status| serve::<B, D>(version, line, status);
            // Of a run, which a check is not.
            life::serve("worker", Some(&consumer), serve, |status| {
                if !checks {
                    exit::print_summary(status)
                }
            })
        },
    )
}

async fn serve<B: Broker, D: Database>(
    version: &'static str,
    line: CommandLine<B, Build<Parts<B, D::Store>>>,
    status: Arc<Status>,
) -> Result<(), Failure> {
    let CommandLine { settings, mut broker, own, flags, given, secrets, exposed, foreign } = line;
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
    secret_files::warn_of(&exposed, &secrets);
    status.supervise("rates", Arc::clone(&status).count());
    check_url::<D>(&settings.flags.database_url).map_err(Failure::refused)?;
    warn_of_redis::<D>(settings.flags.redis_url.as_ref());
    // Before anything takes the handle of a metric.
    let recorded = metrics::are_read(settings.flags.admin.is_some()).then(metrics::install);
    let mut parts = own().await.map_err(|error| Failure::refused(texts(&error)))?;
    let version = *parts.version.get_or_insert(version);
    for set in std::mem::take(&mut parts.broker) {
        broker = set(broker);
    }
    status.identify(Identity::new(parts.name, version, broker.place(), &settings.flags));
    if let Some((address, recorded)) = settings.flags.admin.as_ref().zip(recorded) {
        let own = parts.beside.take_admin_routes();
        admin::serve(address, &settings.flags.admin_host, Arc::clone(&status), recorded, own).await?;
    }
    let own = |destination: &str| broker.own(destination);
    relay::check_own(&parts.beside, settings.flags.relay, own).map_err(Failure::refused)?;
    let built = broker.build().await.map_err(|error| Failure::refused(texts(&error)))?;
    Box::pin(consume::<D, B>((version, flags), parts, settings, built, status)).await
}

/// Opens the store, puts consumer and worker together, and runs them.
async fn consume<D: Database, B: Broker>(
    (version, flags): (&'static str, Vec<String>),
    mut parts: Parts<B, D::Store>,
    settings: Settings,
    built: Built<B::Source, B::Publisher>,
    status: Arc<Status>,
) -> Result<(), Failure> {
    settings.inbox.check().map_err(Failure::refused)?;
    let keys = keys::of(&parts.keys).map_err(Failure::refused)?;
    let receiver_keys = Arc::clone(&keys);
    let open = || D::open(settings.for_database());
    let limit = settings.flags.startup_timeout;
    let opened = reach::<D::Store, _, _>(limit, &status.stop, open).await?;
    let Some(store) = opened.map(Arc::new) else { return Ok(()) };
    let consumer = DedupConsumer::builder(Arc::clone(&store), &settings.consumer);
    let consumer = match parts.batch.take() {
        Some(attach) => attach(consumer),
        None => consumer.handler(parts.handler.clone()),
    };
    let consumer = consumer
        .handler_name(parts.name)
        .version(version)
        .publish_to(parts.beside.destinations.clone())
        .effects(parts.effects);
    let mut hooks = parts.beside.take_hooks();
    let tables = parts.tables;
    // Before the database is waited for, so that a wrong setting is reported at once.
    let consumer = set(with_settings(consumer, keys, &settings), std::mem::take(&mut parts.consumer));
    let routes = relay::routes(std::mem::take(&mut parts.beside), built.events.as_ref(), &settings.flags)
        .map_err(|error| Failure::refused(texts(&error)))?;
    let inbox = settings.inbox.part().map(|part| Ok((part, inbox::of(D::inbox(&store))?))).transpose()?;
    let worker = Wired { consumer, routes, publisher: built.publisher, hooks: parts.worker, settings: &settings };
    let running = match inbox {
        None => worker.direct::<B>(built.source, &status).map(Running::Direct),
        Some(inbox) => worker.behind::<B>(built.source, inbox, receiver_keys, &status).map(Running::Inbox),
    };
    let running = running.map_err(|error| Failure::refused(settings::refused_of(&flags, &error)))?;
    let prepare = || D::prepare(&store, settings.for_database(), tables);
    if reach::<D::Store, _, _>(limit, &status.stop, prepare).await?.is_none() {
        return Ok(());
    }
    if settings.check {
        running.check(status.stop.clone()).await?;
        tracing::info!("checked: the worker could start; nothing was received or written");
        return Ok(());
    }
    hooks.start::<D::Store>().await?;
    let ended = running.run(status.stop.clone()).await;
    hooks.stop().await;
    ended
}

/// A process between its start and its end.
enum Running<S: Store, B: Source> {
    /// Its messages come from the broker.
    Direct(Worker<S, B>),
    /// They come through an inbox.
    Inbox(inbox::Running<S, B>),
}

impl<S: Store, B: Source> Running<S, B> {
    async fn check(self, stop: CancellationToken) -> Result<(), Failure> {
        match self {
            Self::Direct(worker) => {
                worker.check(stop.cancelled_owned()).await.map_err(|error| inbox::ended_with::<S>(&error))
            }
            Self::Inbox(running) => running.check(stop).await,
        }
    }

    async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        match self {
            Self::Direct(worker) => {
                let ended = worker.run(stop.cancelled_owned()).await;
                ended.map(|_| ()).map_err(|error| inbox::ended_with::<S>(&error))
            }
            Self::Inbox(running) => running.run(stop).await,
        }
    }
}

/// Makes the application's settings of a consumer.
fn set<S: Store>(consumer: DedupConsumerBuilder<S>, hooks: Vec<ConsumerHook<S>>) -> DedupConsumerBuilder<S> {
    hooks.into_iter().fold(consumer, |consumer, set| set(consumer))
}

/// Hands the settings of a consumer to its builder.
fn with_settings<S: Store>(
    consumer: DedupConsumerBuilder<S>,
    keys: Arc<dyn KeySource>,
    settings: &Settings,
) -> DedupConsumerBuilder<S> {
    let consumer = consumer
        .key_source(keys)
        .retention(settings.retention)
        .payload_bytes_max(settings.payload_max)
        .handler_deadline(settings.flags.handler_deadline);
    match settings.lanes {
        Some(lanes) => consumer.lanes(lanes),
        None => consumer,
    }
}

/// A worker short of its source.
struct Wired<'s, S: Store, P> {
    consumer: DedupConsumerBuilder<S>,
    routes: Vec<Route>,
    publisher: Option<P>,
    hooks: Vec<WorkerHook>,
    settings: &'s Settings,
}

impl<S: Store, P: Publisher> Wired<'_, S, P> {
    /// At the broker.
    fn direct<B: Broker>(self, source: B::Source, status: &Status) -> Result<Worker<S, B::Source>, ConfigError> {
        let source = Arc::new(source);
        let worker = self.on(Arc::clone(&source))?;
        status.built(worker.view(), move || B::partitions(&source));
        Ok(worker)
    }

    /// Behind an inbox, with its receiver where that is this process's part too.
    fn behind<B: Broker>(
        self,
        source: B::Source,
        (part, of): (Part, Arc<dyn Inbox>),
        keys: Arc<dyn KeySource>,
        status: &Status,
    ) -> Result<inbox::Running<S, B::Source>, ConfigError> {
        let (source, settings) = (Arc::new(source), self.settings);
        let rule = "it must have 1 to 100 bytes without control characters";
        let name = &settings.consumer;
        let consumer = ConsumerName::new(name).map_err(|_| ConfigError::new("name", format!("{name:?}"), rule))?;
        let receiver = part.receives().then(|| {
            let (source, of) = (Arc::clone(&source), Arc::clone(&of));
            inbox::receiver(source, of, consumer.clone(), keys, &settings.inbox, settings.flags.startup_timeout)
        });
        let view = receiver.as_ref().map(Receiver::view);
        let mut worker = None;
        if part.processes() {
            let inbox = Arc::new(inbox::source(of, consumer, view.clone()));
            let built = self.on(Arc::clone(&inbox))?;
            status.behind(move || inbox.backlog());
            status.built(built.view(), move || if part.receives() { B::partitions(&source) } else { None });
            worker = Some(built);
        } else if let Some(view) = view {
            status.receives(view, move || B::partitions(&source));
        }
        Ok(inbox::Running { receiver, worker, drain: settings.flags.drain, until_idle: settings.until_idle })
    }

    /// Hands the settings to core, which checks them.
    fn on<M: Source>(self, source: Arc<M>) -> Result<Worker<S, M>, ConfigError> {
        let Self { consumer, routes, publisher, hooks, settings } = self;
        let mut worker = Worker::builder(consumer.build()?, source)
            .batch(settings.batch)
            // One message of the largest size fits, whatever was asked for.
            .in_flight_bytes(WorkerSettings::default().in_flight_bytes.max(settings.payload_max))
            .dead_letter_payload_bytes_max(settings.dead_letter_payload_max())
            .dead_letters_bytes_max(settings.dead_letters_bytes_max.0)
            .settings(|worker| {
                worker.retry.attempts = settings.attempts;
                worker.retry.later = settings.retry_later;
            })
            .cache_for(COMMITTED_FOR)
            .cleanup(settings.cleanup.settings())
            .drain(settings.flags.drain)
            .startup_timeout(settings.flags.startup_timeout);
        if let Some(idle_for) = settings.until_idle {
            worker = worker.until_idle(idle_for);
        }
        if let Some(publisher) = publisher {
            worker = worker.publisher(publisher);
        }
        if !routes.is_empty() {
            worker = worker.relay(|relay| routes.into_iter().fold(relay.named(process()), RelayBuilder::route));
        }
        for set in hooks {
            worker = worker.settings(set);
        }
        worker.build()
    }
}
