//! The connections of a port. One more than there is room for takes the place of the one that has waited longest for its client.

use std::{
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

/// How often a connection to close is looked for while all of them work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// `EMFILE` and `ENFILE`, on Linux, the BSDs and macOS alike.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];

/// How long nothing is accepted after the system had no connection to give.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a connection has waited for its client: for a request's head or body, or for the client to take a response.
pub(crate) struct Waits {
    begun: Instant,
    /// In microseconds after `begun`.
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
    closed: metrics::Counter,
}

impl Connections {
    /// `closed` counts those that are closed to make room.
    pub(crate) fn new(max: usize, closed: metrics::Counter) -> Self {
        Self { max: max.max(1), begun: Instant::now(), tasks: JoinSet::new(), open: HashMap::new(), closed }
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
    fn close_one(&self) -> bool {
        let waiting = self.open.values().filter(|(_, task)| !task.is_finished());
        let waiting = waiting.filter_map(|(waits, task)| Some((waits.since()?, task)));
        let longest = waiting.min_by_key(|(since, _)| *since);
        longest.inspect(|(_, task)| {
            task.abort();
            self.closed.increment(1);
        });
        longest.is_some()
    }
}

#[cfg(test)]
mod tests;
