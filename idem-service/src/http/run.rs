//! A service over HTTP: its store and routes are built of the settings, and it serves or is checked.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use idem_core::{
    BoxError, CancellationToken, RunOnce, Store,
    cleanup::Cleanup,
    relay::Relay,
    telemetry::{CONSUMER, HTTP_CONNECTIONS_CLOSED},
};
use tokio::net::TcpListener;

use super::{Opened, Parts, flags::HttpFlags, overdue, server};
use crate::{
    admin,
    beside::Beside,
    broker::Events,
    command_line::{self, Matched, Own, Stop},
    config,
    connections::Connections,
    database::open::{Database, check_url, reach, warn_of_redis},
    descriptors,
    exit::{self, Exit, Failure},
    life::{self, texts},
    metrics,
    program::{Build, Program},
    relay, secret_files,
    served::{RouteServed, Served},
    status::{Identity, Status, process},
};

/// How often the operators' controls are read, as often as a worker does.
const CONTROLS_EVERY: Duration = Duration::from_secs(2);

/// As many lanes as there are by default.
const LANES: usize = 16;

/// The settings read from the command line.
struct Line<A> {
    flags: HttpFlags,
    own: A,
    given: String,
    exposed: Vec<String>,
    secrets: Vec<(PathBuf, String)>,
}

/// Runs a service to its end.
pub(crate) fn run<D: Database>(program: Program<Parts<D::Store>>, arguments: Vec<OsString>) -> Exit {
    let (name, version, shown) = (program.name(&arguments), program.version(), program.shown_version());
    let own = Own { flags: program.flags, read: program.read };
    life::run(
        read(name, shown, own, arguments),
        |line| &line.flags.common,
        |line| {
            let serve = |status| prepare::<D>(version, line, status);
            life::serve("service", None, serve, exit::print_relayed)
        },
    )
}

fn read<A>(
    name: &'static str,
    version: &'static str,
    own: Own<impl FnOnce(&ArgMatches) -> Result<A, clap::Error>>,
    arguments: Vec<OsString>,
) -> Result<Line<A>, Stop> {
    let flags = (own.flags)(Command::new(name).version(version).next_help_heading("Application"));
    let command = HttpFlags::augment_args(flags.next_help_heading("Service").arg(config::flag()));
    // Otherwise clap takes the documentation of the structs that hold the flags.
    let about = "Serves requests over HTTP; a request's writes are committed exactly once for its Idempotency-Key";
    let command = command.about(about).long_about(None);
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let matched = command_line::matches(command, "KAFKA_", arguments, variables)?;
    // Another program's: this one need not have anything to do with Kafka.
    let Matched { command, matches, foreign: _, exposed, files } = matched;
    let refused = |error| Stop::Refused(crate::refusal::line(&error, &command));
    let flags = HttpFlags::from_arg_matches(&matches).map_err(refused)?;
    let own = (own.read)(&matches).map_err(refused)?;
    let secrets = command_line::secrets(&command, &matches, flags.common.key_secret_file.clone(), files);
    let given = command_line::given(&command, &matches);
    Ok(Line { flags, own, given, exposed, secrets })
}

async fn prepare<D: Database>(
    version: &'static str,
    line: Line<Build<Parts<D::Store>>>,
    status: Arc<Status>,
) -> Result<(), Failure> {
    let Line { flags, own, given, exposed, secrets } = line;
    tracing::info!(version, settings = given, "starting");
    secret_files::warn_of(&exposed, &secrets);
    check_url::<D>(&flags.common.database_url).map_err(Failure::refused)?;
    warn_of_redis::<D>(flags.common.redis_url.as_ref());
    // Before anything takes the handle of a metric.
    let recorded = metrics::are_read(flags.common.admin.is_some()).then(metrics::install);
    let mut parts = own().await.map_err(|error| Failure::refused(texts(&error)))?;
    let version = *parts.version.get_or_insert(version);
    status.of_consumer(parts.name);
    status.identify(Identity::new(parts.name, version, vec![("requests at", with_host(&flags.listen))], &flags.common));
    if let Some((address, recorded)) = flags.common.admin.as_ref().zip(recorded) {
        let own = parts.beside.take_admin_routes();
        admin::serve(address, &flags.common.admin_host, Arc::clone(&status), recorded, own).await?;
    }
    Box::pin(serve::<D>(version, flags, parts, status)).await
}

