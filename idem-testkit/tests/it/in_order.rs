//! The order of an ordering key across later tries, through a running worker: what follows a message that waits is a row behind it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Decision, DedupConsumer, Effects, Handler, HandlerError, Message, Tx,
    config::{Later, RetryPolicy},
    handler::{BatchAnswer, BatchHandler},
    message::OrderingKey,
    worker::{Summary, Worker, WorkerError},
};
use idem_testkit::{
    MemoryStore,
    memory::{Broker, Order, Queue, QueueOptions},
};
use tokio::{sync::oneshot, task::JoinHandle};

const DELAYS: [Duration; 3] = [Duration::from_secs(600), Duration::from_secs(3_600), Duration::from_secs(3_600)];

/// Writes what it gets, and fails at messages with the header `fails` until it is mended.
#[derive(Clone, Default)]
struct Ledger(Arc<AtomicBool>);

impl Ledger {
    async fn write(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        if message.headers().text("fails").is_some() && !self.0.load(Ordering::SeqCst) {
            return Err("it does not work yet".into());
        }
        let key = message.ordering_key().map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
        let payload = message.payload().cloned().unwrap_or_default();
        Ok(tx.connection().append("effects", &key.unwrap_or_default(), payload).await?)
    }
}

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.write(message, tx).await
    }
}

impl BatchHandler<MemoryStore> for Ledger {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.write(message, tx).await);
        }
        Ok(BatchAnswer::each(answers))
    }
}

/// Whether messages are handled one by one or as batches, and the order of their queue.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Each(Order),
    Batch(Order),
}

const KINDS: [Kind; 4] = [
    Kind::Each(Order::ByKey),
    Kind::Batch(Order::ByKey),
    Kind::Each(Order::ByKeyOneAtATime),
    Kind::Batch(Order::ByKeyOneAtATime),
];

struct Running {
    store: MemoryStore,
    queue: Queue,
    mended: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, WorkerError>>,
}

impl Running {
    fn new(kind: Kind) -> Self {
        let (store, ledger) = (MemoryStore::new(), Ledger::default());
        let (Kind::Each(order) | Kind::Batch(order)) = kind;
        let queue = Broker::new().create("orders", QueueOptions::default().order(order)).unwrap();
        let builder = DedupConsumer::builder(store.clone(), "in-order");
        let builder = match kind {
            Kind::Each(_) => builder.handler(ledger.clone()),
            Kind::Batch(_) => builder.batch_handler(ledger.clone()),
        };
        let consumer = builder.effects(Effects::InTransaction).lanes(1).build().unwrap();
        let retry = RetryPolicy::new(2, Duration::from_millis(1), Duration::from_millis(2));
        let worker = Worker::builder(consumer, queue.source())
            .retry(retry.later(Later::new(DELAYS).unwrap()))
            .control_every(Duration::from_millis(10))
            .cleanup(None)
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(worker.run(async move { drop(stopped.await) }));
        Self { store, queue, mended: ledger.0, stop, task }
    }

    /// Publishes messages `<key><number>`, of which one with an exclamation mark fails until all is mended.
    async fn publish(&self, texts: &[&str]) {
        for text in texts {
            let name = text.trim_end_matches('!');
            let mut message = Message::new(name[1..].to_owned())
                .with_header("idempotencykey", name.to_owned())
                .with_ordering_key(OrderingKey::new(name[..1].to_owned()));
            if name != *text {
                message = message.with_header("fails", "yes");
            }
            self.queue.publish(message).unwrap();
        }
        tokio::time::timeout(Duration::from_secs(20), self.queue.drained()).await.expect("the broker has an answer");
    }

