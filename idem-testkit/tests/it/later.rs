//! Later tries through a running worker: a message that failed is a row until its time, and its broker has it no more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_core::{
    DedupConsumer, Effects, Handler, HandlerError, Message, Tx,
    config::{Later, RetryPolicy},
    dead_letter::Reason,
    store::StoreCapabilities,
    worker::Worker,
};
use idem_testkit::{
    MemoryStore,
    memory::{Broker, QueueOptions},
};
use tokio::sync::oneshot;

/// Fails so many times in all.
#[derive(Clone)]
struct Fails(Arc<AtomicU32>, u32);

impl Handler<MemoryStore> for Fails {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let run = self.0.fetch_add(1, Ordering::SeqCst);
        tx.connection().append("effects", "k", message.payload().cloned().unwrap_or_default()).await?;
        if run < self.1 { Err("it does not work yet".into()) } else { Ok(()) }
    }
}

const DELAYS: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(3_600)];

/// The store after one message, of which the handler fails so often, with the runs after each of these times, and its dead letters.
async fn runs_after(fails: u32, times: &[Duration]) -> (Vec<u32>, usize, Vec<Reason>) {
    let (store, runs) = (MemoryStore::new(), Arc::new(AtomicU32::new(0)));
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    queue.publish(Message::new("10").with_header("idempotencykey", "k".to_owned())).unwrap();
    let consumer = DedupConsumer::builder(store.clone(), "later")
        .handler(Fails(Arc::clone(&runs), fails))
        .effects(Effects::InTransaction)
        .lanes(1)
        .build()
        .unwrap();
    let retry = RetryPolicy::new(2, Duration::from_millis(1), Duration::from_millis(2));
    let worker = Worker::builder(consumer, queue.source())
        .retry(retry.later(Later::new(DELAYS).unwrap()))
        .control_every(Duration::from_millis(10))
        .cleanup(None)
        .build()
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(worker.run(async move { drop(stopped.await) }));
    tokio::time::timeout(Duration::from_secs(20), queue.drained()).await.expect("the broker has an answer");
    let mut seen = vec![runs.load(Ordering::SeqCst)];
    for time in times {
        store.advance(*time);
        tokio::time::sleep(Duration::from_millis(300)).await;
        seen.push(runs.load(Ordering::SeqCst));
    }
    drop(stop);
    task.await.unwrap().unwrap();
    let dead = store
        .kept_dead_letters()
        .into_iter()
        .filter(|kept| !kept.replaying && kept.row.replayed.as_deref() != Some("processed"));
    (seen, store.rows("effects").len(), dead.map(|kept| kept.row.reason).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_try_is_one_attempt_and_not_before_its_time() {
    let times = [DELAYS[0] - Duration::from_secs(5), DELAYS[0], DELAYS[1] - Duration::from_secs(5), DELAYS[1]];
    let (runs, effects, dead) = runs_after(3, &times).await;
    assert_eq!((runs, effects, dead), (vec![2, 2, 3, 3, 4], 1, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_dead_after_its_last_later_try() {
    let times = [DELAYS[0] * 2, DELAYS[1] * 2, DELAYS[1] * 2];
    let (runs, effects, dead) = runs_after(u32::MAX, &times).await;
    assert_eq!((runs, effects, dead), (vec![2, 3, 4, 4], 0, vec![Reason::AttemptsExhausted]));
}

#[tokio::test]
async fn later_tries_are_refused_on_a_store_without_them() {
    let store = MemoryStore::with_capabilities(StoreCapabilities::server());
    let consumer = DedupConsumer::builder(store, "later")
        .handler(Fails(Arc::default(), 0))
        .effects(Effects::InTransaction)
        .build()
        .unwrap();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    let worker =
        Worker::builder(consumer, queue.source()).retry(RetryPolicy::default().later(Later::new(DELAYS).unwrap()));
    let refused = worker.build().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.starts_with("retry.later is ") && refused.contains("keeps no message"), "{refused}");
}
