//! The lookups of endpoints: one that is slow for a tenant's events leaves places for those of others.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{BoxError, outbox::OutgoingEvent};
use tokio::time::Instant;

use super::line::Line;

/// How long a lookup may take: a relay gives a publisher 10 s, of which the endpoint has 8.
pub(crate) const LOOKED_UP: Duration = Duration::from_secs(2);

/// From how long on a lookup is slow.
const SLOW_FROM: Duration = Duration::from_millis(250);

/// The most lookups at once for a tenant whose lookups are slow.
const SLOW: usize = 8;

/// How many tenants are remembered.
const TENANTS_MAX: usize = 4_096;

/// The tenants whose lookups are in flight or were slow, by consumer and tenant.
#[derive(Debug, Default)]
pub(crate) struct Lookups(Mutex<HashMap<(String, Box<str>), Tenant>>);

#[derive(Debug, Default)]
struct Tenant {
    /// When those in flight began.
    begun: Vec<Instant>,
    was_slow: bool,
    line: Line,
}

/// Why there was no endpoint.
#[derive(Debug)]
pub(crate) enum NotFound {
    /// The lookup was not made, and the event waits in line for so long.
    Busy(Duration),
    Failed(BoxError),
}

impl Lookups {
    /// Runs a lookup, unless its tenant has as many slow ones as it may have.
    pub(crate) async fn run<T>(
        &self,
        event: &OutgoingEvent,
        lookup: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, NotFound> {
        let begun = Instant::now();
        let _place = self.take(event, begun).map_err(NotFound::Busy)?;
        match tokio::time::timeout(LOOKED_UP, lookup).await {
            Ok(found) => found.map_err(NotFound::Failed),
            Err(_) => Err(NotFound::Failed(format!("its endpoint was not found within {LOOKED_UP:?}").into())),
        }
    }

    fn take(&self, event: &OutgoingEvent, now: Instant) -> Result<Option<Place<'_>>, Duration> {
        // Without a tenant nothing says whose event it is before the lookup does.
        if event.tenant.is_empty() {
            return Ok(None);
        }
        let mut tenants = self.tenants();
        if tenants.len() >= TENANTS_MAX {
            tenants.retain(|_, tenant| !tenant.begun.is_empty());
        }
        let of = (event.consumer.as_str().to_owned(), event.tenant.clone());
        let tenant = tenants.entry(of.clone()).or_default();
        let oldest = tenant.begun.iter().map(|begun| now - *begun).max().unwrap_or_default();
        if (tenant.was_slow || oldest >= SLOW_FROM) && tenant.begun.len() >= SLOW {
            return Err(tenant.line.wait(now, oldest, SLOW as u32));
        }
        tenant.begun.push(now);
        Ok(Some(Place { lookups: self, of, begun: now }))
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<(String, Box<str>), Tenant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Place<'l> {
    lookups: &'l Lookups,
    of: (String, Box<str>),
    begun: Instant,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let (mut tenants, took) = (self.lookups.tenants(), self.begun.elapsed());
        let Some(tenant) = tenants.get_mut(&self.of) else { return };
        if let Some(place) = tenant.begun.iter().position(|begun| *begun == self.begun) {
            tenant.begun.swap_remove(place);
        }
        tenant.was_slow = took >= SLOW_FROM;
        tenant.line.took(took);
        if tenant.begun.is_empty() && !tenant.was_slow {
            tenants.remove(&self.of);
        }
    }
}
