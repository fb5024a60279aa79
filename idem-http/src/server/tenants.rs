//! Counts the requests of each tenant that are in progress, and those that run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The tenants with requests in progress; the others cost nothing.
pub(crate) struct Tenants {
    requests_max: usize,
    runs_max: usize,
    all: Mutex<HashMap<Arc<str>, Tenant>>,
}

struct Tenant {
    requests: usize,
    runs: Arc<Semaphore>,
}

impl Tenants {
    pub(crate) fn new(requests_max: usize, runs_max: usize) -> Self {
        Self { requests_max, runs_max, all: Mutex::default() }
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

    /// Waits until one more of the tenant's requests may use a connection.
    pub(crate) async fn run(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.runs).acquire_owned().await.ok()
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
