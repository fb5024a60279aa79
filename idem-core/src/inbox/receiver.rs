//! [`Receiver`]: writes the messages of a queue or topic to an inbox, and acknowledges them.

use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    bugs::{self, Bug},
    caught::caught,
    error::{BoxError, ErrorClass, SourceError, StoreError, chain, with_causes},
    failpoint,
    inbox::{
        rows::{INBOX_SLOTS, Inbox, NewInboxRow, OpenInbox},
        view::{Of, Progress, ReceiverView},
    },
    key::{KeySource, default_key_source},
    names::ConsumerName,
    outcome::{Durable, Settle},
    retry::RetryPolicy,
    setters::setters,
    source::{Assignment, Attached, Delivery, IntoSource, Received, Revocation, Source},
};

/// The most messages that one statement writes.
const ROWS_MAX: usize = 500;

/// The most bytes that one statement writes; one message at least.
const BYTES_MAX: usize = 4 << 20;

/// How long a source may take to answer how far it is behind.
const BEHIND_WITHIN: Duration = Duration::from_secs(1);

/// How long a source gets for its end.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);

/// The settings of a [`Receiver`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReceiverSettings {
    /// How many slots a new inbox gets: at most so many workers process its messages. Defaults to [`INBOX_SLOTS`].
    pub slots: u16,
    /// How many messages may wait in the inbox. At this number the receiver stops receiving, and it starts again at nine tenths. Messages
    /// that were received by then are written. Defaults to 100,000.
    pub rows_max: u64,
    /// How often the rows are counted. Defaults to 5 s.
    pub count_every: Duration,
    /// How long the start waits for a database or broker that cannot be reached. Defaults to 2 minutes.
    pub startup_timeout: Duration,
    /// Finds the key by which a message without an ordering key gets its slot. Defaults to [`default_key_source`].
    pub keys: Arc<dyn KeySource>,
}

impl Default for ReceiverSettings {
    fn default() -> Self {
        Self {
            slots: INBOX_SLOTS,
            rows_max: 100_000,
            count_every: Duration::from_secs(5),
            startup_timeout: Duration::from_secs(120),
            keys: default_key_source(),
        }
    }
}

impl ReceiverSettings {
    setters! {
        /// Sets how many slots a new inbox gets.
        slots: u16,
        /// Sets how many messages may wait.
        rows_max: u64,
        /// Sets how often the rows are counted.
        count_every: Duration,
        /// Sets how long the start waits.
        startup_timeout: Duration,
        /// Sets what finds the key.
        keys: Arc<dyn KeySource>,
    }
}

