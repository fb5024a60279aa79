//! State that every task of a worker shares.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    bugs::{self, Bug},
    config::WorkerSettings,
    dead_letter::Publisher,
    error::StoreError,
    names::{RunId, ScopeId},
    outcome::{Durable, Settle},
    pause::IntakeGate,
    relay::state::RelayView,
    source::Source,
    store::{
        Bookkeeping as _, Control, ControlState, Store,
        claim::{Claim, Recorded},
        describe::one_line,
    },
    telemetry::{
        handles::{Cause, WorkerMetrics},
        log_limit::LogLimiter,
    },
    unit::engine::Engine,
    worker::{
        committed_keys::CommittedKeys,
        due::rows::DueRows,
        error::WorkerError,
        in_flight::{InFlight, Permit},
        job::{DeliveredBy, Job},
        quota::Quota,
        settler::{Answers, Settlement},
        unsettled::{Place, Unsettled},
        view::{
            incidents::Incidents,
            stats::{Stats, Summary},
            waits::Waits,
        },
    },
};

/// The parts of a worker, and their common state.
pub(crate) struct Shared<S: Store, B: Source> {
    pub(super) consumer: Arc<Engine<S>>,
    pub(super) source: Arc<B>,
    pub(super) publisher: Option<Arc<dyn Publisher>>,
    pub(super) relayed: Option<RelayView>,
    pub(super) settings: WorkerSettings,
    pub(super) stats: Arc<Stats>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) recent: Arc<Incidents>,
    pub(super) gate: Arc<IntakeGate>,
    pub(super) settlements: mpsc::UnboundedSender<Settlement<B::Handle>>,
    /// Held while a message runs that may have ended the last process. Two of them side by side on two lanes would both
    /// be charged for each death that one of them causes, until the innocent one is set aside with it (D4).
    pub(super) one_at_a_time: tokio::sync::Mutex<()>,
    /// Until when lanes are careful not to hold all connections that the database gives them.
    pub(super) scarce_until: Mutex<Option<Instant>>,
    /// A dead letter was settled, and the broker may not know it yet.
    pub(super) dead_letter_settled: AtomicBool,
    /// Dead letters that the broker may not have taken.
    pub(super) unsettled: Arc<Unsettled>,
    pub(super) lanes: LaneCount,
    pub(super) cache: Option<CommittedKeys>,
    pub(super) flight: Arc<InFlight>,
    pub(super) shutdown: CancellationToken,
    /// Whether `run` is over, which ends every task that is left.
    pub(super) given_up: AtomicBool,
    pub(super) running: Mutex<Vec<AbortHandle>>,
    pub(super) failure: Mutex<Option<WorkerError>>,
    /// By whom and why the consumer was halted, where the store does not know it yet.
    pub(super) unrecorded_halt: Mutex<Option<(String, String)>>,
    pub(super) hold_max: Option<Duration>,
    pub(super) due: DueRows,
    pub(super) waits: Arc<Waits>,
    pub(super) quota: Quota,
    pub(super) lines: LogLimiter,
    pub(super) scope: ScopeId,
    pub(super) run: RunId,
}

impl<S: Store, B: Source> Shared<S, B> {
    pub(super) fn batch_max(&self) -> usize {
        let max = self.consumer.store.capabilities().messages_max.unwrap_or(usize::MAX);
        if self.consumer.coalesce_calls() { self.settings.batch.min(max) } else { 1 }
    }

