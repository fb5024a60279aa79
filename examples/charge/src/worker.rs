//! The worker: a handler that calls beyond its transaction says so, and has a deadline.

use std::{net::SocketAddr, path::Path, time::Duration};

use idem_core::{BoxError, DedupConsumer, Effects, Source, Worker, config::RetryPolicy, worker::Summary};
use idem_sqlx::SqliteStore;
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::Charge;

/// It has no unique column on purpose: nothing but the consumer keeps a charge from being noted twice.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS charges (order_number TEXT NOT NULL, charge TEXT NOT NULL) STRICT";

/// Creates the application's table, and the file where it is not there.
///
/// # Errors
/// The database's error.
///
/// # Cancel safety
/// Cancel safe.
pub async fn create_table(file: &Path) -> Result<(), BoxError> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let mut database = SqliteConnection::connect_with(&options).await?;
    sqlx::query(TABLE).execute(&mut database).await?;
    Ok(database.close().await?)
}

/// Consumes until the source has nothing more.
///
/// # Errors
/// The error that ends a worker.
///
/// # Cancel safety
/// As that of [`Worker::run`].
pub async fn consume(source: impl Source, provider: SocketAddr, file: &Path) -> Result<Summary, BoxError> {
    create_table(file).await?;
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;

    let consumer = DedupConsumer::builder(store, "charges")
        .handler(Charge { provider })
        .effects(Effects::Outside)
        .handler_deadline(Duration::from_secs(5))
        .build()?;
    let retry = RetryPolicy::new(100, Duration::from_millis(20), Duration::from_secs(1));
    // A service would leave `until_idle` out, and stop by the future that `run` is given.
    let worker = Worker::builder(consumer, source).retry(retry).until_idle(Duration::from_millis(50)).build()?;
    Ok(worker.run(std::future::pending()).await?)
}
