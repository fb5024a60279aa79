//! Counts the requests of each tenant that are in progress, those that run, the bytes that they hold, and how fast they come.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::problem::Problem;

/// The shares of one tenant.
pub(crate) struct Shares {
    pub(crate) requests: usize,
    /// How many may come in a second, if that is limited.
    pub(crate) rate: Option<u32>,
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
    pace: Mutex<Pace>,
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
        Self {
            shares,
            lanes: permits(lanes),
            room: permits(bytes_max),
            queue_deadline,
            all: Mutex::default(),
            pace: Mutex::default(),
        }
    }

    /// Admits one more request.
    ///
    /// # Errors
    /// [`Problem`] if the tenant has reached a limit of its own. A request too soon is not counted as one more.
    pub(crate) fn admit(self: &Arc<Self>, tenant: &str) -> Result<InHand, Problem> {
        if let Some(rate) = self.shares.rate {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            if !pace.takes(tenant, rate, Instant::now()) {
                return Err(Problem::TooSoon { rate });
            }
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let name: Arc<str> = tenant.into();
        let Shares { requests, rate: _, runs, bytes } = self.shares;
        let none = || Tenant { requests: 0, runs: permits(runs), room: permits(bytes) };
        let of = all.entry(Arc::clone(&name)).or_insert_with(none);
        if of.requests >= requests {
            return Err(Problem::TooManyRequests);
        }
        of.requests += 1;
        let (runs, room) = (Arc::clone(&of.runs), Arc::clone(&of.room));
        Ok(InHand { tenants: Arc::clone(self), name, runs, room })
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// When each tenant will have used up its requests of before, each of which takes its part of a second. One that is ahead by no more than
/// a second may go on, so a second's requests may come at once, and those after them as the time passes.
#[derive(Default)]
struct Pace {
    used_up_at: HashMap<Arc<str>, Instant>,
    swept_at: Option<Instant>,
}

impl Pace {
    fn takes(&mut self, tenant: &str, rate: u32, now: Instant) -> bool {
        // Once a second those are forgotten that have nothing in use, so that strangers' names do not add up.
        if self.swept_at.is_none_or(|at| now >= at + SECOND) {
            self.used_up_at.retain(|_, at| *at > now);
            self.swept_at = Some(now);
        }
        let at = self.used_up_at.get(tenant).map_or(now, |at| (*at).max(now)) + SECOND / rate;
        let takes = at <= now + SECOND;
        if takes {
            self.used_up_at.insert(tenant.into(), at);
        }
        takes
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
    /// Room for this many bytes more. `None` if the tenant has no more of it, or nobody has.
    pub(crate) fn holds(&self, bytes: usize) -> Option<Held> {
        let bytes = u32::try_from(bytes).ok()?;
        let of = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_many_owned(bytes).ok();
        Some(Held { of_tenant: of(&self.room)?, of_all: of(&self.tenants.room)? })
    }

    /// Waits until one more of the tenant's requests may use a connection, and until there is one. `None` if that took too long.
    pub(crate) async fn run(&self) -> Option<Lane> {
        let lane = async {
            // The semaphores are never closed. The tenant's comes first, so that no lane waits for it.
            let of_tenant = Arc::clone(&self.runs).acquire_owned().await.ok()?;
            let of_all = Arc::clone(&self.tenants.lanes).acquire_owned().await.ok()?;
            Some(Lane { _of_tenant: of_tenant, _of_all: of_all })
        };
        timeout(self.tenants.queue_deadline, lane).await.ok().flatten()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w158_a_rate_is_that_of_each_second_and_nothing_is_kept_of_who_is_gone() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut came = |tenant: &str, at| (0..20).filter(|_| pace.takes(tenant, 10, at)).count();
        assert_eq!(came("acme", at(0)), 10);
        assert_eq!(came("globex", at(0)), 10, "each has its own");
        // A refused one takes no place from those that come later.
        assert_eq!(came("acme", at(99)), 0);
        assert_eq!(came("acme", at(100)), 1);
        assert_eq!(came("acme", at(350)), 2);
        assert_eq!(came("acme", at(9_000)), 10, "no more are saved up than those of a second");
        for second in 10..200 {
            came(&second.to_string(), at(second * 1_000));
        }
        assert!(pace.used_up_at.len() <= 2, "{}", pace.used_up_at.len());
    }
}
