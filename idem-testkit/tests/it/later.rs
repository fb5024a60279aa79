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
    config::{Later, RetryPolicy, WorkerSettings},
    dead_letter::Reason,
    store::StoreCapabilities,
    worker::{Summary, Worker, WorkerError, WorkerView},
};
use idem_testkit::{
    MemoryStore,
    memory::{Broker, Queue, QueueOptions},
};
use tokio::{
    sync::{Mutex, MutexGuard, oneshot},
    task::JoinHandle,
};

/// Fails so many times in all, except of messages with the payload `good`.
#[derive(Clone)]
struct Fails(Arc<AtomicU32>, u32);

impl Handler<MemoryStore> for Fails {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        if message.payload().is_some_and(|payload| &payload[..] == b"good") {
            return Ok(());
        }
        let run = self.0.fetch_add(1, Ordering::SeqCst);
        tx.connection().append("effects", "k", message.payload().cloned().unwrap_or_default()).await?;
        if run < self.1 { Err("it does not work yet".into()) } else { Ok(()) }
    }
}

const DELAYS: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(3_600)];

/// One test at a time, because a failpoint is armed for all of the process.
static ONE: Mutex<()> = Mutex::const_new(());

/// A worker with two attempts at once and two later tries, its queue and its store.
struct Running {
    store: MemoryStore,
    queue: Queue,
    runs: Arc<AtomicU32>,
    view: WorkerView,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, WorkerError>>,
    _one: MutexGuard<'static, ()>,
}

impl Running {
    /// One whose handler fails so often.
    async fn new(fails: u32) -> Self {
        Self::with(fails, |_| {}).await
    }

    async fn with(fails: u32, set: impl FnOnce(&mut WorkerSettings)) -> Self {
        let one = ONE.lock().await;
        let (store, runs) = (MemoryStore::new(), Arc::new(AtomicU32::new(0)));
        let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
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
            .settings(set)
            .build()
            .unwrap();
        let view = worker.view();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(worker.run(async move { drop(stopped.await) }));
        Self { store, queue, runs, view, stop, task, _one: one }
    }

    fn publish(&self, key: &str, payload: &str) {
        let message = Message::new(payload.to_owned()).with_header("idempotencykey", key.to_owned());
        self.queue.publish(message).unwrap();
    }

    async fn drained(&self) {
        tokio::time::timeout(Duration::from_secs(20), self.queue.drained()).await.expect("the broker has an answer");
    }

