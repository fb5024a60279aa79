//! The lease of a destination: one relay at a time has it, by the database's clock.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    error::StoreError,
    outbox::{
        limits::DestinationLimits,
        rows::{DestinationId, LeaseRequest, Leased, Outbox},
    },
    spawn,
};

pub(super) struct Lease {
    outbox: Arc<dyn Outbox>,
    destination: DestinationId,
    relay: Arc<str>,
    time: Duration,
    receiver_keeps: Duration,
    limits: Option<DestinationLimits>,
    /// Until when the lease is certainly ours. Counted from before the request, so it ends here before it ends in the database.
    until: Mutex<Option<Instant>>,
}

impl Lease {
    pub(super) fn new(
        outbox: &Arc<dyn Outbox>,
        destination: DestinationId,
        relay: &Arc<str>,
        time: Duration,
        receiver_keeps: Duration,
        limits: Option<DestinationLimits>,
    ) -> Arc<Self> {
        let (outbox, relay) = (Arc::clone(outbox), Arc::clone(relay));
        Arc::new(Self { outbox, destination, relay, time, receiver_keeps, limits, until: Mutex::new(None) })
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Whether the lease is ours for some time yet. Later, another relay may send the same events. A process that was frozen
    /// checks this before it sends, so it sends copies only if it freezes between the check and the sending.
    pub(super) fn holds(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| has_time(Instant::now(), until, self.time))
    }

    /// Takes or renews the lease.
    pub(super) async fn ask(&self) -> Result<Leased, StoreError> {
        let asked_at = Instant::now();
        let (outbox, relay) = (Arc::clone(&self.outbox), Arc::clone(&self.relay));
        let (destination, time, keeps) = (self.destination, self.time, self.receiver_keeps);
        let limits = self.limits.clone();
        // The waiting call may be dropped, but the statement on the connection runs to its end.
        let ask = async move {
            let request = LeaseRequest::new(&relay, time).receiver_keeps(keeps).limits(limits.as_ref());
            outbox.lease(destination, request).await
        };
        let answer = spawn::finished(ask).await?;
        self.set(match &answer {
            Leased::Mine => Some(asked_at + self.time),
            Leased::Others { .. } | Leased::Paused => None,
        });
        Ok(answer)
    }

    /// Renews the lease for as long as this is polled, even while a publisher is slow.
    pub(super) async fn keep(&self) {
        loop {
            tokio::time::sleep(self.time / 3).await;
            if let Err(error) = self.ask().await {
                tracing::debug!(relay = %self.relay, %error, "a lease could not be renewed");
            }
        }
    }

    /// Gives up the lease, so that another relay can take it at once.
    pub(super) async fn release(&self) {
        self.set(None);
        if let Err(error) = self.outbox.release(self.destination, &self.relay).await {
            tracing::debug!(relay = %self.relay, %error, "a lease could not be released; it ends by itself");
        }
    }
}

/// Whether a tenth of the lease is left: time for the sending itself.
fn has_time(now: Instant, until: Instant, lease: Duration) -> bool {
    now + lease / 10 < until
}

#[cfg(test)]
mod tests {
    use super::*;

    /// O4: a lease is given up in its last tenth.
    #[test]
    fn o4_a_lease_is_not_held_to_its_end() {
        let (asked_at, lease) = (Instant::now(), Duration::from_secs(10));
        let has_time = |after: u64| has_time(asked_at + Duration::from_millis(after), asked_at + lease, lease);
        assert!(has_time(0) && has_time(8_999));
        assert!(!has_time(9_000) && !has_time(10_000) && !has_time(20_000));
    }
}
