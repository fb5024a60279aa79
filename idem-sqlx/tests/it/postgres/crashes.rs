//! A server that a handler's statement takes down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{CancellationToken, HandlerError, Message, Worker, config::RetryPolicy};
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::PgConnection;

use super::{
    consumers::{Act, Acting, builder, keys, messages, msg, write},
    fixture::{Fixture, PATIENCE},
    scratch::Scratch,
};

/// The message of key `poison` kills the server's process that runs its statement, on which the server ends all others and
/// recovers.
struct TakesTheServerDown(Arc<AtomicUsize>);

impl Act for TakesTheServerDown {
    async fn act(&self, message: &Message, connection: &mut PgConnection) -> Result<(), HandlerError> {
        if message.key().is_some_and(|key| key.as_str() == "poison") {
            self.0.fetch_add(1, Ordering::Relaxed);
            sqlx::raw_sql("COPY (SELECT 1) TO PROGRAM 'kill -KILL $PPID'").execute(&mut *connection).await?;
        }
        Ok(write(connection, message).await?)
    }
}

/// D42: such a message ends as a dead letter on a real server too. Its neighbours, which lose their connections with it each
/// time, are all handled, once, and are not charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d42_a_message_that_takes_a_real_server_down_ends() {
    let scratch = Scratch::new("d42").await;
    let fixture = Fixture::on(&scratch.url).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let consumer = builder(fixture.another(), Acting(TakesTheServerDown(Arc::clone(&runs)))).lanes(2).build().unwrap();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    let all = keys(40);
    let (before, after) = all.split_at(20);
    let publish = |keys: &[String]| messages(keys).into_iter().for_each(|message| drop(queue.publish(message)));
    publish(before);
    queue.publish(msg("poison")).unwrap();
    publish(after);
    let worker = Worker::builder(consumer, queue.source())
        .retry(RetryPolicy::new(3, Duration::from_millis(1), Duration::from_millis(20)))
        .cleanup(None)
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    tokio::time::timeout(PATIENCE, queue.drained()).await.unwrap();
    stop.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (40, 1), "{summary:?}");
    let letters = fixture.texts("SELECT idempotency_key || ' ' || reason || ' ' || attempts FROM dead_letters").await;
    assert_eq!(letters, ["poison attempts-exhausted 3"]);
    assert_eq!(fixture.effects().await, all, "each effect once");
    let runs = runs.load(Ordering::Relaxed);
    // Three attempts, and a few that charge nothing: in a batch, and those whose loss may have been another's doing.
    assert!((3..=6).contains(&runs), "it took the server down {runs} times");
    fixture.drop().await;
    scratch.down().await;
}