    /// Lets this time pass, and what is due then run.
    async fn advance(&self, time: Duration) {
        self.store.advance(time);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    fn mend(&self) {
        self.mended.store(true, Ordering::SeqCst);
    }

    /// The effects of an ordering key, in their order.
    fn effects(&self, key: &str) -> String {
        let rows = self.store.rows("effects").into_iter().filter(|(own, _)| own == key);
        rows.map(|(_, payload)| String::from_utf8(payload.to_vec()).unwrap()).collect::<Vec<_>>().join(" ")
    }

    /// The rows that wait.
    fn rows(&self) -> usize {
        self.store.kept_dead_letters().iter().filter(|kept| kept.row.waits_until.is_some()).count()
    }

    async fn stop(self) -> Summary {
        drop(self.stop);
        self.task.await.unwrap().unwrap()
    }
}

/// The effects of a key whose second message fails until its first later try, while another key goes on.
async fn effects_around_a_failure(kind: Kind) -> (String, usize) {
    let running = Running::new(kind);
    running.publish(&["a1", "a2!", "b1", "a3", "a4", "b2"]).await;
    assert_eq!(running.effects("b"), "1 2", "the other key goes on");
    running.publish(&["a5", "b3"]).await;
    let waiting = running.rows();
    running.mend();
    running.advance(DELAYS[0] * 2).await;
    running.publish(&["a6", "b4"]).await;
    assert_eq!(running.effects("b"), "1 2 3 4");
    assert_eq!(running.rows(), 0, "nothing waits any more");
    let effects = running.effects("a");
    let summary = running.stop().await;
    assert_eq!((summary.processed, summary.dead_lettered), (10, 0));
    (effects, waiting)
}

#[tokio::test]
async fn what_follows_a_message_that_waits_runs_after_it() {
    for kind in KINDS {
        assert_eq!(effects_around_a_failure(kind).await, ("1 2 3 4 5 6".to_owned(), 4), "{kind:?}");
    }
}

/// The effects of a key whose first message fails until its second later try.
async fn effects_around_two_failures(kind: Kind) -> String {
    let running = Running::new(kind);
    running.publish(&["a1!", "a2", "a3"]).await;
    running.advance(DELAYS[0] * 2).await;
    let early = running.effects("a");
    running.mend();
    running.advance(DELAYS[1] * 2).await;
    running.publish(&["a4"]).await;
    let effects = [early, running.effects("a")].join("|");
    running.stop().await;
    effects
}

#[tokio::test]
async fn rows_behind_one_that_waits_again_wait_too() {
    for kind in KINDS {
        assert_eq!(effects_around_two_failures(kind).await, "|1 2 3 4", "{kind:?}");
    }
}

/// A follower that fails has all of its attempts, and its own later tries. Those behind it wait for it, and go on once it is dead.
#[tokio::test]
async fn a_follower_that_fails_has_its_own_tries() {
    let running = Running::new(Kind::Each(Order::ByKey));
    running.publish(&["a1!", "a2!", "a3"]).await;
    for delay in [DELAYS[0], DELAYS[1], DELAYS[2], DELAYS[0], DELAYS[1], DELAYS[2]] {
        assert_eq!(running.effects("a"), "");
        running.advance(delay * 2).await;
    }
    assert_eq!((running.effects("a"), running.rows()), ("3".to_owned(), 0), "what follows dead letters goes on");
    let dead = running.store.kept_dead_letters();
    assert_eq!(dead.iter().map(|dead| dead.row.attempts).collect::<Vec<_>>(), [5, 5]);
    running.stop().await;
}

/// A copy of a message that was handled, of a key that waits, is a duplicate at once and no row.
#[tokio::test]
async fn a_duplicate_waits_for_nothing() {
    let running = Running::new(Kind::Each(Order::ByKey));
    running.publish(&["a1", "a2!", "a3"]).await;
    running.publish(&["a1", "a2!", "a3"]).await;
    assert_eq!(running.rows(), 2);
    running.mend();
    running.advance(DELAYS[0] * 2).await;
    assert_eq!((running.effects("a"), running.rows()), ("1 2 3".to_owned(), 0));
    running.stop().await;
}

/// Keys of a part of the topic keep no other message waiting.
#[tokio::test]
async fn messages_of_a_part_do_not_wait_for_each_other() {
    let running = Running::new(Kind::Each(Order::ByKey));
    for (name, fails) in [("1", true), ("2", false)] {
        let mut message =
            Message::new(name).with_header("idempotencykey", name).with_ordering_key_of_part(OrderingKey::new("p"));
        if fails {
            message = message.with_header("fails", "yes");
        }
        running.queue.publish(message).unwrap();
    }
    running.publish(&[]).await;
    assert_eq!((running.effects("p"), running.rows()), ("2".to_owned(), 1));
    running.stop().await;
}

/// A consumer without a worker decides only: what its key waits for is its caller's.
#[tokio::test]
async fn without_a_worker_a_message_whose_key_waits_is_busy() {
    let running = Running::new(Kind::Each(Order::ByKey));
    running.publish(&["a1!"]).await;
    let consumer = DedupConsumer::builder(running.store.clone(), "in-order")
        .handler(Ledger::default())
        .effects(Effects::InTransaction)
        .build()
        .unwrap();
    let message = |name: &str| {
        Message::new(name[1..].to_owned())
            .with_header("idempotencykey", name.to_owned())
            .with_ordering_key(OrderingKey::new(name[..1].to_owned()))
    };
    let decided = consumer.process(vec![message("a2"), message("b1")]).await.unwrap();
    let decisions: Vec<_> = decided.into_iter().map(|decided| decided.decision).collect();
    assert!(matches!(decisions[..], [Decision::Busy, Decision::Processed(_)]), "{decisions:?}");
    assert_eq!((running.effects("a"), running.effects("b")), (String::new(), "1".to_owned()));
    running.stop().await;
}

/// While the rows of a key run, its new messages are held: a key that always has some is not put behind itself for as long as they come.
#[tokio::test]
async fn a_busy_key_leaves_its_rows_behind() {
    let running = Running::new(Kind::Each(Order::ByKey));
    running.publish(&["a1!", "a2", "a3"]).await;
    running.mend();
    running.store.advance(DELAYS[0] * 2);
    for number in 4..300 {
        let message = Message::new(number.to_string())
            .with_header("idempotencykey", format!("a{number}"))
            .with_ordering_key(OrderingKey::new("a"));
        running.queue.publish(message).unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    running.publish(&[]).await;
    let expected: Vec<String> = (1..300).map(|number| number.to_string()).collect();
    assert_eq!(running.effects("a"), expected.join(" "));
    running.mended.store(false, Ordering::SeqCst);
    running.publish(&["b1!"]).await;
    let rows = running.store.kept_dead_letters().iter().map(|kept| kept.row.id.0).max().unwrap_or_default() - 1;
    assert!(rows < 100, "{rows} of 300 messages became rows");
    running.stop().await;
}

/// The checks above find the bugs that they are for.
#[cfg(idem_bugs)]
mod planted {
    use idem_core::bugs::{Bug, plant};

    use super::*;

    #[tokio::test]
    async fn a_worker_that_does_not_look_is_found() {
        plant(Some(Bug::SkipsTheParkedCheck));
        let (effects, _) = effects_around_a_failure(Kind::Each(Order::ByKey)).await;
        plant(None);
        assert_eq!(effects, "1 3 4 5 2 6");
    }

    #[tokio::test]
    async fn rows_that_pass_one_that_failed_are_found() {
        plant(Some(Bug::RunsFollowersOfARowThatFailed));
        let effects = effects_around_two_failures(Kind::Each(Order::ByKey)).await;
        plant(None);
        assert!(effects.starts_with("2 3|"), "{effects}");
    }
}
