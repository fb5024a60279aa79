//! A publisher and an outbox that are looked at while they work.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, StoreError,
    outbox::{
        Declared, Destination, DestinationId, Dispatch, EventEnd, EventError, EventName, EventPublisher, EventState,
        LeaseRequest, Leased, Outbox, OutboxBacklog, OutgoingEvent, StoredEvent,
    },
};
use tokio::time::Instant;

/// A publisher that reports each confirmed event.
pub(super) struct Watched<P, F> {
    pub(super) publisher: P,
    pub(super) confirmed: F,
}

#[async_trait]
impl<P: EventPublisher, F: Fn(&OutgoingEvent) + Send + Sync + 'static> EventPublisher for Watched<P, F> {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let answers = self.publisher.publish_events(events).await;
        for (event, answer) in events.iter().zip(&answers) {
            if answer.is_ok() {
                (self.confirmed)(event);
            }
        }
        answers
    }

    fn dispatch(&self) -> Dispatch {
        self.publisher.dispatch()
    }

    fn keeps_order(&self) -> bool {
        self.publisher.keeps_order()
    }

    async fn purge(&self) {
        self.publisher.purge().await;
    }
}

/// How often something was done, and how long it took in all.
#[derive(Debug, Default)]
pub(super) struct Took {
    calls: AtomicU64,
    events: AtomicU64,
    microseconds: AtomicU64,
}

impl Took {
    fn add(&self, begun: Instant, events: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events as u64, Ordering::Relaxed);
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(took, Ordering::Relaxed);
    }

    /// Milliseconds a call since the last time that this was asked.
    pub(super) fn millis_each(&self) -> f64 {
        let (calls, time) = (self.calls.swap(0, Ordering::Relaxed), self.microseconds.swap(0, Ordering::Relaxed));
        self.events.store(0, Ordering::Relaxed);
        time as f64 / 1e3 / calls as f64
    }

    /// The same as a text, with the events a call.
    pub(super) fn told(&self) -> String {
        let (calls, events) = (self.calls.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed));
        format!("{calls} calls of {:.0} events, {:.2} ms each", events as f64 / calls as f64, self.millis_each())
    }
}

/// An outbox whose reads and ends are timed.
pub(super) struct Timed {
    pub(super) outbox: Arc<dyn Outbox>,
    pub(super) next: Took,
    pub(super) settle: Took,
}

impl Timed {
    pub(super) fn new(outbox: Arc<dyn Outbox>) -> Arc<Self> {
        Arc::new(Self { outbox, next: Took::default(), settle: Took::default() })
    }
}

#[async_trait]
impl Outbox for Timed {
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<Declared>, StoreError> {
        self.outbox.declare(destinations).await
    }

    async fn lease(&self, destination: DestinationId, request: LeaseRequest<'_>) -> Result<Leased, StoreError> {
        self.outbox.lease(destination, request).await
    }

    async fn release(&self, destination: DestinationId, relay: &str) -> Result<(), StoreError> {
        self.outbox.release(destination, relay).await
    }

    async fn next(&self, id: DestinationId, events: u32, bytes: u64) -> Result<Vec<OutgoingEvent>, StoreError> {
        let begun = Instant::now();
        let events = self.outbox.next(id, events, bytes).await;
        self.next.add(begun, events.as_ref().map_or(0, Vec::len));
        events
    }

    async fn settle(&self, destination: DestinationId, ends: &[(&OutgoingEvent, EventEnd)]) -> Result<(), StoreError> {
        let begun = Instant::now();
        let settled = self.outbox.settle(destination, ends).await;
        self.settle.add(begun, ends.len());
        settled
    }

    async fn backlog(&self, consumer: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError> {
        self.outbox.backlog(consumer).await
    }

    async fn events(
        &self,
        destination: Option<&str>,
        state: Option<EventState>,
        max: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.outbox.events(destination, state, max).await
    }

    async fn retry(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.outbox.retry(events).await
    }

    async fn retry_stale(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.outbox.retry_stale(events).await
    }

    async fn skip(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.outbox.skip(events).await
    }

    async fn pause(&self, destination: &str, is_paused: bool) -> Result<bool, StoreError> {
        self.outbox.pause(destination, is_paused).await
    }
}

/// When events were committed, by their numbers, and how long each took from then to its confirmation.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    committed: Mutex<Vec<Instant>>,
    /// The first number that counts.
    from: AtomicUsize,
    took: Mutex<Vec<Duration>>,
}

impl Stopwatch {
    /// These are about to be committed: a commit that takes long counts.
    pub(super) fn begins(&self, first: usize, events: usize) {
        let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(committed.len(), first, "events are put in in their order");
        committed.extend(std::iter::repeat_n(Instant::now(), events));
    }

    /// Begins anew: what was committed before does not count, whenever it is confirmed.
    pub(super) fn restart(&self) {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.from.store(committed, Ordering::Relaxed);
        self.taken();
    }

    pub(super) fn confirmed(&self, number: usize) {
        if number < self.from.load(Ordering::Relaxed) {
            return;
        }
        let begun = self.committed.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied();
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        took.extend(begun.map(|begun| begun.elapsed()));
    }

    /// How long those took that were confirmed since the last time that this was asked.
    pub(super) fn taken(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.took.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