    /// Lets this time pass, and what is due then run.
    async fn advance(&self, time: Duration) {
        self.store.advance(time);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// The rows that wait, and the dead letters by their reasons.
    fn rows(&self) -> (usize, Vec<Reason>) {
        let (waiting, dead): (Vec<_>, Vec<_>) =
            self.store.kept_dead_letters().into_iter().partition(|kept| kept.row.waits_until.is_some());
        (waiting.len(), dead.into_iter().map(|kept| kept.row.reason).collect())
    }

    async fn stop(self) -> Summary {
        drop(self.stop);
        self.task.await.unwrap().unwrap()
    }
}

/// The runs of a handler that fails so often, at first and after each of these times, its effects and its dead letters.
async fn runs_after(fails: u32, times: &[Duration]) -> (Vec<u32>, usize, Vec<Reason>) {
    let running = Running::new(fails).await;
    running.publish("k", "10");
    running.drained().await;
    let mut seen = vec![running.runs()];
    for time in times {
        running.advance(*time).await;
        seen.push(running.runs());
    }
    let (_, dead) = running.rows();
    let effects = running.store.rows("effects").len();
    running.stop().await;
    (seen, effects, dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_try_is_one_attempt_and_not_before_its_time() {
    // Up to half as long again.
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

/// The breaker counts a message when it is first put to wait, and none of its later tries: of messages that wait, fewer than those that go
/// well, it never opens.
async fn is_paused_by_later_tries() -> bool {
    let running = Running::new(u32::MAX).await;
    (0..60).for_each(|n| running.publish(&format!("good-{n}"), "good"));
    running.drained().await;
    (0..20).for_each(|n| running.publish(&format!("bad-{n}"), "10"));
    running.drained().await;
    assert_eq!((running.rows(), running.view.pause()), ((20, Vec::new()), None));
    running.advance(DELAYS[0] * 2).await;
    running.advance(DELAYS[1] * 2).await;
    let pause = running.view.pause();
    assert!(pause.is_some() || running.rows() == (0, vec![Reason::AttemptsExhausted; 20]), "{:?}", running.rows());
    running.stop().await;
    pause.is_some()
}

#[tokio::test]
async fn later_tries_do_not_open_the_breaker() {
    assert!(!is_paused_by_later_tries().await);
}

/// A copy of a message that waits is its row, and is settled. It has no attempt left and does not run, and it costs the row no later try.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_message_that_waits_is_its_row() {
    let running = Running::new(3).await;
    running.publish("k", "10");
    running.drained().await;
    for _ in 0..3 {
        running.publish("k", "10");
        running.drained().await;
    }
    assert_eq!(running.rows(), (1, Vec::new()));
    assert_eq!(running.runs(), 2, "copies have no attempt at once left");
    running.advance(DELAYS[0] * 2).await;
    running.advance(DELAYS[1] * 2).await;
    assert_eq!((running.rows(), running.store.rows("effects").len()), ((0, Vec::new()), 1));
    let summary = running.stop().await;
    assert_eq!((summary.dead_lettered, summary.processed), (0, 1));
}

/// Without room for its row a message is held at the broker: it is neither settled nor dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_quota_holds_what_would_wait() {
    let running = Running::with(u32::MAX, |settings| settings.dead_letters_bytes_max = Some(1 << 10)).await;
    running.publish("k", &"x".repeat(4_000));
    let drained = tokio::time::timeout(Duration::from_secs(1), running.queue.drained()).await;
    assert!(drained.is_err(), "it is settled");
    assert_eq!(running.rows(), (0, Vec::new()));
    assert!(running.runs() <= 3, "{} runs", running.runs());
    running.stop().await;
}

/// A process that stops between the row's commit and the settlement leaves one row, and the message that is redelivered is settled for it.
#[cfg(feature = "failpoints")]
async fn rows_after_a_stop_before_the_settlement() -> usize {
    use idem_core::failpoint;
    let running = Running::new(u32::MAX).await;
    failpoint::arm(failpoint::PUT_ASIDE, 0, 1, failpoint::Action::Error);
    running.publish("k", "10");
    running.drained().await;
    let (rows, dead) = running.rows();
    assert_eq!(dead, []);
    running.stop().await;
    rows
}

#[cfg(feature = "failpoints")]
#[tokio::test]
async fn a_stop_before_the_settlement_leaves_one_row() {
    assert_eq!(rows_after_a_stop_before_the_settlement().await, 1);
}

/// The checks above find the bugs that they are for.
#[cfg(idem_bugs)]
mod planted {
    use idem_core::bugs::{Bug, plant};

    use super::*;

    #[tokio::test]
    async fn later_tries_that_open_the_breaker_are_found() {
        plant(Some(Bug::LaterTriesOpenTheBreaker));
        assert!(is_paused_by_later_tries().await);
        plant(None);
    }

    #[tokio::test]
    async fn later_tries_that_start_over_are_found() {
        plant(Some(Bug::LaterTriesStartOver));
        let (_, _, dead) = runs_after(u32::MAX, &[DELAYS[0] * 2, DELAYS[1] * 2, DELAYS[1] * 2]).await;
        assert_eq!(dead, [], "it has no end");
        plant(None);
    }

    #[cfg(feature = "failpoints")]
    #[tokio::test]
    async fn a_settlement_before_the_row_is_found() {
        plant(Some(Bug::SettlesBeforeTheRow));
        assert_eq!(rows_after_a_stop_before_the_settlement().await, 0, "the message is lost");
        plant(None);
    }
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
