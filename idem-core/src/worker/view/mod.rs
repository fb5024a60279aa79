//! A running worker from outside: the view, the gauges, and the lines that sum up.

mod facts;
pub(crate) mod incidents;
pub(crate) mod stats;
pub(crate) mod waits;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cleanup::runner::CleanupState,
    names::RunId,
    pause::{IntakeGate, Pause},
    policy::WaitCause,
    relay::state::RelayView,
    source::{Behind, Source, behind::LastBehind},
    store::{ControlState, Store},
    telemetry::handles::WorkerMetrics,
    unit::open_units::OpenUnits,
    worker::{
        in_flight::InFlight,
        shared::Shared,
        view::{
            incidents::{Incident, IncidentKind, Incidents},
            stats::{Stats, Summary},
            waits::{Wait, Waits},
        },
    },
};

/// How often the gauges are set and left-out lines are summed up.
const EVERY: Duration = Duration::from_secs(1);

/// How often the duplicates that were skipped are logged in one line.
const SKIPPED_EVERY: Duration = Duration::from_secs(10);

/// How often, and after how long, it is logged that the broker cannot be used: a moment's outage has its own line.
const BROKER_EVERY: Duration = Duration::from_secs(60);

/// From when on a transaction is warned about. PostgreSQL's autovacuum looks once a minute by default, and may remove
/// only dead rows that are older than every open transaction (A26).
const OPEN_LONG: Duration = Duration::from_secs(60);

/// A view of a running worker.
#[derive(Debug, Clone)]
pub struct WorkerView {
    pub(super) lanes: usize,
    pub(super) handler_deadline: Duration,
    pub(super) stats: Arc<Stats>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) behind: Arc<LastBehind>,
    pub(super) flight: Arc<InFlight>,
    pub(super) recent: Arc<Incidents>,
    pub(super) waits: Arc<Waits>,
    pub(super) gate: Arc<IntakeGate>,
    pub(super) run: Arc<OnceLock<RunId>>,
    pub(super) open: Arc<OpenUnits>,
    pub(super) relay: Option<RelayView>,
}

/// The messages that a worker has in hand now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Messages received and not settled.
    pub messages: usize,
    /// The bytes they take.
    pub bytes: usize,
    /// For how long the oldest of them is here.
    pub oldest: Option<Duration>,
    /// For how long the oldest of its transactions is open.
    pub oldest_transaction: Option<Duration>,
    /// Units that may run side by side.
    pub lanes: usize,
    /// Lanes among them that cannot reach the database.
    pub lanes_down: usize,
}

