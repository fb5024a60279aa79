//! The start of a worker: its checks, waits and refusals.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Concurrency,
    error::{BoxError, ErrorClass, SourceError, StoreError},
    names::Retention,
    retry::RetryPolicy,
    source::{Attached, Source},
    span::Exactly,
    store::{AuditEntry, Bookkeeping as _, Store, describe::one_line, registration::Registered},
    worker::{Worker, error::WorkerError},
};

/// How long a start has been waiting.
struct Waits {
    begun: Instant,
    tries: u32,
}

impl Waits {
    fn new() -> Self {
        Self { begun: Instant::now(), tries: 0 }
    }
}

impl<S: Store, B: Source> Worker<S, B> {
    /// Attaches to the broker and registers with the store, waiting while either cannot be reached. `None` where the
    /// stop came first.
    pub(super) async fn start(
        &self,
        shutdown: &CancellationToken,
    ) -> Result<Option<(Attached, Registered)>, WorkerError> {
        tokio::select! {
            started = self.started() => started.map(Some),
            () = shutdown.cancelled() => Ok(None),
        }
    }

    async fn started(&self) -> Result<(Attached, Registered), WorkerError> {
        let (mut waits, mut known) = (Waits::new(), None);
        loop {
            match self.try_start(&mut known).await {
                Ok(started) => return Ok(started),
                Err(error) => self.wait_after(error, &mut waits).await?,
            }
        }
    }

    /// The same without the writes of a start.
    pub(super) async fn try_out(&self) -> Result<(), WorkerError> {
        let mut waits = Waits::new();
        while let Err(error) = self.attached(&mut None).await {
            self.wait_after(error, &mut waits).await?;
        }
        Ok(())
    }

    /// Waits before the next try. An error that no further try would cure, or not in time, comes back.
    async fn wait_after(&self, error: WorkerError, waits: &mut Waits) -> Result<(), WorkerError> {
        // Without its wrapper, which says that it refused: it may never have been asked.
        let (what, error): (_, BoxError) = match error {
            WorkerError::Store(error) if error.class() != ErrorClass::Fatal => ("the database", error.into()),
            WorkerError::Source(error) if error.class() != ErrorClass::Fatal => ("the broker", error.into()),
            WorkerError::Store(_)
            | WorkerError::Source(_)
            | WorkerError::Unreachable { .. }
            | WorkerError::DrainDeadline { .. }
            | WorkerError::Halted
            | WorkerError::Relay(_)
            | WorkerError::TaskDied { .. } => return Err(error),
        };
        let (tried_for, elapsed) = (self.settings.startup_timeout, waits.begun.elapsed());
        if elapsed >= tried_for {
            return Err(WorkerError::Unreachable { what, tried_for, source: error });
        }
        waits.tries += 1;
        let text = one_line::<S>(&*error);
        tracing::warn!(idem.consumer = %self.consumer.engine.name, error = text, "{what} cannot be reached yet");
        let retry = RetryPolicy { max: Duration::from_secs(5), ..RetryPolicy::default() };
        tokio::time::sleep(retry.backoff_now(waits.tries).min(tried_for.saturating_sub(elapsed))).await;
        Ok(())
    }

    /// `known` holds the broker's facts from an earlier try; the broker is not asked twice.
    async fn try_start(&self, known: &mut Option<Attached>) -> Result<(Attached, Registered), WorkerError> {
        let attached = self.attached(known).await?;
        let registered = self.consumer.engine.register_bound(&attached).await.map_err(WorkerError::Store)?;
        self.note_start(&attached, registered).await.map_err(WorkerError::Store)?;
        Ok((attached, registered.clone()))
    }

    /// Attaches, and holds the settings against the broker's.
    async fn attached(&self, known: &mut Option<Attached>) -> Result<Attached, WorkerError> {
        if let Some(attached) = known {
            return Ok(attached.clone());
        }
        self.check_handlers()?;
        let attached = self.source.attach().await.map_err(WorkerError::Source)?;
        for warning in &attached.warnings {
            tracing::warn!(idem.consumer = %self.consumer.engine.name, "{warning}");
        }
        self.check_retention(&attached)?;
        self.check_delivery_limit(&attached)?;
        self.check_deadline(&attached)?;
        if let Some(warning) = self.too_small_for(attached.message_bytes_max) {
            tracing::warn!(idem.consumer = %self.consumer.engine.name, "{warning}");
        }
        Ok(known.insert(attached).clone())
    }

    /// Writes down the warnings about the broker, for `idem doctor`, which knows no broker.
    async fn note_start(&self, attached: &Attached, registered: &Registered) -> Result<(), StoreError> {
        let entry = AuditEntry {
            who: format!("run {}", registered.run),
            action: "start",
            scope: registered.scope,
            key: None,
            details: attached.warnings.join("\n"),
        };
        self.consumer.engine.store.bookkeeping().audit(&entry).await
    }

