//! idem's consumer: a store, the handler, a source, and a worker between them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use idem_core::{BoxError, DedupConsumer, Effects, Worker};
use idem_sqlx::SqliteStore;
use idem_testkit::memory::Queue;

use crate::{
    crash::{Crashes, CrashingHandler, CrashingSource},
    handler::Ledger,
    ledger,
};

/// The scope in which a key is unique: another consumer, with a name of its own, handles every message too.
pub(crate) const CONSUMER: &str = "ledger";

/// Consumes the queue until it is empty.
pub(crate) async fn consume(queue: Queue, file: PathBuf, crashes: Arc<Crashes>) -> Result<(), BoxError> {
    ledger::create(&file).await?;
    let store = SqliteStore::open(&file).await?;
    store.migrate().await?;

    // Without the crashes this would say `.handler(Ledger)`, and give the worker `queue.source()`.
    let handler = CrashingHandler(Ledger, Arc::clone(&crashes));
    let source = CrashingSource(queue.source(), crashes);

    let consumer = DedupConsumer::builder(store, CONSUMER).handler(handler).effects(Effects::InTransaction).build()?;
    let worker = Worker::builder(consumer, source)
        // After a crash, the messages in flight run again one by one, so fewer of them make a faster
        // restart.
        .in_flight(200)
        // A service would leave this out, and stop by cancelling the token.
        .until_idle(Duration::from_millis(50))
        .build()?;
    worker.run(std::future::pending()).await?;
    Ok(())
}
