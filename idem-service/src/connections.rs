//! The connections of a port. One more than there is room for takes the place of the one that has waited longest for its client.

use std::{
    cmp::Reverse,
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};

/// The rate at which a client is expected to send a request and to take its response, in bytes a second. A slower client falls behind.
const RATE: u64 = 16 << 10;

/// How often a connection to close is looked for while all of them work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How many candidates one look through all connections finds.
const CANDIDATES: usize = 64;

/// `EMFILE` and `ENFILE`, on Linux, the BSDs and macOS alike.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];

/// How long nothing is accepted after the system had no connection to give.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a connection has waited for its client: for a request's head or body, or for the client to take a response.
pub(crate) struct Waits {
    begun: Instant,
    /// In microseconds after `begun`. Each byte that comes or goes moves it on.
    since: AtomicU64,
    /// The connection waits for its handler, and not for its client.
    works: AtomicBool,
}

impl Waits {
    pub(crate) fn new(begun: Instant) -> Arc<Self> {
        let waits = Self { begun, since: AtomicU64::new(0), works: AtomicBool::new(false) };
        waits.begin();
        Arc::new(waits)
    }

    /// It waits for its client from now on.
    pub(crate) fn begin(&self) {
        self.since.store(self.now(), Ordering::Relaxed);
        self.works.store(false, Ordering::Relaxed);
    }

    /// Whether it waits for its handler.
    #[cfg(feature = "http")]
    pub(crate) fn works(&self, works: bool) {
        self.works.store(works, Ordering::Relaxed);
    }

    /// Its client has sent or taken these bytes.
    #[cfg(feature = "http")]
    pub(crate) fn moved(&self, bytes: usize) {
        let worth = (bytes as u64).saturating_mul(1_000_000) / RATE;
        let since = self.since.load(Ordering::Relaxed).saturating_add(worth);
        self.since.store(since.min(self.now()), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Since when it waits; `None` while it works.
    fn since(&self) -> Option<u64> {
        (!self.works.load(Ordering::Relaxed)).then(|| self.since.load(Ordering::Relaxed))
    }
}

/// The open connections of one port.
pub(crate) struct Connections {
    max: usize,
    begun: Instant,
    tasks: JoinSet<()>,
    open: HashMap<Id, (Arc<Waits>, AbortHandle)>,
    /// Those that had waited longest at the last look, the longest last. One that has moved on since then is passed over.
    candidates: Vec<(u64, Id)>,
    closed: metrics::Counter,
}

impl Connections {
    /// `closed` counts those that are closed to make room.
    pub(crate) fn new(max: usize, closed: metrics::Counter) -> Self {
        let (tasks, open, candidates) = (JoinSet::new(), HashMap::new(), Vec::new());
        Self { max: max.max(1), begun: Instant::now(), tasks, open, candidates, closed }
    }

    /// Serves one more connection. The caller has waited for [`room`](Self::room).
    pub(crate) fn serve<F: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(Arc<Waits>) -> F) {
        let waits = Waits::new(self.begun);
        let task = self.tasks.spawn(serve(Arc::clone(&waits)));
        self.open.insert(task.id(), (waits, task));
    }

    /// Waits until there is room for one more, which closing the one that has waited longest for its client makes.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn room(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.forget(&ended);
        }
        while self.open.len() >= self.max {
            let ended = match self.close_one() {
                true => self.tasks.join_next_with_id().await,
                // All of them work.
                false => timeout(LOOK_EVERY, self.tasks.join_next_with_id()).await.unwrap_or_default(),
            };
            if let Some(ended) = ended {
                self.forget(&ended);
            }
        }
    }

    /// After the system has refused to give a connection: for want of descriptors one is closed.
    pub(crate) async fn refused(&mut self, error: &io::Error) {
        if error.raw_os_error().is_some_and(|code| NO_DESCRIPTORS.contains(&code)) {
            self.close_one();
        }
        sleep(PAUSE).await;
    }

    /// Waits until all have ended.
    #[cfg(feature = "http")]
    pub(crate) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn forget(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.open.remove(&id);
    }

    /// Closes the connection that has waited longest for its client. Returns whether any waits.
    fn close_one(&mut self) -> bool {
        let is_fresh = self.candidates.is_empty();
        if is_fresh {
            self.look();
        }
        while let Some((since, id)) = self.candidates.pop() {
            let Some((waits, task)) = self.open.get(&id) else { continue };
            if waits.since() == Some(since) && !task.is_finished() {
                task.abort();
                self.closed.increment(1);
                return true;
            }
        }
        !is_fresh && self.close_one()
    }

    /// Finds the connections that have waited longest. One look does for many closings.
    fn look(&mut self) {
        let waiting = self.open.iter().filter_map(|(id, (waits, _))| Some((waits.since()?, *id)));
        let mut found: Vec<_> = waiting.collect();
        if found.len() > CANDIDATES {
            found.select_nth_unstable_by_key(CANDIDATES, |(since, _)| *since);
            found.truncate(CANDIDATES);
        }
        found.sort_unstable_by_key(|(since, _)| Reverse(*since));
        self.candidates = found;
    }
}

#[cfg(test)]
mod tests;
