//! Processes that run the handler, and may die.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    BoxError, Decision, DedupConsumer, Effects, ErrorClass, Handler, Message, Worker,
    config::RetryPolicy,
    consumer::DedupConsumerBuilder,
    failpoint::{Fate, Life},
    scratch::Scratch,
};
use tokio::sync::Notify;

use super::rigged::{Rig, Rigged};
use crate::memory::Queue;

/// How long a process may take for a handful of messages.
const PATIENCE: Duration = Duration::from_secs(60);

/// For how long a worker is idle before it ends.
const IDLE: Duration = Duration::from_millis(20);

/// How many workers work on one queue in turn, at most.
const WORKERS_MAX: u32 = 50;

/// Rounds in which messages that were not settled are handed over again.
const ROUNDS_MAX: usize = 20;

pub(super) type Make<D, H> = dyn Fn(&<D as Scratch>::Address) -> H + Send + Sync;
pub(super) type Configure<D> =
    dyn Fn(DedupConsumerBuilder<<D as Scratch>::Store>) -> DedupConsumerBuilder<<D as Scratch>::Store> + Send + Sync;

/// The parts that every process is made of.
pub(super) struct Making<D: Scratch, H> {
    pub(super) databases: Arc<D>,
    pub(super) handler: Box<Make<D, H>>,
    pub(super) configure: Box<Configure<D>>,
}

/// Where a process dies, or meets an error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doom {
    pub(super) point: &'static str,
    pub(super) fate: Fate,
}

/// Whether the doom was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Yes,
    No,
}

impl<D: Scratch, H: Handler<D::Store>> Making<D, H> {
    /// A consumer as a new process has it, with a handler of its own.
    pub(super) async fn consumer(
        &self,
        address: &D::Address,
        rig: &Arc<Rig>,
        deadline: Option<Duration>,
    ) -> Result<DedupConsumer<D::Store>, BoxError> {
        let store = self.databases.connect(address).await?;
        let handler = (self.handler)(address);
        let rigged = Rigged { handler, rig: Arc::clone(rig), databases: Arc::clone(&self.databases) };
        let builder = DedupConsumer::builder(store, "prove").handler(rigged).effects(Effects::InTransaction);
        let builder = (self.configure)(builder);
        let builder = match deadline {
            Some(deadline) => builder.handler_deadline(deadline),
            None => builder,
        };
        let consumer = builder.build()?;
        rig.has_deadline(consumer.handler_deadline());
        Ok(consumer)
    }

    /// A process with a receive loop of its own, which has all of these in hand, and hands over unsettled messages again.
    pub(super) async fn loops(
        &self,
        address: &D::Address,
        rig: &Arc<Rig>,
        messages: &[Message],
        doom: Option<Doom>,
    ) -> Result<Met, BoxError> {
        let (consumer, mut left) = (self.consumer(address, rig, None).await?, messages.to_vec());
        live(doom, async move {
            for _ in 0..ROUNDS_MAX {
                let decided = consumer.process(left).await?;
                left = decided
                    .into_iter()
                    .filter(|decided| comes_again(&decided.decision))
                    .map(|decided| decided.message)
                    .collect();
                if left.is_empty() {
                    return Ok(());
                }
            }
            Err(format!("{} messages are still not settled after {ROUNDS_MAX} rounds", left.len()).into())
        })
        .await
    }

    /// A process with a worker, until its queue is at its end or it dies. On a busy machine a worker may take a queue for idle
    /// before the broker has missed the one that died, and before it has come to where it is to die: another begins then, as it would
    /// in production.
    pub(super) async fn works(
        &self,
        address: &D::Address,
        rig: &Arc<Rig>,
        queue: &Queue,
        doom: Option<Doom>,
        deadline: Option<Duration>,
    ) -> Result<Met, BoxError> {
        for _ in 1..WORKERS_MAX {
            let met = self.works_until_idle(address, rig, queue, doom, deadline).await?;
            if met == Met::Yes || queue.is_drained() {
                return Ok(met);
            }
        }
        self.works_until_idle(address, rig, queue, doom, deadline).await
    }

    async fn works_until_idle(
        &self,
        address: &D::Address,
        rig: &Arc<Rig>,
        queue: &Queue,
        doom: Option<Doom>,
        deadline: Option<Duration>,
    ) -> Result<Met, BoxError> {
        let consumer = self.consumer(address, rig, deadline).await?;
        let retry = RetryPolicy::new(4, Duration::from_millis(1), Duration::from_millis(5));
        let worker = Worker::builder(consumer, queue.source()).retry(retry).breaker(false).cleanup(None);
        let worker = worker.until_idle(IDLE).build()?;
        live(doom, async move { worker.run(std::future::pending()).await.map(|_| ()).map_err(BoxError::from) }).await
    }
}

/// Whether a broker would deliver it again.
pub(super) fn comes_again(decision: &Decision) -> bool {
    if let Decision::Failed(failure) = decision {
        return failure.class != ErrorClass::Permanent;
    }
    matches!(decision, Decision::Busy)
}

/// Runs a process until it ends or dies.
async fn live(
    doom: Option<Doom>,
    body: impl Future<Output = Result<(), BoxError>> + Send + 'static,
) -> Result<Met, BoxError> {
    let (met, died) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let life = Life::fated({
        let (met, died) = (Arc::clone(&met), Arc::clone(&died));
        move |point| match doom {
            // Once: later passes go on.
            Some(doom) if doom.point == point && !met.swap(true, Ordering::SeqCst) => {
                if doom.fate == Fate::Die {
                    died.notify_one();
                }
                doom.fate
            }
            Some(_) | None => Fate::Pass,
        }
    });
    let ended = tokio::select! {
        ended = life.spawn(body) => ended?,
        () = died.notified() => Ok(()),
        () = tokio::time::sleep(PATIENCE) => Err(format!("the process did not come to an end within {PATIENCE:?}").into()),
    };
    life.kill();
    ended?;
    Ok(if met.load(Ordering::SeqCst) { Met::Yes } else { Met::No })
}
