//! Messages received and not settled: how many there may be, and for how long the oldest is here.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::{config::WorkerSettings, worker::pace::Pace};

/// The limits on messages in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    count_max: usize,
    bytes_max: usize,
    count: Semaphore,
    bytes: Semaphore,
    /// As many bytes again for messages that wait for a person: they must not keep the others out.
    aside: Semaphore,
    /// The share of the largest message of late, by which is judged how many more there is room for.
    large: AtomicUsize,
    /// When the messages came, one entry for all that were received at once; it goes once all of them are settled.
    arrivals: Mutex<VecDeque<Weak<Instant>>>,
    /// `None` where no other worker could take these messages.
    pace: Option<Mutex<Pace>>,
    /// How many of the messages wait for another attempt. They keep no others out.
    waiting: AtomicUsize,
    /// A paced intake may look again.
    freed: Notify,
}

/// The share of the limits that a message takes until it is settled.
#[derive(Debug)]
pub(crate) struct Permit {
    flight: Arc<InFlight>,
    /// Zero once it was given back.
    bytes: u32,
    /// Whether its bytes are counted aside.
    is_aside: bool,
    /// Whether it has waited for another attempt.
    has_waited: bool,
    arrived: Arc<Instant>,
}

impl Permit {
    /// When the message was received.
    pub(crate) fn arrived(&self) -> Instant {
        *self.arrived
    }

    /// Gives back the shares of messages that were settled together.
    pub(crate) fn end(mut permits: Vec<Self>) {
        let mut free = |is_aside| -> usize {
            let shares = permits.iter_mut().filter(|permit| permit.is_aside == is_aside);
            shares.map(|permit| std::mem::take(&mut permit.bytes) as usize).sum()
        };
        let (bytes, aside) = (free(false), free(true));
        if let Some(first) = permits.first() {
            first.flight.settled(&permits);
            first.flight.free(permits.len(), bytes, aside);
        }
    }

    /// The message waits for another attempt, or behind one that does: until it is settled it keeps no other one out.
    pub(crate) fn wait(&mut self) {
        if self.flight.pace.is_some() && !std::mem::replace(&mut self.has_waited, true) {
            self.flight.waiting.fetch_add(1, Ordering::Relaxed);
            self.flight.freed.notify_waiters();
        }
    }

    /// Counts the bytes of a message that waits for a person apart from those of the others, as long as there is room:
    /// that many bytes of them, or one message that is larger, stop no others.
    pub(crate) fn set_aside(&mut self) {
        if self.is_aside {
            return;
        }
        if let Ok(aside) = self.flight.aside.try_acquire_many(self.bytes) {
            aside.forget();
            self.is_aside = true;
            self.flight.free(0, self.bytes as usize, 0);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let bytes = self.bytes as usize;
            let (bytes, aside) = if self.is_aside { (0, bytes) } else { (bytes, 0) };
            self.flight.wait_no_more(usize::from(self.has_waited));
            self.flight.free(1, bytes, aside);
        }
    }
}

impl InFlight {
    /// `payload_bytes_max` is the size that messages are taken to have before the first has come.
    pub(crate) fn new(settings: &WorkerSettings, payload_bytes_max: usize) -> Self {
        Self {
            count_max: settings.in_flight,
            bytes_max: settings.in_flight_bytes,
            count: Semaphore::new(settings.in_flight),
            bytes: Semaphore::new(settings.in_flight_bytes),
            aside: Semaphore::new(settings.in_flight_bytes),
            large: AtomicUsize::new(payload_bytes_max.max(1)),
            arrivals: Mutex::default(),
            pace: None,
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
        }
    }

    /// With no more in hand than is settled within this time.
    pub(crate) fn paced(mut self, within: Option<Duration>, lanes: usize) -> Self {
        self.pace = within.map(|within| Mutex::new(Pace::new(within, lanes, self.count_max)));
        self
    }

    /// Waits until there is room for a message, and answers for how many: by count, and by bytes if they are as large as
    /// the largest of late. A message that turns out larger waits for its share; the source's buffer bounds how much that
    /// can be.
    pub(crate) async fn room(&self) -> usize {
        // The semaphores are never closed.
        drop(self.count.acquire().await);
        drop(self.bytes.acquire().await);
        let paced = self.paced_room().await;
        let large = self.large.load(Ordering::Relaxed);
        // A large one is forgotten after some dozens of small batches.
        self.large.store((large - large / 8).max(1), Ordering::Relaxed);
        self.count.available_permits().min(self.bytes.available_permits() / large).min(paced).max(1)
    }

    /// The same by pace.
    async fn paced_room(&self) -> usize {
        let Some(pace) = &self.pace else { return usize::MAX };
        loop {
            let mut freed = pin!(self.freed.notified());
            // Before looking, so that no change in between is missed.
            freed.as_mut().enable();
            let most = pace.lock().unwrap_or_else(PoisonError::into_inner).now();
            match most.saturating_sub(self.in_hand()) {
                0 => freed.await,
                room => return room,
            }
        }
    }

    /// Messages that keep others out.
    fn in_hand(&self) -> usize {
        self.messages().saturating_sub(self.waiting.load(Ordering::Relaxed))
    }

    fn settled(&self, permits: &[Permit]) {
        let Some(pace) = &self.pace else { return };
        let (now, in_hand) = (Instant::now(), self.in_hand());
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        for permit in permits.iter().filter(|permit| !permit.has_waited) {
            pace.settled(now.duration_since(*permit.arrived), in_hand);
        }
        drop(pace);
        self.wait_no_more(permits.iter().filter(|permit| permit.has_waited).count());
    }