impl WorkerView {
    /// The worker's counts so far. [`Summary::ran_for`] is zero here.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let published = self.relay.as_ref().map_or(0, RelayView::published);
        Summary { published, ..self.stats.summary(Duration::ZERO) }
    }

    /// The number under which the store knows this run, as in its records; `None` until the worker is registered.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        self.run.get().copied()
    }

    /// The relay in this worker; `None` where it has none.
    #[must_use]
    pub fn relay(&self) -> Option<&RelayView> {
        self.relay.as_ref()
    }

    /// Whether the worker has attached to its broker, registered with its store, and been [let in](Source::takes_part). It
    /// stays so: later failures show in [`pause`](Self::pause) and in the end of the run.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.gate.has_joined()
    }

    /// Why the worker takes nothing in now; `None` while it does.
    #[must_use]
    pub fn pause(&self) -> Option<Pause> {
        self.gate.pause()
    }

    /// For how long the worker has taken nothing in, its own start at the earliest; `None` while it does. [`pause`](Self::pause)
    /// says why now: one cause may have taken over from another meanwhile.
    #[must_use]
    pub fn paused_for(&self) -> Option<Duration> {
        self.gate.paused_for()
    }

    /// For how long the broker cannot be used for receiving; `None` while it can. It is looked at every second.
    #[must_use]
    pub fn broker_unreachable_for(&self) -> Option<Duration> {
        self.gate.broker_unreachable_for()
    }

    /// How far the consumer is behind in each part of its queue or topic, as the broker last answered, a few seconds ago. Empty before the
    /// first answer, and where the source cannot know.
    #[must_use]
    pub fn behind(&self) -> Vec<Behind> {
        self.behind.parts()
    }

    /// Cleanup's counts in this worker, and how far behind it is; `None` where it is off.
    #[must_use]
    pub fn cleanup(&self) -> Option<CleanupState> {
        self.stats.cleaning()
    }

    /// The task of the worker that died, where one did. The worker then ends, as soon as its running units have ended.
    #[must_use]
    pub fn dead_task(&self) -> Option<&'static str> {
        self.gate.dead()
    }

    /// Its messages in hand now.
    #[must_use]
    pub fn load(&self) -> Load {
        Load {
            messages: self.flight.messages(),
            bytes: self.flight.bytes(),
            oldest: self.flight.oldest(Instant::now()),
            oldest_transaction: self.open.oldest().map(|since| since.elapsed()),
            lanes: self.lanes,
            lanes_down: self.gate.lanes_down(),
        }
    }

    /// The causes for which messages in hand wait, and for how long already; one entry a cause. Messages that wait because
    /// intake is closed are not among them: [`pause`](Self::pause) says why.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        self.waits.now()
    }

    /// The last incidents of one kind, the newest first. Where there are very many, some are left out.
    #[must_use]
    pub fn recent(&self, kind: IncidentKind) -> Vec<Incident> {
        self.recent.last(kind)
    }

    /// Sets the gauges to their current values. The worker does it every second; an exporter that is asked may do it too.
    #[allow(clippy::cast_precision_loss, reason = "gauges are floating, and these numbers are small")]
    pub fn measure(&self) {
        let (load, pause, is) = (self.load(), self.pause(), |yes| f64::from(u8::from(yes)));
        self.metrics.in_flight.set(load.messages as f64);
        self.metrics.in_flight_bytes.set(load.bytes as f64);
        self.metrics.oldest_unsettled.set(load.oldest.unwrap_or_default().as_secs_f64());
        self.metrics.oldest_transaction.set(load.oldest_transaction.unwrap_or_default().as_secs_f64());
        self.metrics.lanes_down.set(load.lanes_down as f64);
        self.metrics.paused.set(is(pause.is_some()));
        self.metrics.paused_for.set(self.paused_for().unwrap_or_default().as_secs_f64());
        self.metrics.failed_runs.set(self.tables().map_or(0, |tables| tables.failed_runs()) as f64);
        self.metrics.halted.set(is(matches!(pause, Some(Pause::Control(ControlState::Halted, _)))));
        self.metrics.breaker_open.set(is(self.gate.breaker_is_open()));
        let is_connected = self.gate.has_joined() && self.broker_unreachable_for().is_none();
        self.metrics.broker_connected.set(is(is_connected));
        self.metrics.ready.set(is(self.gate.has_joined() && !self.gate.is_leaving()));
        let waits = self.waits();
        for (cause, (messages, longest)) in WaitCause::ALL.into_iter().zip(&self.metrics.waiting) {
            let wait = waits.iter().find(|wait| wait.cause == cause);
            messages.set(wait.map_or(0.0, |wait| wait.messages as f64));
            longest.set(wait.map_or(0.0, |wait| wait.longest.as_secs_f64()));
        }
        let cannot_be_kept = |wait: &&Wait| matches!(wait.cause, WaitCause::Unkeepable | WaitCause::DeadLetterQuota);
        let unkeepable: usize = waits.iter().filter(cannot_be_kept).map(|wait| wait.messages).sum();
        self.metrics.unkeepable.set(unkeepable as f64);
        let cleanup = self.cleanup().unwrap_or_default();
        self.metrics.cleanup_failed_cycles.set(cleanup.failed_cycles);
        self.metrics.cleanup_lag.set(cleanup.backlog.map_or(0.0, |backlog| backlog.lag.as_secs_f64()));
    }
}

/// Sets the gauges every second, and sums up events in one line that would be too many.
pub(super) async fn run<S: Store, B: Source>(shared: Arc<Shared<S, B>>, view: WorkerView) {
    let (mut told, mut told_at) = (0, None::<Instant>);
    let mut warned_of = None::<Instant>;
    let mut broker_told_at = None::<Instant>;
    loop {
        let is_last = shared.shutdown.is_cancelled();
        if shared.source.takes_part() {
            view.gate.set_joined();
        }
        broker_told_at = look_at_the_broker(&shared, broker_told_at);
        view.measure();
        let now = Instant::now();
        shared.lines.sum_up(&shared.consumer.name, now);
        let open_long = view.open.oldest().filter(|since| now.duration_since(*since) >= OPEN_LONG);
        if open_long.is_some() && open_long != warned_of {
            warned_of = open_long;
            tracing::warn!(
                idem.consumer = %shared.consumer.name,
                "a transaction is open for {OPEN_LONG:?}: until it ends, the database cannot remove dead rows; make \
                 batches smaller, or the handler faster"
            );
        }
        let skipped = view.summary().duplicates;
        let is_due = is_last || told_at.is_none_or(|at| now.duration_since(at) >= SKIPPED_EVERY);
        if skipped > told && is_due {
            tracing::info!("[{}] Skipped {} duplicates, {skipped} in all", shared.consumer.name, skipped - told);
            (told, told_at) = (skipped, Some(now));
        }
        if is_last {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = shared.shutdown.cancelled() => {}
        }
    }
}

/// Asks the source whether its broker can be used, and says each minute that it cannot. Answers when that was last said.
fn look_at_the_broker<S: Store, B: Source>(shared: &Shared<S, B>, told_at: Option<Instant>) -> Option<Instant> {
    let (now, consumer) = (Instant::now(), &shared.consumer.name);
    let unreachable_for = shared.source.unreachable_for();
    let before = shared.gate.set_broker(unreachable_for);
    let Some(time) = unreachable_for else {
        if let (Some(_), Some(time)) = (told_at, before) {
            tracing::info!(idem.consumer = %consumer, "the broker can be used again, after {} s", time.as_secs());
        }
        return None;
    };
    if time < BROKER_EVERY || told_at.is_some_and(|at| now.duration_since(at) < BROKER_EVERY) {
        return told_at;
    }
    let error = shared.gate.broker_error();
    tracing::warn!(idem.consumer = %consumer, error, "the broker cannot be used for {} s", time.as_secs());
    Some(now)
}
