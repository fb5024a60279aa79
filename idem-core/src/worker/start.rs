//! How a worker starts: what it waits for, and what it refuses.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Worker, WorkerError};
use crate::{
    config::Handlers,
    consumer,
    error::{ErrorClass, SourceError, StoreError},
    retry::RetryPolicy,
    source::{Attached, Source},
    store::{AuditEntry, HORIZON_HEARD, Registered, Retention, Store},
};

impl<S: Store, B: Source> Worker<S, B> {
    /// Attaches to the broker and registers with the store, waiting for what cannot be reached. `None` where the stop
    /// came first.
    pub(super) async fn start(
        &self,
        shutdown: &CancellationToken,
    ) -> Result<Option<(Attached, Registered)>, WorkerError> {
        let begun = Instant::now();
        let (mut tries, mut attached) = (0, None);
        loop {
            let started = tokio::select! {
                started = self.try_start(&mut attached) => started,
                () = shutdown.cancelled() => return Ok(None),
            };
            let error = match started {
                Ok(started) => return Ok(Some(started)),
                Err(error) => error,
            };
            let (class, what) = match &error {
                WorkerError::Store(error) => (error.class(), "the database"),
                WorkerError::Source(error) => (error.class(), "the broker"),
                WorkerError::Unreachable { .. }
                | WorkerError::DrainDeadline { .. }
                | WorkerError::Halted
                | WorkerError::TaskDied { .. } => return Err(error),
            };
            if class == ErrorClass::Fatal {
                return Err(error);
            }
            let tried_for = self.settings.startup_timeout;
            if begun.elapsed() >= tried_for {
                return Err(WorkerError::Unreachable { what, tried_for, source: Box::new(error) });
            }
            tries += 1;
            let text = consumer::describe::<S>(&error);
            tracing::warn!(idem.consumer = %self.consumer.inner.name, error = text, "{what} cannot be reached yet");
            let retry = RetryPolicy { max: Duration::from_secs(5), ..RetryPolicy::default() };
            let wait = retry.backoff_now(tries).min(tried_for.saturating_sub(begun.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shutdown.cancelled() => return Ok(None),
            }
        }
    }

    /// `known` is what an earlier try found of the broker, which is not asked twice.
    async fn try_start(&self, known: &mut Option<Attached>) -> Result<(Attached, Registered), WorkerError> {
        let attached = match known {
            Some(attached) => attached.clone(),
            None => {
                self.check_handlers()?;
                let attached = self.source.attach().await.map_err(WorkerError::Source)?;
                for warning in &attached.warnings {
                    tracing::warn!(idem.consumer = %self.consumer.inner.name, "{warning}");
                }
                self.check_retention(&attached)?;
                self.check_delivery_limit(&attached)?;
                self.check_deadline(&attached)?;
                known.insert(attached).clone()
            }
        };
        let registered =
            self.consumer.inner.register_bound(attached.bound_to.clone()).await.map_err(WorkerError::Store)?;
        self.note_start(&attached, registered).await.map_err(WorkerError::Store)?;
        Ok((attached, registered.clone()))
    }

    /// Writes down what the broker said of itself, for `idem doctor`, which knows no broker.
    async fn note_start(&self, attached: &Attached, registered: &Registered) -> Result<(), StoreError> {
        let horizon = attached.redelivery_horizon.map(|time| format!("{HORIZON_HEARD}{} s", time.as_secs()));
        let lines: Vec<&str> = horizon.iter().chain(&attached.warnings).map(String::as_str).collect();
        let entry = AuditEntry {
            who: format!("run {}", registered.run),
            action: "start",
            scope: registered.scope,
            key: None,
            details: lines.join("\n"),
        };
        self.consumer.inner.store.audit(&entry).await
    }

    /// Handlers of one ordering key run in turn, so with one key a partition nothing would run at once.
    fn check_handlers(&self) -> Result<(), WorkerError> {
        if self.consumer.inner.settings.handlers == Handlers::InOrder || !self.source.capabilities().ordered_by_part {
            return Ok(());
        }
        Err(WorkerError::Source(SourceError::Refused {
            problem:
                "Handlers::Pipelined has nothing to run at once, because everything of a partition has one ordering \
                      key"
                .to_owned(),
            cure:
                "Order by the messages' own keys (on Kafka: --lane-by key, LaneBy::Key), or run the handlers in order"
                    .to_owned(),
        }))
    }

    /// A delivery that the broker takes back while its handler still runs is handled twice at once (F1).
    fn check_deadline(&self, attached: &Attached) -> Result<(), WorkerError> {
        let deadline = self.consumer.inner.settings.handler_deadline;
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
            (self.consumer.inner.settings.retention, attached.redelivery_horizon)
        else {
            return Ok(());
        };
        if retention >= horizon {
            return Ok(());
        }
        let problem = format!(
            "records are kept for {retention:?}, but the broker may deliver a message again for {horizon:?}: one that \
             comes back after its record is gone is handled twice"
        );
        let cure = format!("Set the retention to at least {horizon:?}, or shorten the broker's");
        if self.settings.strict_retention {
            return Err(WorkerError::Store(StoreError::Refused { problem, cure }));
        }
        tracing::warn!(idem.consumer = %self.consumer.inner.name, "{problem}. {cure}");
        Ok(())
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
