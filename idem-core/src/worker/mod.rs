//! [`Worker`]: a source, a consumer, and everything between them.

pub(crate) mod builder;
mod committed_keys;
mod due;
pub(crate) mod error;
mod in_flight;
mod intake;
mod job;
mod lane;
mod pace;
mod quota;
mod settler;
mod shared;
mod start;
mod tasks;
mod unsettled;
pub(crate) mod view;

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    builder::WorkerBuilder,
    error::WorkerError,
    view::{
        Load, WorkerView,
        incidents::{Incident, IncidentKind},
        stats::Summary,
        waits::Wait,
    },
};
pub use crate::policy::WaitCause;

use crate::{
    config::WorkerSettings,
    consumer::DedupConsumer,
    dead_letter::Publisher,
    failpoint,
    names::RunId,
    pause::IntakeGate,
    relay::{Relay, Stopping, state::RelayView},
    source::{Attached, IntoSource, Source, behind::LastBehind},
    spawn,
    standing::{Condition, Fact},
    store::{Bookkeeping as _, Store, describe::one_line, registration::Registered},
    telemetry::{
        handles::WorkerMetrics,
        log_limit::{self, LogLimiter},
    },
    worker::{
        committed_keys::CommittedKeys,
        due::rows::DueRows,
        in_flight::InFlight,
        intake::LaneSenders,
        lane::Lane,
        quota::Quota,
        settler::Settlement,
        shared::{LaneCount, Shared},
        view::{incidents::Incidents, stats::Stats, waits::Waits},
    },
};

/// Runs a [`DedupConsumer`] on a [`Source`]: lanes by ordering key, batches, retries, dead letters, settling, cleanup
/// and shutdown.
///
/// It can be run once.
pub struct Worker<S: Store, B: Source> {
    consumer: DedupConsumer<S>,
    source: Arc<B>,
    publisher: Option<Arc<dyn Publisher>>,
    /// Taken when it runs.
    relay: Option<Relay>,
    relayed: Option<RelayView>,
    settings: WorkerSettings,
    stats: Arc<Stats>,
    metrics: Arc<WorkerMetrics>,
    behind: Arc<LastBehind>,
    flight: Arc<InFlight>,
    recent: Arc<Incidents>,
    waits: Arc<Waits>,
    gate: Arc<IntakeGate>,
    /// Known once it is registered.
    run: Arc<OnceLock<RunId>>,
}

impl<S: Store, B: Source> fmt::Debug for Worker<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("consumer", &self.consumer)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// How long aborted tasks have to end: they do so where they next wait for something.
const ENDED_WITHIN: Duration = Duration::from_secs(1);

type Settlements<B> = mpsc::UnboundedReceiver<Settlement<<B as Source>::Handle>>;

impl<S: Store, B: Source> Worker<S, B> {
    /// A worker that runs `consumer` on `source`, which may be an [`Arc`] that the caller keeps a clone of.
    pub fn builder(consumer: DedupConsumer<S>, source: impl IntoSource<B>) -> WorkerBuilder<S, B> {
        WorkerBuilder::new(consumer, source.into_source())
    }

    fn new(
        consumer: DedupConsumer<S>,
        source: Arc<B>,
        publisher: Option<Arc<dyn Publisher>>,
        relay: Option<Relay>,
        settings: WorkerSettings,
    ) -> Self {
        let name = &consumer.engine.name;
        Self {
            stats: Arc::new(Stats::of(name)),
            metrics: Arc::new(WorkerMetrics::of(name)),
            behind: Arc::new(LastBehind::of(name)),
            flight: Arc::new(
                InFlight::new(&settings, consumer.engine.settings.payload_bytes_max)
                    .paced(source.capabilities().settled_within, consumer.engine.settings.lanes),
            ),
            recent: Arc::default(),
            waits: Arc::default(),
            gate: Arc::new(IntakeGate::new()),
            run: Arc::default(),
            consumer,
            source,
            publisher,
            relayed: relay.as_ref().map(Relay::view),
            relay,
            settings,
        }
    }

