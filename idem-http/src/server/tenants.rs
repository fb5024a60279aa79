//! Counts the requests of each tenant that are in progress, those that run, and the bytes that they hold.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// The shares of one tenant.
pub(crate) struct Shares {
    pub(crate) requests: usize,
    pub(crate) runs: usize,
    pub(crate) bytes: usize,
}

/// The tenants with requests in progress; the others cost nothing.
pub(crate) struct Tenants {
    shares: Shares,
    /// Those of all tenants.
    lanes: Arc<Semaphore>,
    /// A permit for each byte that the requests of all tenants may hold.
    room: Arc<Semaphore>,
    queue_deadline: Duration,
    all: Mutex<HashMap<Arc<str>, Tenant>>,
}

struct Tenant {
    requests: usize,
    runs: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

fn permits(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

impl Tenants {
    pub(crate) fn new(shares: Shares, lanes: usize, bytes_max: usize, queue_deadline: Duration) -> Self {
        Self { shares, lanes: permits(lanes), room: permits(bytes_max), queue_deadline, all: Mutex::default() }
    }

    /// Admits one more request. `None` if the tenant has reached its limit.
    pub(crate) fn admit(self: &Arc<Self>, tenant: &str) -> Option<InHand> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = tenant.into();
        let Shares { requests, runs, bytes } = self.shares;
        let none = || Tenant { requests: 0, runs: permits(runs), room: permits(bytes) };
        let of = all.entry(Arc::clone(&name)).or_insert_with(none);
        if of.requests >= requests {
            return None;
        }
        of.requests += 1;
        let (runs, room) = (Arc::clone(&of.runs), Arc::clone(&of.room));
        Some(InHand { tenants: Arc::clone(self), name, runs, room })
    }
}

/// A connection that may be used, until this is dropped.
pub(crate) struct Lane {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Room for bytes, until this is dropped.
pub(crate) struct Held {
    of_tenant: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
}

impl Held {
    pub(crate) fn merge(&mut self, other: Self) {
        self.of_tenant.merge(other.of_tenant);
        self.of_all.merge(other.of_all);
    }
}

/// A request in progress.
pub(crate) struct InHand {
    tenants: Arc<Tenants>,
    name: Arc<str>,
    runs: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl InHand {
    /// Its tenant.
    pub(crate) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Room for this many bytes more. `None` if the tenant has no more of it, or nobody has.
    pub(crate) fn holds(&self, bytes: usize) -> Option<Held> {
        let bytes = u32::try_from(bytes).ok()?;
        let of = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_many_owned(bytes).ok();
        Some(Held { of_tenant: of(&self.room)?, of_all: of(&self.tenants.room)? })
    }

    /// Waits until one more of the tenant's requests may use a connection, and until there is one. `None` if that took too long.
    pub(crate) async fn run(&self) -> Option<Lane> {
        timeout(self.tenants.queue_deadline, self.run_at_last()).await.ok().flatten()
    }

    /// The same however long it takes.
    pub(crate) async fn run_at_last(&self) -> Option<Lane> {
        // The semaphores are never closed. The tenant's comes first, so that no lane waits for it.
        let of_tenant = Arc::clone(&self.runs).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.tenants.lanes).acquire_owned().await.ok()?;
        Some(Lane { _of_tenant: of_tenant, _of_all: of_all })
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        let mut all = self.tenants.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = all.get_mut(&self.name) {
            of.requests = of.requests.saturating_sub(1);
            if of.requests == 0 {
                all.remove(&self.name);
            }
        }
    }
}
