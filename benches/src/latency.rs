//! How long a single message takes at low load, from its arrival to its acknowledgement: nothing may wait for a batch.

use std::{
    error::Error,
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    CancellationToken, DedupConsumer, Effects, Handler, Source, SourceError, Store, Worker,
    source::{Assignment, Attached, Delivery, Received, Settle, Settled, SourceCapabilities},
};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    by_hand::ByHand,
    feed::Feed,
    postgres::{fresh, remove, store, tokio_store},
    report::{Line, Table},
    work::Work,
};

/// A hundred messages a second.
const EVERY: Duration = Duration::from_millis(10);

/// Messages before the first that is measured: as many as run alone after a start.
const WARM_UP: usize = 100;

/// The names of the lines that targets are about.
pub(crate) const TEXTBOOK: &str = "(b) textbook, pool with its defaults";
pub(crate) const IDEM: &str = "idem, batches of up to 100, one lane";
pub(crate) const ON_TOKIO_POSTGRES: &str = "the same on tokio-postgres";

/// One message after the other, each at its time.
struct Paced {
    messages: usize,
    /// When those after the warm-up begin.
    started: OnceCell<Instant>,
    next: AtomicUsize,
    took: Mutex<Vec<Duration>>,
    warm: CancellationToken,
    stopped: CancellationToken,
}

impl Paced {
    async fn start(&self) -> Instant {
        let warm = async {
            self.warm.cancelled().await;
            Instant::now()
        };
        *self.started.get_or_init(|| warm).await
    }
}

impl Source for Paced {
    /// When it arrived.
    type Handle = Instant;

    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities::minimal()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        Ok(Attached::new("paced"))
    }

    async fn receive(&self, max: usize) -> Result<Received<Instant>, SourceError> {
        let n = self.next.load(Ordering::Relaxed);
        let due = async {
            match max {
                0 => pending().await,
                _ if n < WARM_UP => {}
                _ if n < WARM_UP + self.messages => tokio::time::sleep_until(due(self.start().await, n)).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = self.stopped.cancelled() => return Ok(Received::End),
            () = due => {}
        }
        self.next.store(n + 1, Ordering::Relaxed);
        let (message, assignment) = (Feed::fresh(Work::Insert).message(n), Assignment::default());
        Ok(Received::Deliveries(vec![Delivery {
            message,
            attempt: 1,
            redelivered: false,
            suspect: false,
            assignment,
            handle: Instant::now(),
        }]))
    }

    async fn settle(&self, settlements: Vec<(Instant, Settle)>) -> Vec<Settled> {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        took.extend(settlements.iter().map(|(arrived, _)| arrived.elapsed()));
        if took.len() >= WARM_UP {
            self.warm.cancel();
        }
        if took.len() >= WARM_UP + self.messages {
            self.stopped.cancel();
        }
        settlements.iter().map(|_| Settled::Settled).collect()
    }

    async fn is_idle(&self) -> bool {
        false
    }

    fn stop(&self) {
        self.stopped.cancel();
    }

    async fn close(&self, _deadline: Duration) {}
}

/// When a message is due, by its number from the first of the warm-up on.
fn due(started: Instant, n: usize) -> Instant {
    started + EVERY * u32::try_from(n - WARM_UP).unwrap_or(u32::MAX)
}

async fn idem<S: Store>(store: S, messages: usize) -> Result<Vec<Duration>, Box<dyn Error>>
where
    Work: Handler<S>,
{
    let stopped = CancellationToken::new();
    let source = Arc::new(Paced {
        messages,
        started: OnceCell::new(),
        next: AtomicUsize::new(0),
        took: Mutex::new(Vec::new()),
        warm: CancellationToken::new(),
        stopped: stopped.clone(),
    });
    let consumer = DedupConsumer::builder(store, "bench").handler(Work::Insert);
    let consumer = consumer.effects(Effects::InTransaction).lanes(1).build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn(
        Worker::builder(consumer, Arc::clone(&source)).cleanup(None).build()?.run(stop.clone().cancelled_owned()),
    );
    stopped.cancelled().await;
    stop.cancel();
    running.await??;
    Ok(source.took.lock().unwrap_or_else(PoisonError::into_inner).split_off(WARM_UP))
}

async fn textbook(url: &str, messages: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let pool = PgPool::connect(url).await?;
    for n in 0..WARM_UP {
        ByHand::TextbookOnPool.transaction(pool.begin().await?, Work::Insert, n).await?;
    }
    let (started, mut took) = (Instant::now(), Vec::new());
    for n in WARM_UP..WARM_UP + messages {
        tokio::time::sleep_until(due(started, n)).await;
        let arrived = Instant::now();
        ByHand::TextbookOnPool.transaction(pool.begin().await?, Work::Insert, n).await?;
        took.push(arrived.elapsed());
    }
    Ok(took)
}

/// The 50th and 99th percentile of each round.
pub(crate) async fn single(url: &str, rounds: usize, messages: usize) -> Result<Vec<Table>, Box<dyn Error>> {
    let mut connection = PgConnection::connect(url).await?;
    let names = [TEXTBOOK, IDEM, ON_TOKIO_POSTGRES];
    let [mut p50, mut p99] = [names.map(Line::new), names.map(Line::new)];
    for _ in 0..rounds {
        for (number, (p50, p99)) in p50.iter_mut().zip(&mut p99).enumerate() {
            fresh(&mut connection).await?;
            let mut took = match number {
                0 => textbook(url, messages).await?,
                1 => idem(store(url).await?, messages).await?,
                _ => idem(tokio_store(url).await?, messages).await?,
            };
            took.sort();
            let percentile = |percent: usize| took[took.len() * percent / 100].as_secs_f64() * 1e3;
            p50.rounds.push(percentile(50));
            p99.rounds.push(percentile(99));
        }
    }
    remove(&mut connection).await?;
    let title = |name: &str| format!("PostgreSQL, insert, a message each 10 ms, {rounds} rounds of {messages}: {name}");
    Ok(vec![
        Table::print("latency-p50", title("50th percentile"), "ms", p50.into()),
        Table::print("latency-p99", title("99th percentile"), "ms", p99.into()),
    ])
}
