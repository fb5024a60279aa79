//! Places for requests that are not proved yet. One request more than there are places takes the place of the one that is furthest behind.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// The rate at which a body is expected to come, in bytes a second.
const RATE: u32 = 16 << 10;

/// The places for one step.
pub(super) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    last: u64,
    all: HashMap<u64, Request>,
}

struct Request {
    /// When it came, moved on by the time that its bytes may take.
    due: Instant,
    lost: Arc<Notify>,
}

/// The place of one request, until this is dropped or another request takes it.
pub(super) struct Place<'p> {
    of: &'p Places,
    number: u64,
    lost: Arc<Notify>,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: Mutex::default() }
    }

    /// A place for one more request.
    pub(super) fn take(&self) -> Place<'_> {
        let (lost, mut taken) = (Arc::<Notify>::default(), self.taken());
        if taken.all.len() >= self.max {
            let behind = taken.all.iter().min_by_key(|(number, request)| (request.due, **number));
            if let Some(request) = behind.map(|(number, _)| *number).and_then(|number| taken.all.remove(&number)) {
                request.lost.notify_one();
            }
        }
        taken.last += 1;
        let number = taken.last;
        taken.all.insert(number, Request { due: Instant::now(), lost: Arc::clone(&lost) });
        Place { of: self, number, lost }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// Bytes of the request have come, for which it has more time.
    pub(super) fn came(&self, bytes: usize) {
        if let Some(request) = self.of.taken().all.get_mut(&self.number) {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            request.due = Instant::now().min(request.due + Duration::from_secs(1) * bytes / RATE);
        }
    }

    /// The result of `step`; `None` if it takes longer than `until`, or another request takes the place.
    pub(super) async fn within<T>(&self, until: Instant, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            ended = timeout_at(until, step) => ended.ok(),
            () = self.lost.notified() => None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.of.taken().all.remove(&self.number);
    }
}