    /// Stops the worker. The first failure is the one that is reported.
    pub(super) fn fatal(&self, error: WorkerError) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.shutdown.cancel();
    }

    /// Halts the consumer, with all its tenants, until an operator resumes it.
    pub(super) async fn halt(&self, who: &str, reason: &str) {
        // Before it is recorded: messages that come meanwhile must not run.
        self.gate.set_control(ControlState::Halted, &format!("{who}: {reason}"));
        *self.unrecorded_halt() = Some((who.to_owned(), reason.to_owned()));
        if let Err(error) = self.record_halt().await {
            let error = one_line::<S>(&error);
            tracing::error!(
                idem.consumer = %self.consumer.name, error, "the halt could not be recorded yet; this worker stays halted"
            );
        }
        tracing::error!(idem.consumer = %self.consumer.name, reason, "halted; `idem consumers resume` goes on");
    }

    /// Records a halt that is not recorded yet. Until it is, the consumer's state in the store is not obeyed: it would end
    /// the halt, and the message that caused the halt would run.
    pub(super) async fn record_halt(&self) -> Result<(), StoreError> {
        let Some((who, reason)) = self.unrecorded_halt().clone() else { return Ok(()) };
        self.consumer.store.bookkeeping().set_control(self.scope, ControlState::Halted, &who, &reason).await?;
        *self.unrecorded_halt() = None;
        Ok(())
    }

    fn unrecorded_halt(&self) -> MutexGuard<'_, Option<(String, String)>> {
        self.unrecorded_halt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Obeys the operators' controls, which were read after `asked_at`.
    pub(super) fn obey(&self, control: &Control, asked_at: Instant) {
        self.consumer.clock.set(control.now);
        if let Some(cache) = &self.cache {
            cache.confirm(control.epoch, control.identity.clone(), asked_at);
        }
        if control.state == ControlState::Paused && bugs::planted(Bug::IgnoresPauses) {
            return;
        }
        self.gate.obey(&self.consumer.name, control);
    }

    pub(super) fn settle(&self, handle: B::Handle, settle: Settle, permit: Option<Permit>) {
        let mut answers = Answers::default();
        answers.push(handle, settle, permit);
        self.settle_all(answers);
    }

    /// Settles a dead letter whose row is written.
    pub(super) fn settle_dead_letter(
        &self,
        handle: B::Handle,
        durable: Durable,
        permit: Option<Permit>,
        of: Option<Place>,
    ) {
        let mut answers = Answers::default();
        answers.next_is(of);
        answers.push(handle, Settle::DeadLetter(durable), permit);
        self.settle_all(answers);
    }

    pub(super) fn settle_all(&self, answers: Answers<B::Handle>) {
        if !answers.is_empty() {
            // The settler lives as long as any sender; after it, the messages come back to the broker.
            let _ = self.settlements.send(Settlement::Of(answers));
        }
    }

    /// Gives a message back to where it came from.
    pub(super) fn release(&self, job: Job<B::Handle>, after: Duration) {
        match job.from {
            DeliveredBy::Broker(handle) => {
                self.stats.released.add(1);
                self.settle(handle, Settle::Release { after }, job.permit);
            }
            DeliveredBy::Row(id) => self.due.released(id),
        }
    }

    /// Gives back a delivery that was not looked at.
    pub(super) fn release_unseen(&self, handle: B::Handle) {
        self.stats.released.add(1);
        self.settle(handle, Settle::Release { after: Duration::ZERO }, None);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flight.messages() == 0
    }

    /// Counts a duplicate of a recorded message. `early` says that the message came where a broker that marks no
    /// redeliveries redelivers: among the first after a start or an assignment.
    pub(super) fn skipped(&self, job: &Job<B::Handle>, recorded: &Recorded, early: bool) {
        let is_redelivery = job.redelivered || (early && !self.source.capabilities().marks_redelivery);
        let cause = match job.from {
            DeliveredBy::Row(_) => Cause::Replay,
            DeliveredBy::Broker(_) if is_redelivery => Cause::Redelivery,
            DeliveredBy::Broker(_) => Cause::Producer,
        };
        self.stats.duplicates.add(1);
        self.metrics.skipped(cause);
        let age = self.consumer.clock.now().duration_since(recorded.processed_at).unwrap_or_default();
        self.metrics.duplicate_age.record(age);
        tracing::debug!(cause = cause.as_str(), ?age, "[{}] Skipping duplicate: {}", self.consumer.name, recorded.key);
    }

    /// A number that changes whenever something is settled.
    pub(super) fn settled(&self) -> u64 {
        let Summary { processed, duplicates, conflicts, dead_lettered, released, retries, busy, .. } =
            self.stats.summary(Duration::ZERO);
        processed + duplicates + conflicts + dead_lettered + released + retries + busy
    }

    /// The record that this run has committed for a claim, as far as memory needs it.
    pub(super) fn recorded(&self, claim: &Claim) -> Recorded {
        Recorded {
            key: claim.key.clone(),
            hash: claim.hash,
            hash_rule: claim.hash_rule,
            processed_at: self.consumer.clock.now(),
            processed_by: self.run,
            expires_at: None,
        }
    }
}

/// How many lanes there are, and how many may be running something that they began before the stop.
#[derive(Debug, Default)]
pub(crate) struct LaneCount {
    present: watch::Sender<usize>,
    at_work: watch::Sender<usize>,
}

/// Counts a lane, until it is dropped.
pub(super) struct Counted(watch::Sender<usize>);

impl LaneCount {
    /// A lane that begins.
    pub(super) fn enter(&self) -> (Counted, Counted) {
        let count = |lanes: &watch::Sender<usize>| {
            lanes.send_modify(|lanes| *lanes += 1);
            Counted(lanes.clone())
        };
        (count(&self.present), count(&self.at_work))
    }

    /// Waits until none runs anything that it began before the stop.
    pub(super) async fn none_at_work(&self) {
        none_left(&self.at_work).await;
    }

    /// Waits until all have left.
    pub(super) async fn none_present(&self) {
        none_left(&self.present).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|lanes| *lanes -= 1);
    }
}

async fn none_left(lanes: &watch::Sender<usize>) {
    // The sender lives for as long as this is waited for, so this cannot fail.
    let _ = lanes.subscribe().wait_for(|lanes| *lanes == 0).await;
}