    /// A view that outlives the call of [`run`](Self::run).
    #[must_use]
    pub fn view(&self) -> WorkerView {
        WorkerView {
            lanes: self.consumer.engine.settings.lanes,
            handler_deadline: self.consumer.engine.settings.handler_deadline,
            stats: Arc::clone(&self.stats),
            metrics: Arc::clone(&self.metrics),
            behind: Arc::clone(&self.behind),
            flight: Arc::clone(&self.flight),
            recent: Arc::clone(&self.recent),
            waits: Arc::clone(&self.waits),
            gate: Arc::clone(&self.gate),
            run: Arc::clone(&self.run),
            open: Arc::clone(&self.consumer.engine.open),
            relay: self.relayed.clone(),
        }
    }

    /// Runs until `shutdown` is ready, something is fatal, or, where so set, the source is idle. Then intake stops, running
    /// units are finished, and everything else is given back to the broker. None of the worker's tasks outlives the call,
    /// unless it blocks its thread for more than a second.
    ///
    /// `shutdown` is any future: a signal, [`std::future::pending`] for none, or
    /// [`CancellationToken::cancelled_owned`](tokio_util::sync::CancellationToken::cancelled_owned).
    ///
    /// # Errors
    /// [`WorkerError`]. Nothing is lost by any of them: messages that were not acknowledged come back.
    ///
    /// # Cancel safety
    /// A dropped call stops receiving and drops whatever runs, without a drain. Handlers end at their next `.await`, and
    /// their transactions are rolled back as their connections close; a commit that is under way may still take place.
    /// Nothing is acknowledged that is not committed: the broker delivers the messages in hand again, and those that were
    /// committed are duplicates then.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, WorkerError> {
        let stop = CancellationToken::new();
        let mut run = Box::pin(self.run_until(stop.clone()));
        tokio::select! {
            ended = &mut run => return ended,
            () = shutdown => stop.cancel(),
        }
        run.await
    }

    /// Tries whether [`run`](Worker::run) could start, and ends: attaches to the broker, compares the settings with the
    /// broker's, and refuses and warns as a start does. Nothing is received, and nothing written: the consumer is not
    /// registered, so that its binding is compared only by the start itself. On Kafka the source joins its group and leaves it
    /// again, so the group's other members share the partitions anew, twice. A broker or database that cannot be reached is
    /// waited for as by a start.
    ///
    /// # Errors
    /// The errors of a start.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn check(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let tried = tokio::select! {
            tried = self.try_out() => tried,
            () = shutdown => Ok(()),
        };
        self.source.close(self.settings.drain).await;
        tried
    }

    async fn run_until(mut self, shutdown: CancellationToken) -> Result<Summary, WorkerError> {
        let started = Instant::now();
        let (attached, registered) = match self.start(&shutdown).await {
            Ok(Some(started)) => started,
            stopped_or_failed => {
                self.source.close(self.settings.drain).await;
                return stopped_or_failed.map(|_| self.summary(started));
            }
        };
        let _ = self.run.set(registered.run);
        let (shared, settlements) = self.share(&attached, &registered, shutdown.clone());
        let give_up = GiveUp(Arc::clone(&shared));
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..self.consumer.engine.settings.lanes).map(|_| mpsc::unbounded_channel()).unzip();
        self.obey_control(&shared).await;
        // Otherwise the observer looks again.
        if self.source.takes_part() {
            self.gate.set_joined();
        }
        let (lanes, background) = (TaskTracker::new(), TaskTracker::new());
        for (number, commands) in (0..).zip(receivers) {
            supervise(&lanes, &shared, "lane", Lane::new(Arc::clone(&shared), number, commands).run());
        }
        supervise(&lanes, &shared, "intake", intake::run(Arc::clone(&shared), senders.clone()));
        supervise(
            &background,
            &shared,
            "settler",
            settler::run(
                Arc::clone(&self.consumer.engine),
                Arc::clone(&self.source),
                Arc::clone(&self.stats),
                Arc::clone(&shared.unsettled),
                settlements,
            ),
        );
        supervise(&background, &shared, "observer", view::run(Arc::clone(&shared), self.view()));
        supervise(&background, &shared, "control", tasks::control(Arc::clone(&shared), self.view()));
        supervise(&background, &shared, "standing", tasks::standing(Arc::clone(&shared), Arc::clone(&self.behind)));
        supervise(&background, &shared, "watchdog", tasks::watchdog(Arc::clone(&shared)));
        supervise(&background, &shared, "usage", tasks::usage(Arc::clone(&shared)));
        if let Some(idle_for) = self.settings.until_idle {
            supervise(&background, &shared, "until-idle", tasks::until_idle(Arc::clone(&shared), idle_for));
        }
        let (stopping, writers) = self.start_writers(&shared, senders);
        shutdown.cancelled().await;
        let stop_by = Instant::now() + self.settings.drain;
        self.source.stop();
        self.gate.set_leaving();
        let _ = failpoint!(DRAIN);
        lanes.close();
        let drained = tokio::time::timeout_at(stop_by, drain(&lanes, &shared)).await.is_ok();
        // Last, because the lanes' last commits have events too. Another relay sends the events that it cannot send in time.
        stopping.drain.cancel();
        // Cleanup has ended its step since the stop, and writes down what it removed.
        let _ = tokio::time::timeout_at(stop_by, writers.wait()).await;
        let in_flight = self.flight.messages();
        drop(give_up);
        background.close();
        // One that blocks its thread cannot be ended, and is not waited for.
        let _ =
            tokio::time::timeout(ENDED_WITHIN, future::join3(lanes.wait(), background.wait(), writers.wait())).await;
        self.source.close(self.settings.drain).await;
        self.report_end(&shared, drained, in_flight).await;
        // Nothing follows that could say it.
        shared.lines.sum_up(&self.consumer.engine.name, Instant::now() + log_limit::WINDOW);
        if let Some(error) = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        if !drained {
            return Err(WorkerError::DrainDeadline { drain: self.settings.drain, in_flight });
        }
        Ok(self.summary(started))
    }

    /// Reports that the run has ended, and how. A run that cannot report it is seen to be gone all the same, somewhat later.
    async fn report_end(&self, shared: &Shared<S, B>, has_drained: bool, in_flight: usize) {
        if self.gate.lanes_down() > 0 {
            return;
        }
        let failed = |error: &WorkerError| Fact::of(Condition::Failed).detail(one_line::<S>(error));
        let known = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(failed);
        let late = || failed(&WorkerError::DrainDeadline { drain: self.settings.drain, in_flight });
        let end: Vec<Fact> = known.or_else(|| (!has_drained).then(late)).into_iter().collect();
        let reported = shared.consumer.store.bookkeeping().report(shared.scope, shared.run, &end, true);
        let _ = tokio::time::timeout(ENDED_WITHIN, reported).await;
    }

    /// Starts what has something to write at its end: the relay, cleanup, and the rows that are due.
    fn start_writers(&mut self, shared: &Arc<Shared<S, B>>, lanes: LaneSenders<B::Handle>) -> (Stopping, TaskTracker) {
        let (stopping, writers) = (Stopping::default(), TaskTracker::new());
        supervise(&writers, shared, "due", due::run(Arc::clone(shared), lanes));
        if let Some(relay) = self.relay.take() {
            supervise(&writers, shared, "relay", tasks::relay(Arc::clone(shared), relay, stopping.clone()));
        }
        if let Some(settings) = self.settings.cleanup {
            supervise(&writers, shared, "cleanup", tasks::cleanup(Arc::clone(shared), settings));
        }
        writers.close();
        (stopping, writers)
    }

    fn summary(&self, started: Instant) -> Summary {
        let published = self.relayed.as_ref().map_or(0, RelayView::published);
        Summary { published, ..self.stats.summary(started.elapsed()) }
    }

    fn share(
        &self,
        attached: &Attached,
        registered: &Registered,
        shutdown: CancellationToken,
    ) -> (Arc<Shared<S, B>>, Settlements<B>) {
        let (settlements, receiver) = mpsc::unbounded_channel();
        let shared = Shared {
            consumer: Arc::clone(&self.consumer.engine),
            source: Arc::clone(&self.source),
            publisher: self.publisher.clone(),
            relayed: self.relayed.clone(),
            settings: self.settings,
            stats: Arc::clone(&self.stats),
            metrics: Arc::clone(&self.metrics),
            flight: Arc::clone(&self.flight),
            recent: Arc::clone(&self.recent),
            gate: Arc::clone(&self.gate),
            settlements,
            lanes: LaneCount::default(),
            cache: CommittedKeys::new(&self.settings, self.consumer.engine.settings.retention),
            one_at_a_time: tokio::sync::Mutex::new(()),
            scarce_until: Mutex::new(None),
            dead_letter_settled: AtomicBool::new(false),
            unsettled: Arc::default(),
            shutdown,
            given_up: AtomicBool::new(false),
            running: Mutex::default(),
            failure: Mutex::new(None),
            unrecorded_halt: Mutex::default(),
            hold_max: attached.hold_max,
            due: DueRows::default(),
            waits: Arc::clone(&self.waits),
            quota: Quota::default(),
            lines: LogLimiter::default(),
            scope: registered.scope,
            run: registered.run,
        };
        (Arc::new(shared), receiver)
    }

    /// Obeys a pause that was set before this start, before anything is received, and reports that the run has begun. Where the controls cannot be read,
    /// the task that reads them every few seconds does so as soon as it can.
    async fn obey_control(&self, shared: &Shared<S, B>) {
        let asked_at = Instant::now();
        let bookkeeping = shared.consumer.store.bookkeeping();
        if let Ok(control) = bookkeeping.report(shared.scope, shared.run, &[], false).await {
            shared.obey(&control, asked_at);
        }
    }
}