    /// Handlers of one ordering key run in turn, so with one key a partition nothing would run at once.
    fn check_handlers(&self) -> Result<(), WorkerError> {
        if self.consumer.engine.settings.handlers == Concurrency::InOrder || !self.source.capabilities().ordered_by_part
        {
            return Ok(());
        }
        Err(WorkerError::Source(SourceError::Refused {
            problem:
                "Concurrency::Pipelined has nothing to run at once, because everything of a partition has one ordering \
                      key"
                .to_owned(),
            cure: "Order by the messages' own keys (on Kafka: lane_by(LaneBy::Key)), or run the handlers in order"
                .to_owned(),
        }))
    }

    /// A delivery that the broker takes back while its handler still runs is handled twice at once (F1).
    fn check_deadline(&self, attached: &Attached) -> Result<(), WorkerError> {
        let deadline = self.consumer.engine.settings.handler_deadline;
        match attached.hold_max {
            Some(max) if max <= deadline => Err(WorkerError::Source(SourceError::Refused {
                problem: format!(
                    "the broker takes a delivery back after {max:?}, and handler_deadline is {deadline:?}"
                ),
                cure: format!("Set handler_deadline below {max:?}, or have the broker wait longer"),
            })),
            Some(_) | None => Ok(()),
        }
    }

    /// A record that is gone before the broker stops redelivering lets an effect happen twice (C1).
    fn check_retention(&self, attached: &Attached) -> Result<(), WorkerError> {
        let (Retention::For(retention), Some(horizon)) =
            (self.consumer.engine.settings.retention, attached.redelivery_horizon)
        else {
            return Ok(());
        };
        // As long is not long enough: the record and the broker's copy would go at once, in either order.
        if retention > horizon {
            return Ok(());
        }
        let (retention, horizon) = (Exactly(retention), Exactly(horizon));
        let problem = format!(
            "records are kept for {retention}, but the broker may deliver a message again for {horizon}: one that \
             comes back after its record is gone is handled twice"
        );
        let cure = format!("Set the retention to more than {horizon}, or shorten the broker's");
        if self.settings.strict_retention {
            return Err(WorkerError::Store(StoreError::Refused { problem, cure }));
        }
        tracing::warn!(idem.consumer = %self.consumer.engine.name, "{problem}. {cure}");
        Ok(())
    }

    /// Warns of messages that the broker takes and this worker would not handle, or could not keep, before they come.
    fn too_small_for(&self, theirs: Option<u64>) -> Option<String> {
        let kept = self.settings.dead_letter_payload_bytes_max as u64;
        let handled = self.consumer.engine.settings.payload_bytes_max as u64;
        let has_publisher = self.publisher.is_some();
        too_small(theirs, handled, kept, has_publisher)
    }

    /// A broker that gives up before we do takes good messages away (F8, G6).
    fn check_delivery_limit(&self, attached: &Attached) -> Result<(), WorkerError> {
        let attempts = self.settings.retry.attempts;
        match attached.delivery_limit {
            Some(limit) if limit <= attempts => Err(WorkerError::Source(SourceError::Refused {
                problem: format!(
                    "the broker removes a message after {limit} deliveries, and idem makes {attempts} attempts"
                ),
                cure: format!("Raise the broker's limit above {attempts}, or lower retry.attempts below {limit}"),
            })),
            Some(_) | None => Ok(()),
        }
    }
}

/// The warnings where the broker takes larger messages than are handled or kept.
fn too_small(theirs: Option<u64>, handled: u64, kept: u64, has_publisher: bool) -> Option<String> {
    let largest = theirs.unwrap_or(handled);
    if largest > kept && !has_publisher {
        let from = if theirs.is_some() { "the broker takes" } else { "this worker handles" };
        return Some(format!(
            "{from} messages of up to {largest} bytes, and dead_letter_payload_bytes_max is {kept}: a larger one that is set \
             aside cannot be kept, so it is held and not acknowledged. Raise dead_letter_payload_bytes_max \
             (--dead-letter-payload-max), or publish dead letters too"
        ));
    }
    (largest > handled).then(|| {
        format!(
            "the broker takes messages of up to {largest} bytes, and payload_bytes_max is {handled}: a larger one is set \
             aside as too-large. Raise payload_bytes_max (--payload-max), or lower the broker's limit"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A33: the start warns of messages that would be too large, where the broker's own limit is known.
    #[test]
    fn a33_limits_below_those_of_the_broker_are_warned_of() {
        let told = |theirs, handled, kept, publisher| too_small(theirs, handled, kept, publisher).unwrap_or_default();
        for quiet in [told(None, 10, 20, false), told(Some(10), 10, 20, false), told(Some(9), 10, 10, false)] {
            assert_eq!(quiet, "");
        }
        assert!(told(Some(21), 10, 20, false).contains("dead_letter_payload_bytes_max is 20"));
        assert!(told(Some(21), 10, 20, true).contains("payload_bytes_max is 10"), "a publisher may take it");
        assert!(told(Some(20), 10, 20, false).contains("too-large"));
        assert!(told(None, 10, 5, false).contains("this worker handles messages of up to 10 bytes"));
    }
}
