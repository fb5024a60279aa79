//! The few connections for what is done outside of units of work.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::config::Config;

use crate::link::Link;

/// Connections that are opened when they are needed, and kept.
pub(crate) struct Pool {
    pub(crate) config: Config,
    idle: Mutex<Vec<Link>>,
    permits: Semaphore,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(config: Config, connections: usize) -> Self {
        Self { config, idle: Mutex::default(), permits: Semaphore::new(connections) }
    }

    /// Waits for a turn; the connection is there already if one is idle and still open.
    pub(crate) async fn turn(&self) -> (Option<SemaphorePermit<'_>>, Option<Link>) {
        // The semaphore is never closed.
        let permit = self.permits.acquire().await.ok();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|link| !link.client.is_closed());
        (permit, idle.pop())
    }

    /// Takes back a connection whose work is done. A connection of a dropped call does not come here, and is closed (A15).
    pub(crate) fn keep(&self, link: Link) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(link);
    }

    pub(crate) fn take_idle(&self) -> Vec<Link> {
        std::mem::take(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
