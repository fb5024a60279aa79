//! From the command line to the exit status.

use std::{ffi::OsString, future::Future, sync::Arc};

use clap::{Args as _, Command, FromArgMatches as _};
use idem_core::{BoxError, CancellationToken, Cleanup, CleanupSettings, Relay, Route, Store, chain, store};
use tokio::net::TcpListener;

use super::{Api, HttpService, Opened, Parts, flags::HttpFlags, server};
use crate::{
    admin,
    broker::Events,
    command_line::{self, Stop},
    config,
    database::{self, Database},
    exit::{self, Exit, Failure},
    key_secret, logs, metrics, private, relay,
    run::process,
    signals, stack,
    status::Status,
    stores::Kind,
};

/// What the command line says, read.
struct Line<A> {
    flags: HttpFlags,
    own: A,
    given: String,
    exposed: Vec<String>,
    secrets: Vec<(std::path::PathBuf, &'static str)>,
}

/// A service that has read its settings.
pub(crate) struct Started {
    name: &'static str,
    version: &'static str,
    flags: HttpFlags,
    parts: Parts,
    status: Arc<Status>,
}

/// Runs a service to its end. `build` makes it of its own settings.
pub(super) fn run<A, R>(
    name: &'static str,
    version: &'static str,
    arguments: Vec<OsString>,
    build: impl FnOnce(A) -> R + Send + 'static,
) -> Exit
where
    A: clap::Args + Send + 'static,
    R: Future<Output = Result<HttpService, BoxError>> + Send + 'static,
{
    let line = match read::<A>(name, version, arguments) {
        Ok(line) => line,
        Err(Stop::Answered) => return Exit::Done,
        Err(Stop::Refused(text)) => {
            logs::last_line(logs::LogFormat::Text, &text);
            return Exit::Refused;
        }
    };
    let format = line.flags.log_format;
    let secret = line.flags.key_secret_file.as_deref();
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

fn read<A: clap::Args>(name: &'static str, version: &'static str, arguments: Vec<OsString>) -> Result<Line<A>, Stop> {
    let own = A::augment_args(Command::new(name).version(version).next_help_heading("Application"));
    let command = HttpFlags::augment_args(own.next_help_heading("Service").arg(config::flag()));
    // Not what clap takes for it: the documentation of the structs that hold the flags.
    let about = "Serves requests over HTTP; what one writes is committed exactly once for its Idempotency-Key";
    let mut command = command.about(about).long_about(None);
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let (matches, foreign) = command_line::matches(&mut command, "KAFKA_", arguments, variables)?;
    // Another program's: this one need not have anything to do with Kafka.
    drop(foreign);
    let refused = |error| Stop::Refused(crate::refusal::line(&error, &command));
    let flags = HttpFlags::from_arg_matches(&matches).map_err(refused)?;
    let own = A::from_arg_matches(&matches).map_err(refused)?;
    let secrets = command_line::secrets(&command, &matches, flags.key_secret_file.clone());
    let (given, exposed) = (command_line::given(&command, &matches), command_line::exposed(&command, &matches));
    Ok(Line { flags, own, given, exposed, secrets })
}

/// Starts the runtime, and prints the summary once the service has ended.
fn start<A, R>(
    name: &'static str,
    version: &'static str,
    line: Line<A>,
    build: impl FnOnce(A) -> R + Send + 'static,
) -> Result<(), Failure>
where
    A: Send + 'static,
    R: Future<Output = Result<HttpService, BoxError>> + Send + 'static,
{
    let stop = CancellationToken::new();
    let system = |error| Failure::new(Exit::Bug, format!("the system gives no thread or signal handler: {error}"));
    signals::listen(stop.clone()).map_err(system)?;
    let runtime = stack::runtime().map_err(system)?;
    let ended = runtime.block_on(async {
        let status = Arc::new(Status::new(name, stop));
        // In a task, whose panic is an answer.
        let ended = tokio::spawn(prepare(name, version, line, build, Arc::clone(&status))).await;
        exit::print_relayed(&status.summary());
        ended.unwrap_or_else(|_| {
            let why = "the service panicked; the place is on standard error. Outside of the application's own functions and \
                       hooks that is a bug in idem: report it, with the log";
            Err(Failure::new(Exit::Bug, why))
        })
    });
    // What passed the drain deadline may block its thread, and is not waited for.
    std::mem::forget(runtime);
    ended
}

async fn prepare<A, R>(
    name: &'static str,
    version: &'static str,
    line: Line<A>,
    build: impl FnOnce(A) -> R + Send,
    status: Arc<Status>,
) -> Result<(), Failure>
where
    R: Future<Output = Result<HttpService, BoxError>> + Send + 'static,
{
    let Line { flags, own, given, exposed, secrets } = line;
    tracing::info!(version, settings = given, "starting");
    for flag in &exposed {
        tracing::warn!(
            "the password in {flag} stands in the list of processes, where every login of this machine can read it; give it \
             by a variable or by --config"
        );
    }
    for (file, flag) in &secrets {
        private::warn_if_others_may(file, flag);
    }
    // Before anything takes the handle of a metric.
    let recorded = flags.admin.as_ref().map(|_| metrics::install(&status));
    let HttpService { mut parts, .. } = build(own).await.map_err(|error| Failure::refused(texts(&error)))?;
    let serve = chosen(&mut parts, flags.database_url.scheme()).map_err(Failure::refused)?;
    if let Some((address, recorded)) = flags.admin.as_ref().zip(recorded) {
        let own = std::mem::take(&mut parts.admin_routes);
        admin::serve(address, &flags.admin_host, Arc::clone(&status), recorded, own).await?;
    }
    serve(Started { name, version, flags, parts, status }).await
}

/// What serves the routes of the store that goes with the URL.
fn chosen(parts: &mut Parts, scheme: &str) -> Result<super::Serve, String> {
    let index = parts.on_store.iter().position(|(kind, _)| kind.schemes.contains(&scheme));
    match index {
        Some(index) => Ok(parts.on_store.swap_remove(index).1),
        None if parts.on_store.is_empty() => {
            Err("this service has no routes for any database: give its HttpService some".to_owned())
        }
        None => {
            let first = |(kind, _): &(Kind, _)| kind.schemes.first().map(|scheme| format!("{scheme}://"));
            let schemes: Vec<String> = parts.on_store.iter().filter_map(first).collect();
            Err(format!("--database-url must begin with {} (its value is not shown)", schemes.join(" or ")))
        }
    }
}

/// An error and its sources in one line.
fn texts(error: &BoxError) -> String {
    chain(&**error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Opens the store, and serves the routes until the stop.
pub(super) async fn serve<D: Database>(api: Api<D::Store>, started: Started) -> Result<(), Failure> {
    let Started { name, version, flags, mut parts, status } = started;
    let (limit, address) = (flags.startup_timeout, with_host(&flags.listen));
    let open = || D::open(flags.for_database(name));
    let opened = database::reach::<D::Store, _, _>(limit, &status.stop, open).await?;
    let Some(store) = opened.map(Arc::new) else { return Ok(()) };
    let (on_start, on_stop) = (std::mem::take(&mut parts.on_start), std::mem::take(&mut parts.on_stop));
    // Before the database is waited for, so that a wrong setting is told at once.
    let opened = Opened::new((name, version), Arc::clone(&store), &flags, &parts.destinations, api.idempotency);
    let opened = opened.map_err(Failure::refused)?;
    let relay = relay_of(&store, &flags, parts).map_err(|error| Failure::refused(texts(&error)))?;
    let cleanup = flags.cleanup.settings().map(|settings| cleanup_of(&store, settings)).transpose()?;
    let idempotency = opened.idempotency.clone();
    let routes = (api.routes)(opened).map_err(|error| Failure::refused(texts(&error)))?;
    let prepare = async || {
        D::prepare(&store, flags.for_database(name), api.tables).await?;
        Ok(idempotency.start().await?)
    };
    if database::reach::<D::Store, _, _>(limit, &status.stop, prepare).await?.is_none() {
        return Ok(());
    }
    for hook in on_start {
        hook().await.map_err(|error| Failure::refused(store::describe::<D::Store>(&*error)))?;
    }
    let refused = |error| Failure::refused(format!("--listen is {address:?}, which cannot be listened on: {error}"));
    let listener = TcpListener::bind(&address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    if let Some(cleanup) = cleanup {
        status.supervise("cleanup", cleanup.run(status.stop.clone().cancelled_owned()));
    }
    let relaying = relay.map(|relay| {
        status.relaying(relay.view());
        tokio::spawn(relay.run(status.stop.clone().cancelled_owned()))
    });
    status.serves();
    tracing::info!(address = %bound, "serving requests");
    let served = server::serve(listener, routes, &status.stop, flags.drain).await;
    let relayed = match relaying {
        Some(relaying) => relaying.await.map_err(|_| Failure::new(Exit::Bug, "the relay panicked"))?,
        None => Ok(()),
    };
    for hook in on_stop {
        hook().await;
    }
    served.map_err(|left| {
        let line = format!("{left} connections had requests that did not end within --drain; nothing of them is kept");
        Failure::new(Exit::DrainDeadline, line)
    })?;
    relayed.map_err(|error| Failure::new(exit::of_relay(&error), texts(&error.into())))
}

/// A port alone is one of this machine's.
fn with_host(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("127.0.0.1:{address}") }
}

fn cleanup_of<S: Store>(store: &Arc<S>, settings: CleanupSettings) -> Result<Cleanup, Failure> {
    let refused = |error| Failure::refused(crate::settings::refused(&error));
    Cleanup::new(store.cleaner(), settings).map_err(refused)
}

/// What brings events to where they go; nothing where requests publish none, or another process does it.
fn relay_of<S: Store>(store: &Arc<S>, flags: &HttpFlags, parts: Parts) -> Result<Option<Relay>, BoxError> {
    if !flags.relay || (parts.destinations.is_empty() && parts.relayed.is_empty()) {
        return Ok(None);
    }
    let outbox = store.outbox().ok_or("requests publish events, and this database has no outbox")?;
    let routes: Vec<Route> = relay::routes(
        &parts.destinations,
        parts.relayed,
        events(flags)?.as_ref(),
        (flags.event_format, flags.receiver_keeps),
    )?;
    let named = Relay::builder(outbox).named(process());
    Ok(Some(routes.into_iter().fold(named, idem_core::outbox::RelayBuilder::route).build()?))
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
