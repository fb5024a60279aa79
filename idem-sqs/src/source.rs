//! [`SqsSource`]: the source as the worker sees it.

use std::{fmt, sync::Arc, time::Duration};

use idem_core::{
    ConfigError, Source, SourceError,
    source::{Attached, Behind, Received, Settle, Settled, SourceCapabilities},
};
use tokio::{sync::Mutex, task::JoinSet, time::Instant};

use crate::{
    attach, keeper,
    options::SqsOptions,
    queue::{AT_ONCE, Queue, seconds},
    receiver, settle,
    state::{Shared, SqsHandle},
};

/// So that few deletes share a request, they are sent no more often than this.
const GATHER: Duration = Duration::from_millis(100);

/// Messages taken in should be settled within this time, and within a quarter of the visibility: other workers could have them.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// How often the messages of the queue are counted.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// The part of the time for closing that giving messages back may take.
const GIVE_BACK: Duration = Duration::from_secs(3);

/// One queue. [`SqsOptions`] makes one.
///
/// From [`Source::attach`] until [`Source::close`] its own tasks receive messages and keep those in hand from others. A source
/// that is dropped just ends; its messages in hand come back when their visibility passes.
pub struct SqsSource {
    options: SqsOptions,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    running: Mutex<Running>,
    settled_at: Mutex<Instant>,
    /// When the queue's messages were counted, and how many there were.
    counted: Mutex<Option<(Instant, Option<u64>)>>,
}

/// The tasks end with the source.
#[derive(Default)]
struct Running {
    attached: Option<Attached>,
    receivers: JoinSet<()>,
    keeper: JoinSet<()>,
}

impl SqsOptions {
    /// Checks the settings. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(&self) -> Result<SqsSource, ConfigError> {
        self.check()?;
        Ok(SqsSource {
            queue: Arc::new(Queue::new(self)),
            shared: Arc::new(Shared::new(self.visibility)),
            running: Mutex::default(),
            settled_at: Mutex::new(Instant::now()),
            counted: Mutex::default(),
            options: self.clone(),
        })
    }
}

impl SqsSource {
    /// Waits where little is to be settled so soon after the last time: more may come meanwhile. Not on a FIFO queue,
    /// where the next message of a group waits for this.
    async fn gather(&self, count: usize) {
        if !self.queue.fifo && count < AT_ONCE {
            let mut settled_at = self.settled_at.lock().await;
            tokio::time::sleep_until(*settled_at + GATHER).await;
            *settled_at = Instant::now();
        }
    }
}

impl fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Source for SqsSource {
    type Handle = SqsHandle;

    fn capabilities(&self) -> SourceCapabilities {
        // So that nothing is extended that could have run elsewhere meanwhile.
        let time = SETTLED_WITHIN.min(self.options.visibility / 4);
        SourceCapabilities::minimal().marks_redelivery(true).settled_within(Some(time))
    }

    fn unreachable_for(&self) -> Option<Duration> {
        self.shared.unreachable_for()
    }

    /// # Errors
    /// [`SourceError::Refused`] for a queue that does not exist, be it one that is [required](SqsOptions::require_queue), rights or credentials that are missing.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call has started nothing.
    async fn attach(&self) -> Result<Attached, SourceError> {
        let mut running = self.running.lock().await;
        if let Some(attached) = &running.attached {
            return Ok(attached.clone());
        }
        if self.shared.stopped.is_cancelled() {
            return Err(SourceError::refused("the source is closed", "Make a new one"));
        }
        let attached = attach::attach(&self.queue, &self.options.needed).await?;
        for _ in 0..self.options.receivers {
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            running.receivers.spawn(receiver::run(shared, queue, self.options.envelope));
        }
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        running.keeper.spawn(keeper::run(shared, queue, seconds(self.options.visibility)));
        Ok(running.attached.insert(attached).clone())
    }

    /// # Errors
    /// [`SourceError::Refused`] where the queue was deleted or rights were taken away; [`SourceError::Unavailable`] where
    /// SQS cannot be reached, or hands over nothing because too many messages are in flight.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call loses nothing.
    async fn receive(&self, max: usize) -> Result<Received<SqsHandle>, SourceError> {
        self.shared.receive(max).await
    }

    /// A delete that fails is tried again for ten seconds and is no error: the message comes back as a duplicate.
    ///
    /// # Cancel safety
    /// Not cancel safe: whether SQS got the settlements is then unknown.
    async fn settle(&self, settlements: Vec<(SqsHandle, Settle)>) -> Vec<Settled> {
        self.gather(settlements.len()).await;
        let (mut deletes, mut releases) = (Vec::new(), Vec::new());
        let numbers: Vec<u64> = settlements.iter().map(|(handle, _)| handle.number).collect();
        for (handle, settle) in settlements {
            match settle {
                Settle::Acknowledge(_) | Settle::DeadLetter(_) => deletes.extend(self.shared.to_delete(&handle)),
                // After a stop the receives under way would only take them again: they go back at the close.
                Settle::Release { .. } if self.shared.stopped.is_cancelled() => {}
                Settle::Release { after } => releases.extend(self.shared.to_release(&handle, after)),
            }
        }
        let mut answers = settle::send(&self.queue, &deletes).await;
        self.shared.forget(deletes.iter().map(|item| item.number));
        if !releases.is_empty() {
            drop(self.shared.extending.lock().await);
            releases.sort_unstable_by_key(|item| item.number);
            answers.extend(settle::send(&self.queue, &releases).await);
        }
        // Of the others, some are not in hand any more, and some go back later.
        let otherwise = |number: &u64| if self.shared.has(*number) { Settled::Unknown } else { Settled::Stale };
        numbers.iter().map(|number| answers.remove(number).unwrap_or_else(|| otherwise(number))).collect()
    }

    async fn is_idle(&self) -> bool {
        if !self.shared.is_quiet() {
            return false;
        }
        let counts = self.queue.counts().await;
        let none = counts.is_some_and(|counts| counts.waiting + counts.in_flight + counts.delayed == 0);
        none && self.shared.is_quiet()
    }

    /// The messages that wait, those in hand of any consumer, and delayed ones, as far as SQS knows. It is asked every 15 s, because
    /// each request costs.
    async fn behind(&self) -> Vec<Behind> {
        let mut counted = self.counted.lock().await;
        if counted.is_none_or(|(at, _)| at.elapsed() >= COUNT_EVERY) {
            let counts = self.queue.counts().await;
            let all = counts.map(|counts| counts.waiting + counts.in_flight + counts.delayed);
            *counted = Some((Instant::now(), all));
        }
        vec![Behind::new(&*self.queue.name, counted.and_then(|(_, all)| all))]
    }

    fn stop(&self) {
        self.shared.stop();
    }

    /// Waits for the receives under way, and gives back everything in hand.
    ///
    /// # Cancel safety
    /// Cancel safe: it may be called again.
    async fn close(&self, deadline: Duration) {
        self.shared.stop();
        let until = Instant::now() + deadline;
        let mut running = self.running.lock().await;
        let received = async { while running.receivers.join_next().await.is_some() {} };
        if tokio::time::timeout_at(until - GIVE_BACK.min(deadline / 2), received).await.is_err() {
            tracing::warn!(queue = self.queue.name, "a receive did not end in time; its messages come back later");
            running.receivers.shutdown().await;
        }
        if tokio::time::timeout_at(until, settle::give_back(&self.shared, &self.queue)).await.is_err() {
            tracing::warn!(queue = self.queue.name, "SQS did not answer in time; messages come back later");
        }
        running.keeper.abort_all();
    }
}
