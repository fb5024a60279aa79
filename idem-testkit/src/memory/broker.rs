//! The broker and its queues, as producers and tests see them.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use idem_core::{Message, SourceError, message::Origin};
use tokio::{sync::Notify, time::Instant};

use super::{
    local::MemorySource,
    options::{Faults, Order, QueueOptions},
    publisher::MemoryPublisher,
    state::QueueState,
    stats::{History, Stats},
};

/// A broker in this process, with any number of queues. Clones are the same broker, and its messages are gone with the
/// last of them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use idem_core::{Message, Source, source::Received};
/// use idem_testkit::memory::{Broker, QueueOptions};
///
/// let orders = Broker::new().create("orders", QueueOptions::default())?;
/// orders.publish(Message::new("1 book").with_header("idempotencykey", "order-1"))?;
///
/// let source = orders.source();
/// source.attach().await?;
/// let Received::Deliveries(deliveries) = source.receive(10).await? else { unreachable!() };
/// assert_eq!(deliveries[0].message.origin().as_str(), "orders/1");
///
/// drop(source); // a consumer that goes away gives back what it has not settled
/// assert_eq!(orders.stats().ready, 1);
/// # Ok::<(), idem_core::SourceError>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Broker {
    queues: Arc<Mutex<BTreeMap<String, Arc<Slot>>>>,
    assignments: Arc<AtomicU64>,
}

/// How an assignment is taken away; see [`Queue::revoke`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Revoke {
    /// The consumer may finish and settle what it holds first.
    Drained,
    /// It is lost already, and its messages are being delivered again.
    Lost,
}

/// One queue of a [`Broker`]. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    pub(super) broker: Broker,
    pub(super) name: Arc<str>,
    pub(super) slot: Arc<Slot>,
}

pub(super) struct Slot {
    inner: Mutex<Inner>,
    pub(super) changed: Notify,
}

pub(super) struct Inner {
    pub(super) state: QueueState,
    pub(super) seats: BTreeMap<u64, Seat>,
}

/// A consumer that is attached.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) assignment: u64,
    pub(super) stopped: bool,
    /// Since when it has been asked to finish what it holds; nothing is delivered to it meanwhile.
    pub(super) revoking: Option<Instant>,
    /// Assignments whose revocation the consumer has not received yet.
    pub(super) unheard: VecDeque<(u64, Revoke)>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Broker").field("queues", &queues.keys()).finish()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}

impl Broker {
    /// A broker without queues.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a queue. Creating it again with equal options answers the queue there is.
    ///
    /// # Errors
    /// [`SourceError::Refused`] where there is one of this name with other options, where the name is empty or has a
    /// `/` (it is the first part of an origin), where its dead-letter queue does not exist, or where it keeps
    /// [positions](QueueOptions::positions) and something that does not go with them.
    pub fn create(&self, name: &str, options: QueueOptions) -> Result<Queue, SourceError> {
        let refused = |problem: String, cure: &str| Err(SourceError::Refused { problem, cure: cure.to_owned() });
        if name.is_empty() || name.contains('/') {
            return refused(format!("queue name {name:?} is refused"), "Give it a name without a slash");
        }
        if let Some(queue) = self.queue(name) {
            let equal = queue.lock().state.options == options;
            let problem = || format!("queue {name:?} exists with other options");
            return if equal { Ok(queue) } else { refused(problem(), "Use another name, or the same options") };
        }
        if let Some(other) = &options.dead_letter_queue
            && self.queue(other).is_none()
        {
            return refused(format!("the dead-letter queue {other:?} of {name:?} does not exist"), "Create it first");
        }
        if options.positions
            && (options.order != Order::ByKey || options.lease.is_some() || options.delivery_limit.is_some())
        {
            let problem = format!("queue {name:?} keeps positions, with another order, a lease or a delivery limit");
            return refused(problem, "Use Order::ByKey, and neither a lease nor a delivery limit");
        }
        let inner = Inner { state: QueueState::new(name, options), seats: BTreeMap::new() };
        let slot = Arc::new(Slot { inner: Mutex::new(inner), changed: Notify::new() });
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = Arc::clone(queues.entry(name.to_owned()).or_insert(slot));
        Ok(Queue { broker: self.clone(), name: name.into(), slot })
    }

