//! A source that has its whole backlog in hand, so that the engine and the database alone are measured.

use std::{
    error::Error,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    CancellationToken, DedupConsumer, Message, Source, SourceError, Store, Worker,
    source::{Assignment, Attached, Delivery, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{sync::watch, time::Instant};

use crate::postgres::Round;

/// Makes message number `n`.
pub(crate) type Make = Box<dyn Fn(usize) -> Message + Send + Sync>;

pub(crate) struct Backlog {
    make: Make,
    size: usize,
    handed_over: Mutex<usize>,
    /// The time that making the messages took, which is the broker's part.
    making: Mutex<Duration>,
    settled: AtomicUsize,
    done: watch::Sender<bool>,
}

impl Backlog {
    pub(crate) fn new(size: usize, make: Make) -> Self {
        let (handed_over, making, settled) = (Mutex::new(0), Mutex::default(), AtomicUsize::new(0));
        Self { make, size, handed_over, making, settled, done: watch::Sender::new(false) }
    }

    pub(crate) fn settled(&self) -> usize {
        self.settled.load(Ordering::Relaxed)
    }

    /// Waits until every message is settled.
    pub(crate) async fn drained(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }
}

impl Source for Backlog {
    type Handle = ();

    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities::minimal()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        Ok(Attached::new("backlog"))
    }

    async fn receive(&self, max: usize) -> Result<Received<()>, SourceError> {
        if *self.done.borrow() {
            return Ok(Received::End);
        }
        let range = {
            let mut next = self.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
            let range = *next..(*next + max).min(self.size);
            *next = range.end;
            range
        };
        if range.is_empty() {
            self.drained().await;
            return Ok(Received::End);
        }
        let delivery = |n| {
            let (message, assignment) = ((self.make)(n), Assignment::default());
            Delivery { message, attempt: 1, redelivered: false, suspect: false, assignment, handle: () }
        };
        let begun = Instant::now();
        let deliveries = range.map(delivery).collect();
        *self.making.lock().unwrap_or_else(PoisonError::into_inner) += begun.elapsed();
        Ok(Received::Deliveries(deliveries))
    }

    async fn settle(&self, settlements: Vec<((), Settle)>) -> Vec<Settled> {
        // Messages that a stop gives back were not handled.
        let done = settlements.iter().filter(|(_, settle)| matches!(settle, Settle::Acknowledge(_))).count();
        let settled = self.settled.fetch_add(done, Ordering::Relaxed) + done;
        if settled >= self.size {
            self.done.send_replace(true);
        }
        settlements.iter().map(|_| Settled::Settled).collect()
    }

    async fn is_idle(&self) -> bool {
        self.settled() >= self.size
    }

    fn stop(&self) {
        self.done.send_replace(true);
    }

    async fn close(&self, _deadline: Duration) {}
}

/// Runs `messages` of `make` through a worker on this thread alone, with a cache of committed keys or without, and answers
/// how long that took beside making them.
pub(crate) async fn consume<S: Store>(
    consumer: DedupConsumer<S>,
    cache: Option<Duration>,
    messages: usize,
    make: Make,
) -> Result<Duration, Box<dyn Error>> {
    let backlog = Arc::new(Backlog::new(messages, make));
    let mut worker = Worker::builder(consumer, Arc::clone(&backlog)).cleanup(None);
    if let Some(cache) = cache {
        worker = worker.cache_for(cache);
    }
    let worker = worker.build()?;
    let stop = CancellationToken::new();
    let started = Instant::now();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    backlog.drained().await;
    let took = started.elapsed() - *backlog.making.lock().unwrap_or_else(PoisonError::into_inner);
    stop.cancel();
    running.await??;
    Ok(took)
}

/// Runs messages of `make` through a worker for this long, once `warm_up` of them are through.
pub(crate) async fn consume_for<S: Store>(
    consumer: DedupConsumer<S>,
    batch: usize,
    warm_up: usize,
    time: Duration,
    make: Make,
) -> Result<Round, Box<dyn Error>> {
    let backlog = Arc::new(Backlog::new(usize::MAX, make));
    let worker = Worker::builder(consumer, Arc::clone(&backlog)).batch(batch).cleanup(None).build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    // From the end of one unit to that of another: in between, nothing is known of how far one is.
    let settled_after = async |least: usize| {
        while backlog.settled() < least && !running.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (backlog.settled(), Instant::now())
    };
    let (before, started) = settled_after(warm_up).await;
    tokio::time::sleep(time).await;
    let (after, ended) = settled_after(backlog.settled() + 1).await;
    let (messages, took) = (after - before, ended - started);
    stop.cancel();
    let effects = usize::try_from(running.await??.processed)?;
    Ok(Round { messages, took, effects })
}
