//! [`InboxSource`]: hands the messages of an inbox to a worker.

mod removal;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot::error::TryRecvError},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{ErrorClass, SourceError, StoreError},
    failpoint,
    inbox::{
        rows::{HeldSlot, Inbox, InboxBacklog, InboxRow, OpenInbox, Reading},
        state::{InboxHandle, Leaving, Look, ROWS_MAX, State},
        view::{Counted, ReceiverView},
    },
    names::{ConsumerName, ScopeId},
    outcome::Settle,
    setters::setters,
    source::{Attached, REFUSAL_GRACE, Received, Settled, Source, SourceCapabilities},
    spawn,
};

/// How soon a source looks again after it found nothing. The wait doubles up to the longest.
const POLL_MIN: Duration = Duration::from_millis(10);

const POLL_MAX: Duration = Duration::from_millis(200);

/// How soon the keeper sees that the messages of a slot are done.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// How often the rows are counted, and up to how many.
const COUNT_EVERY: Duration = Duration::from_secs(5);

const COUNTED_MAX: u64 = 100_000;

/// How long one try to attach waits for a receiver in this process that is still starting.
const RECEIVER_STARTS: Duration = Duration::from_secs(1);

/// How a source holds its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxSettings {
    /// How long a lease lasts. After that time another worker gets the slots of one that died. Defaults to 10 s.
    pub lease: Duration,
    /// How often leases are renewed, and how often a slot goes from one worker to another. Defaults to 1 s.
    pub hold_every: Duration,
    /// Whether the start waits for an inbox that no receiver has made yet, as it waits for a broker that cannot be reached. Otherwise it
    /// is refused. Defaults to no.
    pub awaits_receiver: bool,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), hold_every: Duration::from_secs(1), awaits_receiver: false }
    }
}

impl InboxSettings {
    setters! {
        /// Sets how long a lease lasts.
        lease: Duration,
        /// Sets how often leases are renewed.
        hold_every: Duration,
        /// Sets whether the start waits for an inbox that is not there yet.
        awaits_receiver: bool,
    }
}

/// A [`Source`] over a consumer's inbox. A [`Receiver`](crate::inbox::Receiver) fills the inbox, in this process or in another.
///
/// Slow handlers keep no message of the broker in flight. Several workers of one consumer share the slots of its inbox. The messages of an
/// ordering key are handled in order.
#[derive(Debug)]
pub struct InboxSource(Arc<Shared>);

struct Shared {
    inbox: Arc<dyn Inbox>,
    consumer: ConsumerName,
    holder: String,
    settings: InboxSettings,
    inner: Mutex<Inner>,
    /// A revocation, the first slots, or the end.
    changed: Notify,
    /// Ends the keeper.
    closing: CancellationToken,
    /// The receiver in this process.
    receiver: OnceLock<ReceiverView>,
    counted: Counted,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("consumer", &self.consumer).field("holder", &self.holder).finish_non_exhaustive()
    }
}

struct Inner {
    state: State,
    attached: Option<(OpenInbox, Attached)>,
    keeper: Option<JoinHandle<()>>,
    /// How long to wait after a look that finds nothing, and until when.
    poll: Duration,
    look_at: Instant,
    /// When the last removal ended.
    removed_at: Instant,
    unreachable_since: Option<Instant>,
    /// Whether a look is under way. It goes on where its receive is dropped, and the next one finds its rows.
    is_looking: bool,
    failed: Option<SourceError>,
}

impl Inner {
    fn looked(&mut self, look: &Look, rows: Vec<InboxRow>) {
        let now = Instant::now();
        self.unreachable_since = None;
        if rows.is_empty() {
            self.look_at = now + self.poll;
            self.poll = (self.poll * 2).min(POLL_MAX);
        } else {
            self.poll = POLL_MIN;
        }
        self.state.looked(look, rows, now);
    }

    fn failed(&mut self, error: StoreError) {
        let now = Instant::now();
        let since = *self.unreachable_since.get_or_insert(now);
        // A right or a table may be missing for a moment, during a deploy.
        let is_final = error.class() == ErrorClass::Fatal && now.duration_since(since) >= REFUSAL_GRACE;
        self.failed = Some(if is_final { refused(error) } else { SourceError::unavailable(READING, error) });
    }
}

