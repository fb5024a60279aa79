//! A relay as a process of its own: `idem outbox relay --config FILE`.

use std::{path::Path, sync::Arc, time::Duration};

use idem_core::{
    BoxError, Store as _,
    relay::{Relay, RelayBuilder, Route},
    store::Bookkeeping as _,
};
use idem_sql::SchemaName;

use super::file::{Broker, File, Way};
use crate::{
    admin,
    broker::Events,
    database::open::{Database, DatabaseSettings, reach},
    exit::{self, Exit, Failure},
    life::{self, texts},
    logs::{self, LogFormat},
    metrics, secret_files,
    status::{Identity, Status, process},
    values::DatabaseUrl,
};

/// Brings the events of a database to their destinations until it is stopped, as this file says, whose form is that of
/// `docs/internals/relay.md`. It is the whole of its process, as a worker is: it installs the handlers of SIGTERM and SIGINT
/// and the log, and ends with the same statuses. A database or broker that cannot be reached is waited for; a
/// database without idem's schema, or a login without its rights, is refused with the cure.
///
/// It relays to the brokers that this crate was built for: the features `kafka`, `amqp`, `sqs` and `webhooks`.
pub fn relay(file: &Path) -> Exit {
    let read = File::read(file);
    let format = read.as_ref().map_or(LogFormat::Text, File::log_format);
    let ended = read.map_err(Failure::refused).and_then(|settings| {
        logs::start(format).map_err(Failure::refused)?;
        if settings.holds_secrets() {
            secret_files::warn_if_others_may(file, "--config");
        }
        start(settings)
    });
    life::ended(format, ended)
}

fn start(settings: File) -> Result<(), Failure> {
    let serve = |status: Arc<Status>| async move { serve(settings, &status).await };
    life::serve("relay", Some("relay"), serve, exit::print_relayed)
}

async fn serve(settings: File, status: &Arc<Status>) -> Result<(), Failure> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), destinations = settings.destination.len(), "starting a relay");
    // Before anything takes the handle of a metric.
    let recorded = metrics::are_read(settings.admin.is_some()).then(metrics::install);
    let refused = |error: BoxError| Failure::refused(texts(&error));
    let place =
        Place { url: settings.database_url().map_err(refused)?.into(), schema: settings.schema().map_err(refused)? };
    #[allow(unused_variables, reason = "as for `run`")]
    let routes = routes(&settings).await.map_err(refused)?;
    status.identify(Identity {
        program: "idem outbox relay",
        version: env!("CARGO_PKG_VERSION"),
        process: process(),
        place: Vec::new(),
        schema: Some(place.schema.to_string()).filter(|schema| schema != SchemaName::DEFAULT),
        keys_are_hidden: false,
    });
    if let Some((address, recorded)) = settings.admin.as_ref().zip(recorded) {
        admin::serve(address, &settings.admin_host, Arc::clone(status), recorded, admin::OwnRoutes::default()).await?;
    }
    match place.url.scheme() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let store = postgres(&place).map_err(refused)?;
            run::<idem_sqlx::PostgresStore>(store, &place, routes, status).await
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let store = sqlite(&place).await.map_err(refused)?;
            run::<idem_sqlx::SqliteStore>(store, &place, routes, status).await
        }
        _ => Err(Failure::refused("database-url must begin with postgres:// or sqlite:// (its value is not shown)")),
    }
}

/// Where the events are.
struct Place {
    url: DatabaseUrl,
    schema: SchemaName,
}

/// The store, which is reached later.
#[cfg(feature = "postgres")]
fn postgres(place: &Place) -> Result<idem_sqlx::PostgresStore, BoxError> {
    let options = idem_sqlx::PostgresOptions::parse(place.url.as_str())?.schema(place.schema.clone());
    Ok(options.application_name("idem relay").build()?)
}

#[cfg(feature = "sqlite")]
async fn sqlite(place: &Place) -> Result<idem_sqlx::SqliteStore, BoxError> {
    let options: idem_sqlx::SqliteOptions = place.url.as_str().parse()?;
    // A mistyped name must not make a file.
    Ok(idem_sqlx::SqliteStore::connect(options.schema(place.schema.clone()).create_if_missing(false)).await?)
}

/// Waits for the database, whatever the time, makes the checks of a worker's start, and relays.
#[allow(dead_code, reason = "without a store there is no database")]
async fn run<D: Database>(
    store: D::Store,
    place: &Place,
    routes: Vec<Route>,
    status: &Arc<Status>,
) -> Result<(), Failure> {
    let store = Arc::new(store);
    let outbox = store.outbox().ok_or_else(|| Failure::refused("this database has no outbox"))?;
    let named = Relay::builder(outbox).of_store::<D::Store>().named(process());
    let relay = routes.into_iter().fold(named, RelayBuilder::route).build();
    let relay = relay.map_err(|error| Failure::refused(error.to_string()))?;
    status.relaying(relay.view());
    let Place { url, schema } = place;
    let checked = async || {
        let settings = DatabaseSettings {
            url,
            redis_url: None,
            copies_plain: false,
            schema,
            cleanup_url: None,
            application_name: None,
            migrate: false,
            create_tables: false,
        };
        D::prepare(&store, settings, "").await?;
        Ok(store.bookkeeping().verify().await?)
    };
    if reach::<D::Store, _, _>(Duration::MAX, &status.stop, checked).await?.is_none() {
        return Ok(());
    }
    let ended = relay.run(status.stop.clone().cancelled_owned()).await;
    ended.map_err(|error| Failure::new(exit::of_relay(&error), texts(&error.into())))
}

async fn routes(settings: &File) -> Result<Vec<Route>, BoxError> {
    let mut routes = Vec::new();
    for destination in &settings.destination {
        let publisher = match settings.way_to(destination)? {
            Way::Broker(broker, form) => {
                let events = events(settings, broker).await?;
                events(&destination.name, form)?
            }
            #[cfg(feature = "webhooks")]
            Way::Webhook(part, form) => super::webhook::publisher(&destination.name, part, form)?,
            #[cfg(not(feature = "webhooks"))]
            Way::Webhook(..) => return Err(missing("webhooks")),
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