    fn wait_no_more(&self, messages: usize) {
        self.waiting.fetch_sub(messages, Ordering::Relaxed);
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
        Some(self.taken(bytes, arrived))
    }

    /// The same, waited for.
    pub(crate) async fn permit(self: &Arc<Self>, bytes: usize, arrived: &Arc<Instant>) -> Option<Permit> {
        let bytes = self.share(bytes);
        let count = self.count.acquire().await.ok()?;
        self.bytes.acquire_many(bytes).await.ok()?.forget();
        count.forget();
        Some(self.taken(bytes, arrived))
    }

    fn taken(self: &Arc<Self>, bytes: u32, arrived: &Arc<Instant>) -> Permit {
        Permit { flight: Arc::clone(self), bytes, is_aside: false, has_waited: false, arrived: Arc::clone(arrived) }
    }

    fn share(&self, bytes: usize) -> u32 {
        // Intake alone asks, so nothing else writes in between.
        if bytes > self.large.load(Ordering::Relaxed) {
            self.large.store(bytes, Ordering::Relaxed);
        }
        u32::try_from(bytes.clamp(1, self.bytes_max)).unwrap_or(u32::MAX)
    }

    fn free(&self, messages: usize, bytes: usize, aside: usize) {
        self.count.add_permits(messages);
        self.bytes.add_permits(bytes);
        self.aside.add_permits(aside);
        if self.pace.is_some() {
            self.freed.notify_waiters();
        }
    }

    /// Messages received and not settled.
    pub(crate) fn messages(&self) -> usize {
        self.count_max - self.count.available_permits()
    }

    /// The bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.bytes_max - self.bytes.available_permits() - self.aside.available_permits()
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

    /// A36: one message that waits for a person and takes the whole, and those that follow it while there is room.
    #[test]
    fn a36_what_waits_for_a_person_leaves_the_others_their_room() {
        let settings = WorkerSettings { in_flight_bytes: 100, ..WorkerSettings::default() };
        let flight = Arc::new(InFlight::new(&settings, 1 << 20));
        let arrived = flight.arrive(Instant::now());
        let mut held = flight.try_permit(1_000, &arrived).expect("there is room");
        assert!(flight.try_permit(1, &arrived).is_none());
        held.set_aside();
        held.set_aside();
        assert_eq!((flight.messages(), flight.bytes()), (1, 100));
        let mut second = flight.try_permit(60, &arrived).expect("the first one stands aside");
        second.set_aside();
        assert!(flight.try_permit(60, &arrived).is_none(), "there is no more room aside, so memory stays bounded");
        Permit::end(vec![held, second]);
        assert_eq!((flight.messages(), flight.bytes()), (0, 0));
        let mut alone = flight.try_permit(30, &arrived).expect("there is room");
        alone.set_aside();
        drop(alone);
        assert_eq!((flight.messages(), flight.bytes(), flight.aside.available_permits()), (0, 0, 100));
    }

    /// F15: messages that wait for another attempt, however many, keep no message out that could run now.
    #[tokio::test]
    async fn f15_what_waits_for_another_attempt_keeps_nobody_out() {
        let flight = Arc::new(InFlight::new(&WorkerSettings::default(), 1).paced(Some(Duration::from_secs(5)), 1));
        let arrived = flight.arrive(Instant::now());
        assert_eq!(flight.room().await, 10);
        let mut held: Vec<Permit> = (0..10).filter_map(|_| flight.try_permit(1, &arrived)).collect();
        let room = tokio::time::timeout(Duration::ZERO, flight.room()).await;
        assert!(room.is_err(), "nothing was settled yet: {room:?}");
        held.iter_mut().take(4).for_each(Permit::wait);
        held.iter_mut().take(4).for_each(Permit::wait);
        assert_eq!(flight.room().await, 4);
        // Six that are settled in time earn more while half of the limit was in hand, and those that waited show
        // nothing of how fast handlers are.
        Permit::end(held);
        assert_eq!((flight.room().await, flight.messages(), flight.in_hand()), (13, 0, 0));
        let mut dropped = flight.try_permit(1, &arrived).expect("there is room");
        dropped.wait();
        drop(dropped);
        assert_eq!((flight.messages(), flight.waiting.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn j11_the_oldest_that_is_not_settled_is_known_however_much_came_after_it() {
        let flight = Arc::new(InFlight::new(&WorkerSettings::default(), 1 << 20));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(flight.oldest(at(0)), None);
        let stuck = flight.try_permit(10, &flight.arrive(at(1))).expect("there is room");
        for second in 2..10_000 {
            drop(flight.try_permit(10, &flight.arrive(at(second))).expect("there is room"));
        }
        assert_eq!((flight.messages(), flight.bytes()), (1, 10));
        assert_eq!(flight.oldest(at(10_000)), Some(Duration::from_secs(9_999)));
        assert!(flight.arrivals.lock().expect("nobody panicked").capacity() < 64, "settled messages take no room");
        let later = flight.try_permit(10, &flight.arrive(at(10_000))).expect("there is room");
        drop(stuck);
        assert_eq!(flight.oldest(at(10_001)), Some(Duration::from_secs(1)));
        drop(later);
        assert_eq!(flight.oldest(at(10_001)), None);
    }
}
