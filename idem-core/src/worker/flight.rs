//! What is received and not settled: how much of it there may be, and for how long the oldest is here.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use crate::config::WorkerSettings;

/// The limits on what is in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    count_max: usize,
    bytes_max: usize,
    count: Semaphore,
    bytes: Semaphore,
    /// The share of the largest message of late, by which is judged how many more there is room for.
    large: AtomicUsize,
    /// When what is here came, one entry for everything that was received at once; of what is settled nothing is left.
    arrivals: Mutex<VecDeque<Weak<Instant>>>,
}

/// The share of the limits that a message takes until it is settled.
#[derive(Debug)]
pub(crate) struct Permit {
    flight: Arc<Flight>,
    /// Zero once it was given back.
    bytes: u32,
    arrived: Arc<Instant>,
}

impl Permit {
    /// When the message was received.
    pub(crate) fn arrived(&self) -> Instant {
        *self.arrived
    }

    /// Gives back the shares of messages that were settled together.
    pub(crate) fn end(mut permits: Vec<Self>) {
        let bytes = permits.iter_mut().map(|permit| std::mem::take(&mut permit.bytes) as usize).sum();
        if let Some(first) = permits.first() {
            first.flight.free(permits.len(), bytes);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.flight.free(1, self.bytes as usize);
        }
    }
}

impl Flight {
    /// `payload_bytes_max` is what messages are taken for before the first has come.
    pub(crate) fn new(settings: &WorkerSettings, payload_bytes_max: usize) -> Self {
        Self {
            count_max: settings.in_flight,
            bytes_max: settings.in_flight_bytes,
            count: Semaphore::new(settings.in_flight),
            bytes: Semaphore::new(settings.in_flight_bytes),
            large: AtomicUsize::new(payload_bytes_max.max(1)),
            arrivals: Mutex::default(),
        }
    }

    /// Waits until there is room for a message, and answers for how many: by count, and by bytes if they are as large as
    /// the largest of late. What turns out larger waits for its share; how much that can be is bounded by what the source
    /// has buffered.
    pub(crate) async fn room(&self) -> usize {
        // The semaphores are never closed.
        drop(self.count.acquire().await);
        drop(self.bytes.acquire().await);
        let large = self.large.load(Ordering::Relaxed);
        // A large one is forgotten after some dozens of small batches.
        self.large.store((large - large / 8).max(1), Ordering::Relaxed);
        self.count.available_permits().min(self.bytes.available_permits() / large).max(1)
    }

    /// Notes that messages were received now, which live for as long as their permits.
    pub(crate) fn arrive(&self, now: Instant) -> Arc<Instant> {
        let arrived = Arc::new(now);
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.len() == arrivals.capacity() {
            arrivals.retain(|arrived| arrived.strong_count() > 0);
            // As much room again, so that this costs each arrival a constant time.
            let alive = arrivals.len();
            arrivals.reserve(alive + 1);
        }
        arrivals.push_back(Arc::downgrade(&arrived));
        arrived
    }

    /// The share of a message of this size, if there is room for it now. One that is larger than the whole takes the whole.
    pub(crate) fn try_permit(self: &Arc<Self>, bytes: usize, arrived: &Arc<Instant>) -> Option<Permit> {
        let bytes = self.share(bytes);
        let count = self.count.try_acquire().ok()?;
        self.bytes.try_acquire_many(bytes).ok()?.forget();
        count.forget();
        Some(Permit { flight: Arc::clone(self), bytes, arrived: Arc::clone(arrived) })
    }

    /// The same, waited for.
    pub(crate) async fn permit(self: &Arc<Self>, bytes: usize, arrived: &Arc<Instant>) -> Option<Permit> {
        let bytes = self.share(bytes);
        let count = self.count.acquire().await.ok()?;
        self.bytes.acquire_many(bytes).await.ok()?.forget();
        count.forget();
        Some(Permit { flight: Arc::clone(self), bytes, arrived: Arc::clone(arrived) })
    }

    fn share(&self, bytes: usize) -> u32 {
        // Intake alone asks, so nobody writes in between.
        if bytes > self.large.load(Ordering::Relaxed) {
            self.large.store(bytes, Ordering::Relaxed);
        }
        u32::try_from(bytes.clamp(1, self.bytes_max)).unwrap_or(u32::MAX)
    }

    fn free(&self, messages: usize, bytes: usize) {
        self.count.add_permits(messages);
        self.bytes.add_permits(bytes);
    }

    /// Messages received and not settled.
    pub(crate) fn messages(&self) -> usize {
        self.count_max - self.count.available_permits()
    }

    /// What they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes_max - self.bytes.available_permits()
    }

    /// For how long the oldest of them is here.
    pub(crate) fn oldest(&self, now: Instant) -> Option<Duration> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        while arrivals.front().is_some_and(|arrived| arrived.strong_count() == 0) {
            arrivals.pop_front();
        }
        arrivals.front().and_then(Weak::upgrade).map(|arrived| now.duration_since(*arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j11_the_oldest_that_is_not_settled_is_known_however_much_came_after_it() {
        let flight = Arc::new(Flight::new(&WorkerSettings::default(), 1 << 20));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(flight.oldest(at(0)), None);
        let stuck = flight.try_permit(10, &flight.arrive(at(1))).expect("there is room");
        for second in 2..10_000 {
            drop(flight.try_permit(10, &flight.arrive(at(second))).expect("there is room"));
        }
        assert_eq!((flight.messages(), flight.bytes()), (1, 10));
        assert_eq!(flight.oldest(at(10_000)), Some(Duration::from_secs(9_999)));
        assert!(flight.arrivals.lock().expect("nobody panicked").capacity() < 64, "what is settled takes no room");
        let later = flight.try_permit(10, &flight.arrive(at(10_000))).expect("there is room");
        drop(stuck);
        assert_eq!(flight.oldest(at(10_001)), Some(Duration::from_secs(1)));
        drop(later);
        assert_eq!(flight.oldest(at(10_001)), None);
    }
}
