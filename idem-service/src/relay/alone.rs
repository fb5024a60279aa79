//! A relay as a process of its own: `idem outbox relay --config FILE`.

use std::{path::Path, sync::Arc};

use idem_core::{BoxError, CancellationToken, Relay, Route, outbox::Outbox};
use idem_schema::SchemaName;
#[cfg(feature = "sqlite")]
use idem_sqlx::{SqliteOptions, SqliteStore};

use super::file::{Broker, File, Way};
use crate::{
    admin,
    broker::Events,
    exit::{self, Exit, Failure},
    life::{process, texts},
    logs::{self, LogFormat},
    metrics, private, signals, stack,
    status::{Identity, Status},
};

/// Brings the events of a database to their destinations until it is stopped, as this file says, whose form is that of
/// `docs/guide/events-out.md`. It is the whole of its process, as a worker is: it installs the handlers of SIGTERM and SIGINT
/// and the log, and ends with the same statuses. A database or broker that cannot be reached is waited for.
///
/// It relays to the brokers that this crate was built for: the features `kafka`, `amqp`, `sqs` and `webhooks`.
pub fn relay(file: &Path) -> Exit {
    let read = File::read(file);
    let format = read.as_ref().map_or(LogFormat::Text, File::log_format);
    let ended = read.map_err(Failure::refused).and_then(|settings| {
        logs::start(format).map_err(Failure::refused)?;
        if settings.holds_secrets() {
            private::warn_if_others_may(file, "--config");
        }
        start(settings)
    });
    match ended {
        Ok(()) => Exit::Done,
        Err(Failure { exit, line }) => {
            logs::last_line(format, &line);
            exit
        }
    }
}

fn start(settings: File) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let system = |error| Failure::new(Exit::Bug, format!("the system gives no thread or signal handler: {error}"));
    signals::listen(stop.clone()).map_err(system)?;
    let runtime = stack::runtime().map_err(system)?;
    runtime.block_on(async {
        let status = Arc::new(Status::new("relay", stop));
        let ended = serve(settings, &status).await;
        exit::print_relayed(&status.summary());
        ended
    })
}

async fn serve(settings: File, status: &Arc<Status>) -> Result<(), Failure> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), destinations = settings.destination.len(), "starting a relay");
    // Before anything takes the handle of a metric.
    let recorded = settings.admin.as_ref().map(|_| metrics::install(status));
    let outbox = open(&settings).await.map_err(|error| Failure::refused(texts(&error)))?;
    let routes = routes(&settings).await.map_err(|error| Failure::refused(texts(&error)))?;
    let named = Relay::builder(outbox).named(process());
    let relay = routes.into_iter().fold(named, idem_core::outbox::RelayBuilder::route).build();
    let relay = relay.map_err(|error| Failure::refused(error.to_string()))?;
    status.relaying(relay.view());
    status.identify(Identity {
        program: "idem outbox relay",
        version: env!("CARGO_PKG_VERSION"),
        process: process(),
        place: Vec::new(),
        schema: settings.schema().ok().map(|schema| schema.to_string()).filter(|schema| schema != SchemaName::DEFAULT),
        keys_are_hidden: false,
    });
    if let Some((address, recorded)) = settings.admin.as_ref().zip(recorded) {
        admin::serve(address, &settings.admin_host, Arc::clone(status), recorded, axum::Router::new()).await?;
    }
    let ended = relay.run(status.stop.clone().cancelled_owned()).await;
    ended.map_err(|error| Failure::new(exit::of_relay(&error), texts(&error.into())))
}

/// The outbox of the database, which is reached later.
async fn open(settings: &File) -> Result<Arc<dyn Outbox>, BoxError> {
    let url = settings.database_url()?;
    let (scheme, _) = url.split_once(':').unwrap_or_default();
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let options =
                idem_sqlx::PostgresOptions::parse(&url)?.schema(settings.schema()?).application_name("idem relay");
            of(options.build()?)
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let options: SqliteOptions = url.parse()?;
            // A mistyped name must not make a file.
            of(SqliteStore::connect(options.schema(settings.schema()?).create_if_missing(false)).await?)
        }
        _ => Err("database-url must begin with postgres:// or sqlite:// (its value is not shown)".into()),
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn of(store: impl idem_core::Store) -> Result<Arc<dyn Outbox>, BoxError> {
    Arc::new(store).outbox().ok_or_else(|| "this database has no outbox".into())
}

async fn routes(settings: &File) -> Result<Vec<Route>, BoxError> {
    let mut routes = Vec::new();
    for destination in &settings.destination {
        let publisher = match settings.way_to(destination)? {
            Way::Broker(broker, format) => {
                let events = events(settings, broker).await?;
                events(&destination.name, format.cloud_events())?
            }
            #[cfg(feature = "webhooks")]
            Way::Webhook(part) => super::webhook::publisher(&destination.name, part)?,
            #[cfg(not(feature = "webhooks"))]
            Way::Webhook(_) => return Err(missing("webhooks")),
        };
        routes.push(Route::to_shared(&*destination.name, publisher).receiver_keeps(destination.receiver_keeps()?));
    }
    Ok(routes)
}

#[allow(dead_code, reason = "nothing is, with every feature")]
fn missing(feature: &str) -> BoxError {
    format!("this program was built without {feature}: build it with the feature {feature}").into()
}

/// The factory of publishers of this broker.
#[allow(clippy::unused_async, unused_variables, reason = "what is asked of the file depends on the features")]
async fn events(settings: &File, broker: Broker) -> Result<Events, BoxError> {
    match broker {
        #[cfg(feature = "kafka")]
        Broker::Kafka => crate::kafka::relayed(settings.kafka.as_ref().ok_or("the file has no [kafka]")?),
        #[cfg(not(feature = "kafka"))]
        Broker::Kafka => Err(missing("kafka")),
        #[cfg(feature = "amqp")]
        Broker::Amqp => crate::amqp::relayed(settings.amqp.as_ref().ok_or("the file has no [amqp]")?),
        #[cfg(not(feature = "amqp"))]
        Broker::Amqp => Err(missing("amqp")),
        #[cfg(feature = "sqs")]
        Broker::Sqs => crate::sqs::relayed().await,
        #[cfg(not(feature = "sqs"))]
        Broker::Sqs => Err(missing("sqs")),
    }
}