/// Opens the store, and serves the routes until the stop.
async fn serve<D: Database>(
    version: &'static str,
    flags: HttpFlags,
    parts: Parts<D::Store>,
    status: Arc<Status>,
) -> Result<(), Failure> {
    let Parts { name, routes, idempotency: set, tables, mut beside, .. } = parts;
    let (limit, address) = (flags.common.startup_timeout, with_host(&flags.listen));
    let open = || D::open(flags.for_database(name));
    let opened = reach::<D::Store, _, _>(limit, &status.stop, open).await?;
    let Some(store) = opened.map(Arc::new) else { return Ok(()) };
    let mut hooks = beside.take_hooks();
    // Before the database is waited for, so that a wrong setting is reported at once.
    let opened = Opened::new((name, version), Arc::clone(&store), &flags, &beside.destinations, set);
    let opened = opened.map_err(Failure::refused)?;
    let relay = relay_of(&store, &flags, beside).map_err(|error| Failure::refused(texts(&error)))?;
    let idempotency = opened.idempotency.clone();
    let cleanup = cleanup_of(&store, &flags, idempotency.cleanup_lag_max())?;
    let routes = routes(opened).map_err(|error| Failure::refused(texts(&error)))?;
    let prepare = async || {
        D::prepare(&store, flags.for_database(name), tables).await?;
        idempotency.start().await?;
        // A pause that was set before this start counts before anything is served.
        Ok(idempotency.engine().obey_control().await?)
    };
    if reach::<D::Store, _, _>(limit, &status.stop, prepare).await?.is_none() {
        return Ok(());
    }
    hooks.start::<D::Store>().await?;
    let refused = |error| Failure::refused(format!("--listen is {address:?}, which cannot be listened on: {error}"));
    let listener = TcpListener::bind(&address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    let cleaning =
        cleanup.map(|cleanup| status.supervise("cleanup", cleanup.run(status.stop.clone().cancelled_owned())));
    let stop = status.stop.clone().cancelled_owned();
    status.supervise("cleanup lag", overdue::measure(store.cleaner(), name, idempotency.cleanup_lag_max(), stop));
    status.supervise("controls", controls(idempotency.engine().clone(), status.stop.clone()));
    let relaying = relay.map(|relay| {
        status.relaying(relay.view());
        tokio::spawn(relay.run(status.stop.clone().cancelled_owned()))
    });
    let seen = idempotency.clone();
    status.serves(move || served(&seen));
    let connections = descriptors::for_clients(descriptors::raise(), flags.lanes.unwrap_or(LANES));
    tracing::info!(store = D::CLIENT, connections_max = connections, address = %bound, "serving requests");
    let closed = ::metrics::counter!(HTTP_CONNECTIONS_CLOSED.name, CONSUMER => name);
    let open = Connections::new(connections, closed);
    let served = server::serve(listener, open, routes, &status.stop, flags.common.drain, &idempotency).await;
    let relayed = match relaying {
        Some(relaying) => relaying.await.map_err(|_| Failure::new(Exit::Bug, "the relay panicked"))?,
        None => Ok(()),
    };
    if let Some(cleaning) = cleaning {
        // Seconds at most after the stop: it writes down what it has removed. One that died was reported.
        let _ = cleaning.await;
    }
    hooks.stop().await;
    served.map_err(|server::Left { unanswered, running }| {
        let line = format!(
            "within --drain {unanswered} requests were not answered, and {running} operations did not end, with those whose clients are \
             gone; what was committed of them stays, and nothing else: their clients learn it by their keys"
        );
        Failure::new(Exit::DrainDeadline, line)
    })?;
    relayed.map_err(|error| Failure::new(exit::of_relay(&error), texts(&error.into())))
}

/// Obeys the operators' controls until the stop, as a worker does.
async fn controls<S: Store>(engine: RunOnce<S>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(CONTROLS_EVERY)).await.is_some() {
        if let Err(error) = engine.obey_control().await {
            tracing::debug!(idem.consumer = %engine.name(), %error, "the controls cannot be read");
        }
    }
}

/// A port alone is one of this machine's.
fn with_host(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") }
}

/// The cleanup of this process; `None` where it is off, which is right where another process cleans.
fn cleanup_of<S: Store>(
    store: &Arc<S>,
    flags: &HttpFlags,
    lag_max: Option<Duration>,
) -> Result<Option<Cleanup>, Failure> {
    let (Some(every), Some(settings)) = (flags.cleanup.every(), flags.cleanup.settings()) else {
        if let Some(most) = lag_max {
            tracing::warn!(
                "--cleanup-every is off: with this profile another process has to remove expired records within {}s, as they are to \
                 be gone within 24 hours; idem_cleanup_lag_seconds says whether one does",
                most.as_secs()
            );
        }
        return Ok(None);
    };
    let settings = overdue::in_time(settings, every, lag_max).map_err(Failure::refused)?;
    let refused = |error| Failure::refused(crate::settings::refused(&error));
    Cleanup::new(store.cleaner(), settings).map(Some).map_err(refused)
}

/// The relay of events to their destinations; none if requests publish none, or another process relays
/// them.
fn relay_of<S: Store>(store: &Arc<S>, flags: &HttpFlags, mut beside: Beside) -> Result<Option<Relay>, BoxError> {
    beside.cloud_events.get_or_insert_with(|| flags.events());
    let routes = relay::routes(beside, events(flags)?.as_ref(), &flags.common)?;
    if routes.is_empty() {
        return Ok(None);
    }
    let outbox = store.outbox().ok_or("requests publish events, and this database has no outbox")?;
    let named = Relay::builder(outbox).of_store::<S>().named(process());
    Ok(Some(routes.into_iter().fold(named, idem_core::relay::RelayBuilder::route).build()?))
}

/// The facts about requests on the page.
fn served<S: Store>(idempotency: &idem_http::Idempotency<S>) -> Served {
    let waiting = idempotency.waiting();
    let of = |counts: idem_http::RouteCounts| RouteServed {
        first: counts.first,
        replayed: counts.replayed,
        refused: counts.refused,
        failed: counts.failed,
        route: counts.route,
    };
    Served {
        pause: idempotency.engine().pause(),
        routes: idempotency.routes().into_iter().map(of).collect(),
        in_memory: waiting.in_memory,
        at_database: waiting.at_database,
        at_database_max: waiting.at_database_max,
    }
}

#[cfg(feature = "kafka")]
fn events(flags: &HttpFlags) -> Result<Option<Events>, BoxError> {
    flags.kafka.events()
}

#[cfg(not(feature = "kafka"))]
#[allow(clippy::unnecessary_wraps, reason = "its twin has a broker")]
fn events(_: &HttpFlags) -> Result<Option<Events>, BoxError> {
    Ok(None)
}