/// Why a receiver ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiverError {
    /// The broker refused; the text says what to do.
    #[error("the broker refused")]
    Source(#[source] SourceError),
    /// The store refused; the text says what to do.
    #[error("the store refused")]
    Store(#[source] StoreError),
    /// The database or the broker could not be reached for the start-up time-out.
    #[error("{what} could not be reached for {tried_for:?}")]
    Unreachable {
        /// Which of the two.
        what: &'static str,
        /// The start-up time-out.
        tried_for: Duration,
        /// The last error.
        #[source]
        source: BoxError,
    },
}

/// Writes the messages of a queue or topic to a consumer's inbox. It acknowledges a message once its row is committed.
///
/// Each poll is one statement and one commit. The receiver decides nothing about a message: duplicates and messages without a key are
/// written too, and the worker behind the inbox decides as it would directly at the broker.
pub struct Receiver<B: Source> {
    source: Arc<B>,
    inbox: Arc<dyn Inbox>,
    consumer: ConsumerName,
    settings: ReceiverSettings,
    progress: Arc<Progress>,
}

impl<B: Source> fmt::Debug for Receiver<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("consumer", &self.consumer)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<B: Source> Receiver<B> {
    /// A receiver from this source to the inbox of this consumer. It does not connect yet.
    #[must_use]
    pub fn new(source: impl IntoSource<B>, inbox: Arc<dyn Inbox>, consumer: ConsumerName) -> Self {
        let progress = Arc::new(Progress::of(&consumer));
        Self { source: source.into_source(), inbox, consumer, settings: ReceiverSettings::default(), progress }
    }

    /// Sets the settings.
    #[must_use]
    pub fn settings(mut self, settings: ReceiverSettings) -> Self {
        self.settings = settings;
        self
    }

    /// A view that outlives the call of [`run`](Self::run).
    #[must_use]
    pub fn view(&self) -> ReceiverView {
        ReceiverView { progress: Arc::clone(&self.progress), broker: Arc::new(Of(Arc::clone(&self.source))) }
    }

    /// Tries whether [`run`](Self::run) could start, and ends: attaches to the broker. Nothing is received, and nothing is written.
    ///
    /// # Errors
    /// The errors of a start.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn check(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ReceiverError> {
        let tried = async {
            let mut waits = Waits::new();
            while let Err(error) = self.attach().await {
                self.wait_after(error, &mut waits).await?;
            }
            Ok(())
        };
        let tried = tokio::select! {
            tried = tried => tried,
            () = shutdown => Ok(()),
        };
        self.source.close(CLOSED_WITHIN).await;
        tried
    }

    /// Receives until `shutdown`, and returns how many messages were written. Messages in flight are written and acknowledged before it
    /// returns, unless the database cannot be reached. The broker then redelivers them.
    ///
    /// # Errors
    /// [`ReceiverError`] where an operator must act.
    ///
    /// # Cancel safety
    /// Cancel safe: the broker redelivers what was not acknowledged, and a copy in the inbox is a duplicate.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<u64, ReceiverError> {
        let stop = CancellationToken::new();
        let mut run = pin!(self.receive_all(&stop));
        let mut shutdown = pin!(shutdown);
        let received = tokio::select! {
            biased;
            received = &mut run => received,
            () = &mut shutdown => {
                stop.cancel();
                self.source.stop();
                run.await
            }
        };
        self.source.close(CLOSED_WITHIN).await;
        received
    }

    async fn receive_all(&self, stop: &CancellationToken) -> Result<u64, ReceiverError> {
        let Some(open) = self.open(stop).await? else { return Ok(0) };
        let mut room = Room { rows_max: self.settings.rows_max, is_open: true, count_at: Instant::now() };
        let (mut written, mut failures) = (0, 0);
        loop {
            let max = if room.look(self, &open).await || stop.is_cancelled() { ROWS_MAX } else { 0 };
            let received = tokio::select! {
                biased;
                received = self.source.receive(max) => received,
                () = sleep_until(room.count_at), if !stop.is_cancelled() => continue,
            };
            match received {
                Ok(Received::Deliveries(deliveries)) => {
                    failures = 0;
                    self.progress.in_hand.store(deliveries.len(), Ordering::Release);
                    written += self.keep(&open, deliveries, stop).await?;
                    self.progress.in_hand.store(0, Ordering::Release);
                }
                // All that was received is acknowledged, so there is nothing to wait for.
                Ok(Received::Revoked(revocation)) => drop(revocation),
                Ok(Received::End) => return Ok(written),
                Err(error) if error.class() == ErrorClass::Fatal => return Err(ReceiverError::Source(error)),
                Err(_) if stop.is_cancelled() => return Ok(written),
                Err(error) => {
                    failures += 1;
                    tracing::warn!(idem.consumer = %self.consumer, error = with_causes(&error), "the broker cannot be used; the receiver tries again");
                    pause(failures, stop).await;
                }
            }
        }
    }

    /// Attaches, and makes the inbox; `None` at a stop.
    async fn open(&self, stop: &CancellationToken) -> Result<Option<OpenInbox>, ReceiverError> {
        let opened = async {
            let mut waits = Waits::new();
            loop {
                match self.try_open().await {
                    Ok(open) => return Ok(open),
                    Err(error) => self.wait_after(error, &mut waits).await?,
                }
            }
        };
        tokio::select! {
            opened = opened => opened.map(Some),
            () = stop.cancelled() => Ok(None),
        }
    }

    async fn attach(&self) -> Result<Attached, ReceiverError> {
        self.source.attach().await.map_err(ReceiverError::Source)
    }

    async fn try_open(&self) -> Result<OpenInbox, ReceiverError> {
        let attached = self.attach().await?;
        let open = self.inbox.open(&self.consumer, Some(&attached.bound_to), self.settings.slots).await;
        let open = open.map_err(ReceiverError::Store)?;
        for warning in &attached.warnings {
            tracing::warn!(idem.consumer = %self.consumer, "{warning}");
        }
        if open.slots != self.settings.slots {
            let (slots, asked) = (open.slots, self.settings.slots);
            tracing::warn!(idem.consumer = %self.consumer, slots, asked, "the inbox keeps the number of slots of its first start");
        }
        // There is one start, so this is the first call.
        let _ = self.progress.attached.set(attached);
        Ok(open)
    }

    /// Waits before the next try. An error that no further try would cure, or not in time, is returned.
    async fn wait_after(&self, error: ReceiverError, waits: &mut Waits) -> Result<(), ReceiverError> {
        let (what, source): (_, BoxError) = match error {
            ReceiverError::Source(error) if error.class() != ErrorClass::Fatal => ("the broker", error.into()),
            ReceiverError::Store(error) if error.class() != ErrorClass::Fatal => ("the database", error.into()),
            error @ (ReceiverError::Source(_) | ReceiverError::Store(_) | ReceiverError::Unreachable { .. }) => {
                return Err(error);
            }
        };
        let (tried_for, elapsed) = (self.settings.startup_timeout, waits.begun.elapsed());
        if elapsed >= tried_for {
            return Err(ReceiverError::Unreachable { what, tried_for, source });
        }
        waits.tries += 1;
        let text: Vec<String> = chain(&*source).map(ToString::to_string).collect();
        tracing::warn!(idem.consumer = %self.consumer, error = text.join(": "), "{what} cannot be reached yet");
        let retry = RetryPolicy { max: Duration::from_secs(5), ..RetryPolicy::default() };
        sleep(retry.backoff_now(waits.tries).min(tried_for.saturating_sub(elapsed))).await;
        Ok(())
    }

    /// Writes messages and acknowledges them. Returns how many were written.
    async fn keep(
        &self,
        open: &OpenInbox,
        deliveries: Vec<Delivery<B::Handle>>,
        stop: &CancellationToken,
    ) -> Result<u64, ReceiverError> {
        let mut written = 0;
        let mut rest = deliveries.into_iter().peekable();
        while rest.peek().is_some() {
            let mut chunk = Chunk::default();
            let mut bytes = 0;
            while let Some(next) =
                rest.next_if(|next| chunk.rows.is_empty() || bytes + next.message.bytes() <= BYTES_MAX)
            {
                bytes += next.message.bytes();
                let key = caught(|| self.settings.keys.key(&next.message).ok().flatten()).flatten();
                chunk.rows.push(NewInboxRow::new(next.message, key, open.slots));
                chunk.handles.push((next.handle, next.assignment));
            }
            if bugs::planted(Bug::AcknowledgesBeforeInbox) {
                self.acknowledge(std::mem::take(&mut chunk.handles)).await;
            }
            let Some(revoked) = self.put(open, &mut chunk, stop).await? else {
                // The broker redelivers these and the rest.
                self.release(chunk.handles.into_iter().map(|(handle, _)| handle).chain(rest.map(|next| next.handle)))
                    .await;
                return Ok(written);
            };
            let rows = chunk.rows.len() as u64;
            written += rows;
            self.progress.written.fetch_add(rows, Ordering::Relaxed);
            self.progress.counted.metrics.received.increment(rows);
            // An injected error stands for settlements that were lost.
            if failpoint!(INBOX_WRITTEN).is_ok() {
                self.acknowledge(chunk.handles).await;
            }
            // Answered once their messages are settled.
            drop(revoked);
        }
        Ok(written)
    }

    async fn acknowledge(&self, handles: Vec<(B::Handle, Assignment)>) {
        if !handles.is_empty() {
            let settle = |(handle, _)| (handle, Settle::Acknowledge(Durable::in_inbox()));
            self.source.settle(handles.into_iter().map(settle).collect()).await;
        }
    }

    async fn release(&self, handles: impl Iterator<Item = B::Handle>) {
        let release = handles.map(|handle| (handle, Settle::Release { after: Duration::ZERO }));
        self.source.settle(release.collect()).await;
    }

    /// Writes the rows, and returns revocations that came meanwhile. Tries again as long as the database cannot be used, without the
    /// messages of assignments that end. Gives up at a stop, with `None`.
    async fn put(
        &self,
        open: &OpenInbox,
        chunk: &mut Chunk<B::Handle>,
        stop: &CancellationToken,
    ) -> Result<Option<Vec<Revocation>>, ReceiverError> {
        let mut failures = 0;
        loop {
            let mut revoked: Vec<Revocation> = Vec::new();
            let written = {
                let rows = &chunk.rows;
                let mut put = pin!(self.inbox.put(open.id, rows));
                loop {
                    tokio::select! {
                        biased;
                        written = &mut put => break written,
                        received = self.source.receive(0), if !stop.is_cancelled() => match received {
                            Ok(Received::Revoked(revocation)) => revoked.push(revocation),
                            // It may be stopped, or cut off: the rows come first.
                            Ok(_) | Err(_) => break put.await,
                        },
                    }
                }
            };
            let error = match written {
                Ok(()) => {
                    self.progress.cannot_write.store(false, Ordering::Relaxed);
                    return Ok(Some(revoked));
                }
                Err(error) if error.class() == ErrorClass::Fatal => return Err(ReceiverError::Store(error)),
                Err(error) => error,
            };
            self.progress.cannot_write.store(true, Ordering::Relaxed);
            chunk.revoke(&revoked);
            drop(revoked);
            if chunk.rows.is_empty() {
                return Ok(Some(Vec::new()));
            }
            if stop.is_cancelled() {
                return Ok(None);
            }
            failures += 1;
            tracing::warn!(
                idem.consumer = %self.consumer, error = %error,
                "received messages cannot be written to the inbox; they stay with the broker, and the receiver tries again"
            );
            let mut paused = pin!(pause(failures, stop));
            loop {
                tokio::select! {
                    () = &mut paused => break,
                    received = self.source.receive(0), if !stop.is_cancelled() => match received {
                        Ok(Received::Revoked(revocation)) => chunk.revoke(&[revocation]),
                        Ok(_) | Err(_) => {
                            paused.await;
                            break;
                        }
                    },
                }
            }
        }
    }
}