impl InboxSource {
    /// The inbox of this consumer.
    #[must_use]
    pub fn new(inbox: Arc<dyn Inbox>, consumer: ConsumerName) -> Self {
        Self::with_settings(inbox, consumer, InboxSettings::default())
    }

    /// The same with other settings.
    #[must_use]
    pub fn with_settings(inbox: Arc<dyn Inbox>, consumer: ConsumerName, settings: InboxSettings) -> Self {
        // Random, because two sources of one name would both have the same slots.
        let holder = format!("worker-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let now = Instant::now();
        let inner = Mutex::new(Inner {
            state: State::new(now),
            attached: None,
            keeper: None,
            poll: POLL_MIN,
            look_at: now,
            removed_at: now,
            unreachable_since: None,
            is_looking: false,
            failed: None,
        });
        let (changed, closing) = (Notify::new(), CancellationToken::new());
        let (receiver, counted) = (OnceLock::new(), Counted::of(&consumer));
        Self(Arc::new(Shared { inbox, consumer, holder, settings, inner, changed, closing, receiver, counted }))
    }

    /// Names the receiver that fills the inbox in this process. The start then waits for the receiver's, the source is idle once both
    /// are, and the receiver's broker counts as this source's.
    #[must_use]
    pub fn filled_by(self, receiver: ReceiverView) -> Self {
        // The first one stays.
        let _ = self.0.receiver.set(receiver);
        self
    }

    /// What waits in the inbox, as it was last counted.
    #[must_use]
    pub fn backlog(&self) -> Option<InboxBacklog> {
        self.0.receiver.get().map_or_else(|| self.0.counted.last(), ReceiverView::backlog)
    }

    /// The name under which this source holds slots.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.0.holder
    }
}

impl Drop for InboxSource {
    fn drop(&mut self) {
        self.0.closing.cancel();
    }
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the leases, takes free slots, and returns those that another member waits for.
    async fn hold(&self, id: ScopeId) -> Result<Option<Leaving>, StoreError> {
        // Before the request, so that a lease ends here before it ends in the database.
        let until = Instant::now() + self.settings.lease;
        let takes = !self.inner().state.is_stopped;
        let granted = self.inbox.hold_slots(id, &self.holder, self.settings.lease, takes).await?;
        let leaving = {
            let mut inner = self.inner();
            if inner.state.is_closed {
                // It was closed during the request, which may have taken slots.
                inner.state.to_release.extend(granted.iter().map(|one| one.held));
                return Ok(None);
            }
            let held_none = inner.state.holds_none();
            let leaving = inner.state.granted(&granted, until);
            if held_none || inner.state.has_revocation() {
                self.changed.notify_waiters();
            }
            leaving
        };
        Ok(leaving)
    }

    /// Releases slots that were given up here.
    async fn release(&self, id: ScopeId) -> Result<(), StoreError> {
        let slots: Vec<HeldSlot> = self.inner().state.to_release.iter().copied().collect();
        if slots.is_empty() {
            return Ok(());
        }
        self.inbox.release_slots(id, &self.holder, &slots).await?;
        let mut inner = self.inner();
        inner.state.to_release.retain(|slot| !slots.contains(slot));
        Ok(())
    }

