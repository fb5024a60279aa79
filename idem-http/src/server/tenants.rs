//! Counts the requests of each tenant that are in progress, and those that run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// The tenants with requests in progress; the others cost nothing.
pub(crate) struct Tenants {
    requests_max: usize,
    runs_max: usize,
    /// Those of all tenants.
    lanes: Arc<Semaphore>,
    queue_deadline: Duration,
    all: Mutex<HashMap<Arc<str>, Tenant>>,
}

struct Tenant {
    requests: usize,
    runs: Arc<Semaphore>,
}

impl Tenants {
    pub(crate) fn new(requests_max: usize, runs_max: usize, lanes: usize, queue_deadline: Duration) -> Self {
        let lanes = Arc::new(Semaphore::new(lanes.min(Semaphore::MAX_PERMITS)));
        Self { requests_max, runs_max, lanes, queue_deadline, all: Mutex::default() }
    }

    /// Admits one more request. `None` if the tenant has reached its limit.
    pub(crate) fn admit(self: &Arc<Self>, tenant: &str) -> Option<InHand> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = tenant.into();
        let of = all
            .entry(Arc::clone(&name))
            .or_insert_with(|| Tenant { requests: 0, runs: Arc::new(Semaphore::new(self.runs_max)) });
        if of.requests >= self.requests_max {
            return None;
        }
        of.requests += 1;
        Some(InHand { tenants: Arc::clone(self), name, runs: Arc::clone(&of.runs) })
    }
}

/// A connection that may be used, until this is dropped.
pub(crate) struct Lane {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// A request in progress.
pub(crate) struct InHand {
    tenants: Arc<Tenants>,
    name: Arc<str>,
    runs: Arc<Semaphore>,
}

impl InHand {
    /// Its tenant.
    pub(crate) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.name)
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