/// Ends every task that is still there when `run` returns or is dropped.
struct GiveUp<S: Store, B: Source>(Arc<Shared<S, B>>);

impl<S: Store, B: Source> Drop for GiveUp<S, B> {
    fn drop(&mut self) {
        // A view may still hold the source and keep it from being dropped.
        self.0.source.stop();
        self.0.given_up.store(true, Ordering::Relaxed);
        for task in self.0.running.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

/// Waits for lanes and intake to end, and for everything they settled to be handed over.
async fn drain<S: Store, B: Source>(tasks: &TaskTracker, shared: &Shared<S, B>) {
    tasks.wait().await;
    shared.flush().await;
}

/// Runs a task of the worker. One that dies stops the worker: without its lane, its settler or its intake it would
/// stand still in silence (J11).
fn supervise<S: Store, B: Source>(
    tasks: &TaskTracker,
    shared: &Arc<Shared<S, B>>,
    task: &'static str,
    future: impl Future<Output = ()> + Send + 'static,
) {
    // Weak, so that the settler, which ends with its last sender, does not keep itself alive.
    struct Died<S: Store, B: Source>(Weak<Shared<S, B>>, &'static str);
    impl<S: Store, B: Source> Drop for Died<S, B> {
        fn drop(&mut self) {
            // Given up, it leaves the state that a killed process leaves.
            if let Some(shared) = self.0.upgrade().filter(|shared| !shared.given_up.load(Ordering::Relaxed)) {
                tracing::error!(idem.consumer = %shared.consumer.name, task = self.1, "a task of the worker died");
                shared.gate.set_dead(self.1);
                shared.fatal(WorkerError::TaskDied { task: self.1 });
            }
        }
    }
    let guard = Died(Arc::downgrade(shared), task);
    let running = spawn::spawn_on(tasks, async move {
        let mut guard = guard;
        future.await;
        guard.0 = Weak::new();
    });
    shared.running.lock().unwrap_or_else(PoisonError::into_inner).push(running);
}