    async fn keep(self: Arc<Self>, id: ScopeId, first: Option<Leaving>) {
        let mut leaving: Vec<Leaving> = first.into_iter().collect();
        let mut hold_at = Instant::now() + self.settings.hold_every;
        loop {
            let look_at = if leaving.is_empty() { hold_at } else { hold_at.min(Instant::now() + DRAIN_LOOK) };
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = sleep_until(look_at) => {}
            }
            leaving.retain_mut(|one| {
                let is_drained = !matches!(one.drained.try_recv(), Err(TryRecvError::Empty));
                if is_drained {
                    self.inner().state.left(&one.slots);
                }
                !is_drained
            });
            // A slot that was given up must be free in the table before this source may have it again.
            let released = self.release(id).await;
            if Instant::now() < hold_at && released.is_ok() {
                continue;
            }
            hold_at = Instant::now() + self.settings.hold_every;
            let held = match released {
                Ok(()) => self.hold(id).await,
                Err(error) => Err(error),
            };
            match held {
                Ok(wanted) => leaving.extend(wanted),
                Err(error) => {
                    tracing::warn!(idem.consumer = %self.consumer, error = %error, "the slots of the inbox could not be renewed");
                }
            }
            self.expire();
        }
    }

    fn expire(&self) {
        let mut inner = self.inner();
        inner.state.expire(Instant::now());
        if inner.state.has_revocation() {
            self.changed.notify_waiters();
        }
    }

    /// Counts the rows, unless a receiver in this process does.
    async fn count(self: Arc<Self>, id: ScopeId) {
        let mut count_at = Instant::now();
        while self.receiver.get().is_none() {
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = sleep_until(count_at) => {}
            }
            count_at = Instant::now() + COUNT_EVERY;
            let counted = tokio::select! {
                () = self.closing.cancelled() => return,
                counted = self.inbox.backlog(id, &[], COUNTED_MAX) => counted,
            };
            match counted {
                Ok(backlog) => self.counted.set(backlog),
                Err(error) => tracing::debug!(idem.consumer = %self.consumer, %error, "the inbox cannot be counted"),
            }
        }
    }

    /// The inbox, with the facts of its broker where the receiver is in this process.
    async fn found(&self) -> Result<(OpenInbox, Attached), SourceError> {
        let broker = match self.receiver.get() {
            Some(receiver) => Some(self.receiver_attached(receiver).await?),
            None => None,
        };
        let found = self.inbox.find(&self.consumer).await.map_err(|error| at_start(ATTACHING, error))?;
        let Some(open) = found else {
            let problem = format!("consumer {} has no inbox", self.consumer);
            return Err(match broker.is_some() || self.settings.awaits_receiver {
                true => SourceError::unavailable(ATTACHING, format!("{problem} yet; its receiver makes it")),
                false => SourceError::refused(problem, "Start its receiver, which makes the inbox"),
            });
        };
        let bound_to =
            if open.bound_to.is_empty() { format!("the inbox of {}", self.consumer) } else { open.bound_to.clone() };
        let mut attached = Attached::new(bound_to);
        if let Some(broker) = broker {
            attached.redelivery_horizon = broker.redelivery_horizon;
            attached.message_bytes_max = broker.message_bytes_max;
        }
        Ok((open, attached))
    }

    async fn receiver_attached<'r>(&self, receiver: &'r ReceiverView) -> Result<&'r Attached, SourceError> {
        let until = Instant::now() + RECEIVER_STARTS;
        loop {
            if let Some(attached) = receiver.attached() {
                return Ok(attached);
            }
            if Instant::now() >= until {
                let problem = format!("the receiver of {} has not started yet", self.consumer);
                return Err(SourceError::unavailable(ATTACHING, problem));
            }
            sleep(POLL_MIN).await;
        }
    }

    /// Reads the next rows.
    async fn look(self: Arc<Self>, id: ScopeId, look: Look) {
        let reading = Reading::new(&look.slots).except(&look.except).each_max(look.each_max).rows_max(ROWS_MAX);
        let read = self.inbox.next(id, reading).await;
        let is_lost = failpoint!(INBOX_READ).is_err();
        {
            let mut inner = self.inner();
            inner.is_looking = false;
            match read {
                Ok(rows) if !is_lost => inner.looked(&look, rows),
                Ok(_) => {}
                Err(error) => inner.failed(error),
            }
        }
        self.changed.notify_waiters();
    }
}

const READING: &str = "reading the inbox";

const ATTACHING: &str = "attaching to the inbox";

/// A refusal of the store as that of a broker.
fn refused(error: StoreError) -> SourceError {
    match error {
        StoreError::Schema { problem, cure } | StoreError::Refused { problem, cure } => {
            SourceError::Refused { problem, cure }
        }
        error @ (StoreError::Unavailable { .. }
        | StoreError::Contended { .. }
        | StoreError::Bound { .. }
        | StoreError::Unsealed { .. }
        | StoreError::Unsupported { .. }
        | StoreError::Failed { .. }) => {
            SourceError::refused(error.to_string(), "Correct it and start the worker again")
        }
    }
}

/// An error of the store at a start.
pub(super) fn at_start(doing: &'static str, error: StoreError) -> SourceError {
    if error.class() == ErrorClass::Fatal { refused(error) } else { SourceError::unavailable(doing, error) }
}

/// What a receive does next.
enum Step {
    Answer(Result<Received<InboxHandle>, SourceError>),
    Look(ScopeId, Look),
    /// Until this moment, or something changes.
    Wait(Option<Instant>),
}

