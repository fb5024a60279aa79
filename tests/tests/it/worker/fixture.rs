//! A worker on a store and a broker of the test kit, with a handler that does what each payload says.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_core::{
    CancellationToken, DedupConsumer, Effects, Handler, HandlerError, Message, Source, Store as _, Tx, Worker,
    config::RetryPolicy,
    consumer::DedupConsumerBuilder,
    dead_letter::StoredDeadLetter,
    message::{OrderingKey, Origin},
    store::Bookkeeping as _,
    worker::{Summary, WorkerBuilder, WorkerError, WorkerView},
};
use idem_testkit::{
    MemoryStore,
    memory::{Broker, MemorySource, Queue, QueueOptions},
};
use tokio::{sync::Semaphore, task::JoinHandle};

/// How long anything may take before a test says that it hangs.
const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("{what} took longer than {LONG:?}"))
}

/// Does what the payload says, and writes the payload under the message's key.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Runs>);

#[derive(Default)]
struct Runs {
    of: Mutex<Vec<String>>,
    mended: Mutex<bool>,
    started: Semaphore0,
    go: Semaphore0,
}

struct Semaphore0(Semaphore);

impl Default for Semaphore0 {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Script {
    /// The keys of all runs of the handler, in order.
    pub(crate) fn runs(&self) -> Vec<String> {
        self.0.of.lock().unwrap().clone()
    }

    pub(crate) fn runs_of(&self, key: &str) -> usize {
        self.runs().iter().filter(|run| *run == key).count()
    }

    /// From now on every payload is handled.
    pub(crate) fn mend(&self) {
        *self.0.mended.lock().unwrap() = true;
    }

    /// Waits until a handler of the payload `block` has begun.
    pub(crate) async fn blocked(&self) {
        within("a handler's start", self.0.started.0.acquire()).await.unwrap().forget();
    }

    /// Lets one blocked handler go on.
    pub(crate) fn unblock(&self) {
        self.0.go.0.add_permits(1);
    }
}

impl Handler<MemoryStore> for Script {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        let payload = message.payload().cloned().unwrap_or_default();
        self.0.of.lock().unwrap().push(key.clone());
        tx.connection().append("effects", &key, payload.clone()).await?;
        let mended = *self.0.mended.lock().unwrap();
        match std::str::from_utf8(&payload)? {
            _ if mended => Ok(()),
            "fail" | "fail too" => Err("it does not work today".into()),
            "fail once" if self.runs_of(&key) <= 2 => Err("it works the next time".into()),
            "permanent" => Err(HandlerError::permanent("it can never work")),
            "in an hour" => Err(HandlerError::retry_after("ask later", Duration::from_secs(3_600))),
            "panic" => panic!("the handler of {key} panics, as it should in this test"),
            block @ ("block" | "block, then fail" | "block, then fail once") => {
                self.0.started.0.add_permits(1);
                self.0.go.0.acquire().await?.forget();
                let is_over = block == "block, then fail once" && self.runs_of(&key) > 1;
                if block == "block" || is_over { Ok(()) } else { Err("it does not work today".into()) }
            }
            _ => Ok(()),
        }
    }
}

pub(crate) struct Fixture {
    pub(crate) store: MemoryStore,
    pub(crate) broker: Broker,
    pub(crate) queue: Queue,
    pub(crate) script: Script,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(QueueOptions::default())
    }

    pub(crate) fn with(options: QueueOptions) -> Self {
        let broker = Broker::new();
        let queue = broker.create("orders", options).unwrap();
        Self { store: MemoryStore::new(), broker, queue, script: Script::default() }
    }

    pub(crate) fn publish(&self, key: &str, payload: &str) -> Origin {
        self.queue.publish(message(key, payload)).unwrap()
    }

    pub(crate) fn publish_ordered(&self, order: &str, key: &str, payload: &str) -> Origin {
        self.queue.publish(message(key, payload).with_ordering_key(OrderingKey::new(order.to_owned()))).unwrap()
    }

    pub(crate) fn consumer(&self) -> DedupConsumerBuilder<MemoryStore> {
        DedupConsumer::builder(self.store.clone(), "ledger")
            .handler(self.script.clone())
            .effects(Effects::InTransaction)
            .lanes(1)
    }

    pub(crate) fn worker(&self) -> WorkerBuilder<MemoryStore, MemorySource> {
        self.worker_of(self.consumer().build().unwrap())
    }

    pub(crate) fn worker_of(&self, consumer: DedupConsumer<MemoryStore>) -> WorkerBuilder<MemoryStore, MemorySource> {
        self.worker_on(self.queue.source(), consumer)
    }

    pub(crate) fn worker_on<B: Source>(
        &self,
        source: B,
        consumer: DedupConsumer<MemoryStore>,
    ) -> WorkerBuilder<MemoryStore, B> {
        Worker::builder(consumer, source)
            .retry(RetryPolicy::new(3, Duration::from_millis(1), Duration::from_millis(5)))
            .control_every(Duration::from_millis(10))
            .cleanup(None)
    }

    /// The effects by key, in the order in which they were committed.
    pub(crate) fn effects(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        self.store.rows("effects").iter().map(|(key, value)| (key.clone(), text(value))).collect()
    }

    /// How often each key has its effect.
    pub(crate) fn counted(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        self.effects().into_iter().for_each(|(key, _)| *counts.entry(key).or_default() += 1);
        counts
    }

    /// The dead letters, oldest first.
    pub(crate) async fn dead_letters(&self) -> Vec<StoredDeadLetter> {
        use idem_core::ConsumerName;
        let mut letters =
            self.store.bookkeeping().dead_letters(&ConsumerName::new("ledger").unwrap(), 1_000).await.unwrap();
        letters.reverse();
        letters
    }
}

pub(crate) fn message(key: &str, payload: &str) -> Message {
    Message::new(payload.to_owned()).with_header("idempotencykey", key.to_owned())
}

/// A worker that runs.
pub(crate) struct Running {
    pub(crate) view: WorkerView,
    stop: CancellationToken,
    task: JoinHandle<Result<Summary, WorkerError>>,
}

impl Running {
    pub(crate) fn new(worker: WorkerBuilder<MemoryStore, impl Source>) -> Self {
        let worker = worker.build().unwrap();
        let (view, stop) = (worker.view(), CancellationToken::new());
        Self { view, stop: stop.clone(), task: tokio::spawn(worker.run(stop.cancelled_owned())) }
    }

    /// Asks the worker to stop.
    pub(crate) fn cancel(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn stop(self) -> Result<Summary, WorkerError> {
        self.cancel();
        self.ended().await
    }

    /// Drops the call of `run`.
    #[allow(clippy::disallowed_methods, reason = "what becomes of the units is what the test asks")]
    pub(crate) async fn drop_run(self) {
        self.task.abort();
        assert!(within("the end of the task", self.task).await.unwrap_err().is_cancelled());
    }

    pub(crate) async fn ended(self) -> Result<Summary, WorkerError> {
        within("the worker's end", self.task).await.unwrap()
    }

    /// Waits until the worker's own numbers are as `wanted`.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) {
        within(what, async {
            while !wanted(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

/// Runs a worker until every message is settled.
pub(crate) async fn drain(fixture: &Fixture, worker: WorkerBuilder<MemoryStore, MemorySource>) -> Summary {
    let running = Running::new(worker);
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap()
}
