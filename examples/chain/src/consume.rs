//! The two consumers, each with its store, its worker, and the events it publishes or consumes. An application has one
//! of them in a program, and leaves out the kills.

use std::{path::PathBuf, sync::Arc, time::Duration};

use idem_core::{BoxError, CancellationToken, DedupConsumer, Effects, Worker};
use idem_sqlx::SqliteStore;
use idem_testkit::memory::Queue;

use crate::{
    database,
    handlers::{ACCOUNTS_TABLE, Accounts, RECORDED, SHOP_TABLE, Shop},
    kill::{Killed, KilledSource, Kills},
    queue::ToQueue,
};

/// After a kill the messages in flight run again one by one, so fewer of them make a faster restart.
const IN_FLIGHT: usize = 200;

/// Consumes purchases and publishes each, until nothing is left to consume or to send.
pub(crate) async fn shop(purchases: Queue, recorded: ToQueue, file: PathBuf) -> Result<(), BoxError> {
    let kills = Arc::clone(&recorded.kills);
    database::create(&file, SHOP_TABLE).await?;
    let store = SqliteStore::open(&file).await?;
    store.migrate().await?;
    let consumer = DedupConsumer::builder(store, "shop")
        .handler(Killed(Shop, Arc::clone(&kills)))
        .publish_to([RECORDED])
        .effects(Effects::InTransaction)
        .build()?;
    let worker = Worker::builder(consumer, KilledSource(purchases.source(), kills))
        .relay(|relay| relay.to(RECORDED, recorded))
        .in_flight(IN_FLIGHT)
        // A service would leave this out, and stop by cancelling the token.
        .until_idle(Duration::from_millis(50))
        .build()?;
    worker.run(std::future::pending()).await?;
    Ok(())
}

/// Consumes the shop's events, until the shop has ended and all of them are consumed.
pub(crate) async fn accounts(
    recorded: Queue,
    shop_is_done: CancellationToken,
    file: PathBuf,
    kills: Arc<Kills>,
) -> Result<(), BoxError> {
    database::create(&file, ACCOUNTS_TABLE).await?;
    let store = SqliteStore::open(&file).await?;
    store.migrate().await?;
    let consumer = DedupConsumer::builder(store, "accounts")
        .handler(Killed(Accounts, Arc::clone(&kills)))
        .effects(Effects::InTransaction)
        .build()?;
    let source = KilledSource(recorded.source(), kills);
    let worker = Worker::builder(consumer, source).in_flight(IN_FLIGHT).build()?;
    let all_is_consumed = async move {
        shop_is_done.cancelled().await;
        recorded.drained().await;
    };
    worker.run(all_is_consumed).await?;
    Ok(())
}