/// How long a start has been waiting.
struct Waits {
    begun: Instant,
    tries: u32,
}

impl Waits {
    fn new() -> Self {
        Self { begun: Instant::now(), tries: 0 }
    }
}

/// Messages that one statement writes, and their deliveries in the same order.
struct Chunk<H> {
    rows: Vec<NewInboxRow>,
    handles: Vec<(H, Assignment)>,
}

impl<H> Default for Chunk<H> {
    fn default() -> Self {
        Self { rows: Vec::new(), handles: Vec::new() }
    }
}

impl<H> Chunk<H> {
    /// Leaves out messages of assignments that end: another receiver gets them.
    fn revoke(&mut self, revoked: &[Revocation]) {
        let over: BTreeSet<Assignment> = revoked.iter().flat_map(|one| &one.assignments).copied().collect();
        let rows = std::mem::take(&mut self.rows);
        let handles = std::mem::take(&mut self.handles);
        for (row, (handle, assignment)) in rows.into_iter().zip(handles) {
            if !over.contains(&assignment) {
                self.rows.push(row);
                self.handles.push((handle, assignment));
            }
        }
    }
}

/// Whether the inbox has room.
struct Room {
    rows_max: u64,
    is_open: bool,
    count_at: Instant,
}

impl Room {
    /// Counts the rows where it is time to, and answers whether messages may be received.
    async fn look<B: Source>(&mut self, receiver: &Receiver<B>, open: &OpenInbox) -> bool {
        let now = Instant::now();
        if now < self.count_at {
            return self.is_open;
        }
        self.count_at = now + receiver.settings.count_every;
        // Nothing is received meanwhile.
        if let Ok(behind) = timeout(BEHIND_WITHIN, receiver.source.behind()).await {
            receiver.progress.behind.set(behind);
        }
        // Writing shows whether the database can be used.
        let Ok(backlog) = receiver.inbox.backlog(open.id, &[], self.rows_max).await else { return self.is_open };
        receiver.progress.counted.set(backlog);
        let is_open = backlog.rows < if self.is_open { self.rows_max } else { self.rows_max - self.rows_max / 10 };
        if is_open != self.is_open {
            let (rows, rows_max) = (backlog.rows, self.rows_max);
            if is_open {
                tracing::info!(idem.consumer = %receiver.consumer, rows, "the inbox has room again");
                receiver.source.resume();
            } else {
                tracing::warn!(idem.consumer = %receiver.consumer, rows, rows_max, "the inbox is full; messages stay with the broker until its workers catch up");
                receiver.source.pause();
            }
        }
        self.is_open = is_open;
        is_open
    }
}

async fn pause(failures: u32, stop: &CancellationToken) {
    tokio::select! {
        () = sleep(RetryPolicy::default().backoff_now(failures)) => {}
        () = stop.cancelled() => {}
    }
}