impl Shared {
    fn step(&self, max: usize) -> Step {
        let mut inner = self.inner();
        let now = Instant::now();
        if inner.attached.is_some() {
            inner.state.expire(now);
        }
        if let Some(revocation) = inner.state.revocation() {
            return Step::Answer(Ok(Received::Revoked(revocation)));
        }
        if inner.state.is_stopped {
            return Step::Answer(Ok(Received::End));
        }
        if max > 0 && !inner.state.is_empty_handed() {
            let deliveries = inner.state.hand_over(max);
            if !deliveries.is_empty() {
                return Step::Answer(Ok(Received::Deliveries(deliveries)));
            }
        }
        let event = inner.state.next_event();
        let Some(id) = inner.attached.as_ref().map(|(open, _)| open.id).filter(|_| max > 0) else {
            return Step::Wait(event);
        };
        if let Some(error) = inner.failed.take() {
            return Step::Answer(Err(error));
        }
        if inner.is_looking {
            return Step::Wait(event);
        }
        if now < inner.look_at {
            return Step::Wait(Some(event.map_or(inner.look_at, |event| event.min(inner.look_at))));
        }
        let Some(look) = inner.state.plan(now) else { return Step::Wait(event) };
        inner.is_looking = true;
        Step::Look(id, look)
    }
}

impl Source for InboxSource {
    type Handle = InboxHandle;

    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities::minimal()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        let shared = &self.0;
        if let Some((_, attached)) = &shared.inner().attached {
            return Ok(attached.clone());
        }
        let (open, attached) = shared.found().await?;
        let leaving = shared.hold(open.id).await.map_err(|error| at_start(ATTACHING, error))?;
        let mut inner = shared.inner();
        inner.keeper = Some(spawn::spawn(Arc::clone(shared).keep(open.id, leaving)));
        drop(spawn::spawn(Arc::clone(shared).count(open.id)));
        inner.attached = Some((open, attached.clone()));
        Ok(attached)
    }

    async fn receive(&self, max: usize) -> Result<Received<InboxHandle>, SourceError> {
        let shared = &self.0;
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            // From here on nothing is missed, also between the step and the wait.
            changed.as_mut().enable();
            let until = match shared.step(max) {
                Step::Answer(received) => return received,
                Step::Look(id, look) => {
                    let looked = spawn::finished(Arc::clone(shared).look(id, look));
                    tokio::select! {
                        biased;
                        // A revocation or the end does not wait for a database that does not answer.
                        () = changed => {}
                        () = looked => {}
                    }
                    continue;
                }
                Step::Wait(until) => until,
            };
            match until {
                Some(until) => drop(timeout_at(until, changed).await),
                None => changed.await,
            }
        }
    }

    async fn settle(&self, settlements: Vec<(InboxHandle, Settle)>) -> Vec<Settled> {
        self.0.settle(settlements).await
    }

    async fn is_idle(&self) -> bool {
        // In the direction of the messages, so that none passes unseen.
        if let Some(receiver) = self.0.receiver.get()
            && !receiver.is_idle().await
        {
            return false;
        }
        let asked = {
            let inner = self.0.inner();
            inner.attached.as_ref().map(|(open, _)| open.id).zip(inner.state.only_in_flight())
        };
        let Some((id, in_flight)) = asked else { return false };
        self.0.inbox.backlog(id, &in_flight, 1).await.is_ok_and(|backlog| backlog.rows == 0)
    }

    fn takes_part(&self) -> bool {
        self.0.receiver.get().is_none_or(ReceiverView::has_joined)
    }

    fn unreachable_for(&self) -> Option<Duration> {
        let own = self.0.inner().unreachable_since.map(|since| since.elapsed());
        own.or_else(|| self.0.receiver.get()?.unreachable_for())
    }

    fn stop(&self) {
        self.0.inner().state.stop();
        self.0.changed.notify_waiters();
    }

    async fn close(&self, deadline: Duration) {
        let shared = &self.0;
        shared.closing.cancel();
        let (id, keeper) = {
            let mut inner = shared.inner();
            inner.state.close();
            (inner.attached.as_ref().map(|(open, _)| open.id), inner.keeper.take())
        };
        shared.changed.notify_waiters();
        let Some(id) = id else { return };
        let release = async {
            if let Some(keeper) = keeper {
                // It may be renewing the leases that are released then, or taking others.
                let _ = keeper.await;
            }
            let _ = shared.release(id).await;
        };
        // Otherwise the leases run out.
        let _ = timeout(deadline, release).await;
    }
}