    /// The queue of this name.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<Queue> {
        let slot = Arc::clone(self.queues.lock().unwrap_or_else(PoisonError::into_inner).get(name)?);
        Some(Queue { broker: self.clone(), name: name.into(), slot })
    }

    /// A source on the queue of this name, which need not exist before [`attach`](idem_core::Source::attach).
    #[must_use]
    pub fn source(&self, queue: &str) -> MemorySource {
        MemorySource::new(self.clone(), queue)
    }

    /// An assignment that was never used before.
    pub(super) fn next_assignment(&self) -> u64 {
        self.assignments.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Queue {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts a message at the end of the queue, and answers its origin, `queue/sequence`. A producer that sends again,
    /// or sends another payload under the same key, publishes again: that message has an origin of its own.
    ///
    /// # Errors
    /// [`SourceError::Refused`] where the queue is full, [`SourceError::Unavailable`] where a fault says so; the
    /// message may then be stored, as with any broker.
    pub fn publish(&self, message: Message) -> Result<Origin, SourceError> {
        self.change(|inner| {
            let unavailable = |why: &str| SourceError::Unavailable { doing: "publishing", source: why.into() };
            let faults = inner.state.faults;
            if faults.publishes_refused.strikes(&mut inner.state.rng) {
                return Err(unavailable("the broker refused the message (a fault)"));
            }
            let origin = inner.state.publish(message)?;
            if faults.confirms_lost.strikes(&mut inner.state.rng) {
                return Err(unavailable("the confirmation was lost (a fault)"));
            }
            Ok(origin)
        })
    }

    /// A source on this queue.
    #[must_use]
    pub fn source(&self) -> MemorySource {
        self.broker.source(&self.name)
    }

    /// A publisher of dead letters to this queue.
    #[must_use]
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher::new(self.clone())
    }

    /// Misbehaves like this from now on.
    pub fn misbehave(&self, faults: Faults) {
        self.change(|inner| inner.state.faults = faults);
    }

    /// The queue's counts so far, and of its messages now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.change_quietly(|inner| inner.stats())
    }

    /// The counts of the message of this origin; nothing where it is unknown or no longer
    /// [remembered](QueueOptions::history_max).
    #[must_use]
    pub fn history(&self, origin: &Origin) -> History {
        let sequence = origin.as_str().strip_prefix(&*self.name).and_then(|rest| rest.strip_prefix('/')?.parse().ok());
        sequence.and_then(|sequence| self.lock().state.history_of(sequence)).unwrap_or_default()
    }

    /// The counts of each message that is remembered, in the order of publishing.
    #[must_use]
    pub fn histories(&self) -> Vec<(Origin, History)> {
        self.lock().state.history().collect()
    }

    /// The messages that are not settled for good, in the order of publishing.
    #[must_use]
    pub fn unsettled(&self) -> Vec<Message> {
        self.lock().state.unsettled().cloned().collect()
    }

    /// Whether every message is settled for good.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.stats().is_drained()
    }

    /// Waits until every message is settled for good.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn drained(&self) {
        self.until(Stats::is_drained).await;
    }

    /// Waits until the queue's numbers are as `wanted`, and answers them. It wakes at every change and does not poll.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn until(&self, mut wanted: impl FnMut(&Stats) -> bool) -> Stats {
        loop {
            let changed = self.slot.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (stats, timer) = self.change_quietly(|inner| (inner.stats(), inner.next_timer()));
            if wanted(&stats) {
                return stats;
            }
            wait(changed, timer).await;
        }
    }

    /// Ends the assignment of every consumer, which gets a new one. A consumer that has
    /// [stopped](idem_core::Source::stop) is only touched by [`Revoke::Lost`].
    pub fn revoke(&self, how: Revoke) {
        let now = Instant::now();
        self.change(|inner| {
            for seat in inner.seats.values_mut() {
                match how {
                    Revoke::Drained if seat.stopped || seat.revoking.is_some() => {}
                    Revoke::Drained => {
                        seat.revoking = Some(now);
                        seat.unheard.push_back((seat.assignment, how));
                    }
                    Revoke::Lost => {
                        // A source that was asked to finish need not any more.
                        seat.unheard.retain(|(assignment, _)| *assignment != seat.assignment);
                        seat.unheard.push_back((seat.assignment, how));
                        seat.renew(&mut inner.state, &self.broker);
                    }
                }
            }
        });
    }

    /// Drops the connection of every consumer: their messages return, and each has to connect again.
    pub fn disconnect(&self) {
        self.change(|inner| {
            for seat in std::mem::take(&mut inner.seats).into_values() {
                inner.state.end_assignment(seat.assignment);
            }
        });
    }

    /// Lets every lease pass now: messages in flight are delivered again, while their consumers still work on them.
    /// Nothing happens where [positions](QueueOptions::positions) are kept.
    pub fn expire_leases(&self) {
        self.change(|inner| inner.state.expire_leases());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.slot.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue, and then wakes the tasks that wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let answer = self.change_quietly(change);
        self.slot.changed.notify_waiters();
        answer
    }

    /// The same, for callers that only look and let timers pass on the way.
    pub(super) fn change_quietly<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let (answer, expelled, to) = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            inner.pass(Instant::now(), &self.broker);
            let answer = change(inner);
            (answer, inner.state.take_expelled(), inner.state.options.dead_letter_queue.clone())
        };
        if !expelled.is_empty() {
            self.set_aside(expelled, to.as_deref());
        }
        answer
    }

    /// Moves messages that reached their delivery limit. The lock of this queue is not held, because the other one may
    /// be moving its own to here.
    fn set_aside(&self, expelled: Vec<Message>, to: Option<&str>) {
        let to = to.and_then(|to| self.broker.queue(to));
        for message in expelled {
            let moved = to.as_ref().map(|queue| queue.lock().state.publish(message));
            if !matches!(moved, Some(Ok(_))) {
                tracing::warn!(queue = %self.name, "a message at its delivery limit was dropped");
            }
        }
        if let Some(to) = to {
            to.slot.changed.notify_waiters();
        }
    }
}

impl Inner {
    pub(super) fn stats(&self) -> Stats {
        Stats { consumers: self.seats.len() as u64, ..self.state.stats() }
    }

    /// When something happens by itself.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let within = self.state.options.revoke_within;
        let finishing = self.seats.values().filter_map(|seat| Some(seat.revoking? + within));
        finishing.chain(self.state.next_timer()).min()
    }

    /// Lets delays, leases and the time for finishing pass.
    fn pass(&mut self, now: Instant, broker: &Broker) {
        self.state.pass(now);
        let within = self.state.options.revoke_within;
        for seat in self.seats.values_mut() {
            if seat.revoking.is_some_and(|since| now >= since + within) {
                seat.renew(&mut self.state, broker);
            }
        }
    }
}

impl Seat {
    /// Ends the assignment and begins the next.
    pub(super) fn renew(&mut self, state: &mut QueueState, broker: &Broker) {
        state.end_assignment(self.assignment);
        state.note_revoked();
        self.assignment = broker.next_assignment();
        self.revoking = None;
    }
}

/// Waits for a change, or until a timer is due.
pub(super) async fn wait(changed: impl Future<Output = ()>, timer: Option<Instant>) {
    match timer {
        None => changed.await,
        Some(timer) => tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(timer) => {}
        },
    }
}
