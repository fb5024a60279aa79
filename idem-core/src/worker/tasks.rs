//! The tasks beside the lanes: controls, cleanup, the watchdog, the end of an idle run.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    bugs::{self, Bug},
    cleanup::{CleanupSettings, runner::Cleanup},
    error::StoreError,
    pause::Pause,
    relay::{Relay, Stopping, state::RelayView},
    source::{Source, behind::LastBehind},
    standing::{Fact, REPORT_EVERY},
    store::{Bookkeeping as _, Control, ControlState, Store, StoreIdentity, usage::Usage},
    worker::{committed_keys, error::WorkerError, shared::Shared, view::WorkerView},
};

async fn sleep<S: Store, B: Source>(shared: &Shared<S, B>, time: Duration) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = shared.shutdown.cancelled() => {}
    }
}

/// Obeys the operators' controls, and has rows looked for that are due.
pub(super) async fn control<S: Store, B: Source>(shared: Arc<Shared<S, B>>, view: WorkerView) {
    let (mut server, mut reported) = (None, Reported::default());
    while !shared.shutdown.is_cancelled() {
        let (asked_at, was_halted) = (Instant::now(), shared.gate.is_halted());
        let read = match shared.record_halt().await {
            Ok(()) => reported.control(&shared, &view).await,
            Err(error) => Err(error),
        };
        match read {
            // A lane halted the consumer while the controls were read: they are out of date.
            Ok(_) if !was_halted && shared.gate.is_halted() => {}
            Ok(control) => {
                // Keys that are remembered of another server go first: interning may take its time.
                shared.obey(&control, asked_at);
                interned_there(&shared, &mut server, &control.identity).await;
                if control.state == ControlState::Running {
                    shared.due.look();
                }
            }
            Err(error) => {
                if let Some(cache) = &shared.cache {
                    cache.doubt();
                }
                tracing::debug!(idem.consumer = %shared.consumer.name, %error, "the controls cannot be read");
            }
        }
        let often = if shared.cache.is_some() { committed_keys::CONFIRM_EVERY } else { Duration::MAX };
        sleep(&shared, shared.settings.control_every.min(often)).await;
    }
}

/// The last report of this run.
#[derive(Default)]
struct Reported(Option<(Vec<Fact>, Instant)>);

impl Reported {
    /// Reads the control, and reports the run's state with it where it has changed, or was not reported for a while.
    async fn control<S: Store, B: Source>(
        &mut self,
        shared: &Shared<S, B>,
        view: &WorkerView,
    ) -> Result<Control, StoreError> {
        let (facts, bookkeeping) = (view.facts(), shared.consumer.store.bookkeeping());
        if self.0.as_ref().is_some_and(|(last, at)| *last == facts && at.elapsed() < REPORT_EVERY) {
            return bookkeeping.control(shared.scope).await;
        }
        let control = bookkeeping.report(shared.scope, shared.run, &facts, false).await?;
        self.0 = Some((facts, Instant::now()));
        Ok(control)
    }
}

/// How often the tables are asked for the consumer's state.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Reads what the tables know of the consumer's state: other workers, dead letters, who paused it; and from the broker how far this worker
/// is behind.
pub(super) async fn standing<S: Store, B: Source>(shared: Arc<Shared<S, B>>, behind: Arc<LastBehind>) {
    while !shared.shutdown.is_cancelled() {
        behind.set(shared.source.behind().await);
        match shared.consumer.store.bookkeeping().standing(&shared.consumer.name).await {
            Ok(tables) => shared.gate.set_tables(tables),
            Err(error) => {
                tracing::debug!(idem.consumer = %shared.consumer.name, %error, "the tables' state cannot be read");
            }
        }
        sleep(&shared, LOOK_EVERY).await;
    }
    behind.set(Vec::new());
}

/// Interns missing rows where another server answers than before, and at the first look, because it is unknown which one has
/// registered the consumer. Where that fails it is tried again with the next look.
async fn interned_there<S: Store, B: Source>(
    shared: &Arc<Shared<S, B>>,
    server: &mut Option<StoreIdentity>,
    now: &StoreIdentity,
) {
    if server.is_none() && bugs::planted(Bug::TrustsTheFirstServer) {
        *server = Some(now.clone());
    }
    if server.as_ref() == Some(now) {
        return;
    }
    match shared.consumer.intern_again().await {
        Ok(()) => *server = Some(now.clone()),
        Err(error @ StoreError::Refused { .. }) => shared.fatal(WorkerError::Store(error)),
        Err(error) => {
            tracing::debug!(idem.consumer = %shared.consumer.name, %error, "interned names cannot be looked up");
        }
    }
}

/// Removes expired rows.
pub(super) async fn cleanup<S: Store, B: Source>(shared: Arc<Shared<S, B>>, settings: CleanupSettings) {
    match Cleanup::new(shared.consumer.store.cleaner(), settings) {
        Ok(cleanup) => {
            let (stats, stop) = (Arc::clone(&shared.stats), shared.shutdown.clone());
            let _ = stats.cleanup.set(cleanup.view());
            cleanup.counted_by(move |rows| stats.cleaned.add(rows)).run(stop.cancelled_owned()).await;
        }
        Err(error) => tracing::error!(%error, "these settings of cleanup should have been refused before the start"),
    }
}

/// How often the tables' sizes are looked at. It is one statement on the catalogue.
const USAGE_EVERY: Duration = Duration::from_secs(60);

/// Sets the gauges of the room that the tables take: a flood fills a disk faster than cleanup comes round, and a worker may
/// have none.
#[allow(clippy::cast_precision_loss, reason = "gauges are floating")]
pub(super) async fn usage<S: Store, B: Source>(shared: Arc<Shared<S, B>>) {
    let metrics = &shared.metrics;
    metrics.dead_letter_quota.set(shared.settings.dead_letters_bytes_max.unwrap_or(0) as f64);
    while !shared.shutdown.is_cancelled() {
        match shared.consumer.store.bookkeeping().usage(&shared.consumer.name).await {
            Ok(usage) => {
                let Usage { records, record_bytes, dead_letters, dead_letter_bytes, records_of_largest_tenant } = usage;
                let known = |number: Option<u64>| number.unwrap_or(0) as f64;
                metrics.records.set(known(records));
                metrics.record_bytes.set(known(record_bytes));
                metrics.records_of_largest_tenant.set(known(records_of_largest_tenant));
                metrics.dead_letter_rows.set(known(dead_letters));
                metrics.dead_letter_bytes.set(known(dead_letter_bytes));
            }
            Err(error) => {
                tracing::debug!(idem.consumer = %shared.consumer.name, %error, "the tables' sizes cannot be read");
            }
        }
        sleep(&shared, USAGE_EVERY).await;
    }
}

/// Relays until the worker's last commits are sent, or the drain deadline has passed.
pub(super) async fn relay<S: Store, B: Source>(shared: Arc<Shared<S, B>>, relay: Relay, stopping: Stopping) {
    if let Err(error) = relay.run_until(stopping).await {
        shared.fatal(WorkerError::Relay(error));
    }
}

/// Ends the run once the source is at its end and nothing is unsettled for as long as was asked.
pub(super) async fn until_idle<S: Store, B: Source>(shared: Arc<Shared<S, B>>, idle_for: Duration) {
    let step = (idle_for / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let mut idle_since: Option<Instant> = None;
    let relayed = || shared.relayed.as_ref().map_or(0, RelayView::settled);
    let mut settled = relayed();
    while !shared.shutdown.is_cancelled() {
        let halted = matches!(shared.gate.pause(), Some(Pause::Control(ControlState::Halted, _)));
        if halted {
            shared.fatal(WorkerError::Halted);
            return;
        }
        let is_empty = || shared.is_empty() && shared.due.is_empty();
        if is_empty() && shared.source.is_idle().await && is_relayed(&shared).await && is_empty() {
            // An event that came due and was sent meanwhile was no pause.
            let settled_now = relayed();
            if settled_now != settled {
                (settled, idle_since) = (settled_now, None);
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= idle_for {
                shared.shutdown.cancel();
                return;
            }
        } else {
            idle_since = None;
        }
        sleep(&shared, step).await;
    }
}

/// Whether none of the consumer's events may go and has not gone.
async fn is_relayed<S: Store, B: Source>(shared: &Shared<S, B>) -> bool {
    match &shared.relayed {
        Some(relayed) => relayed.is_idle().await,
        None => true,
    }
}

/// Warns when nothing was settled for longer than the slowest unit can take, although something is in flight: a handler
/// that blocks its thread cannot be stopped.
pub(super) async fn watchdog<S: Store, B: Source>(shared: Arc<Shared<S, B>>) {
    let settings = &shared.consumer.settings;
    let slowest =
        settings.handler_deadline + settings.busy_timeout + settings.commit_timeout + settings.answer_timeout * 3;
    let (mut settled, mut since) = (shared.settled(), Instant::now());
    while !shared.shutdown.is_cancelled() {
        sleep(&shared, Duration::from_secs(5)).await;
        if shared.settled() != settled || shared.is_empty() || shared.gate.pause().is_some() {
            (settled, since) = (shared.settled(), Instant::now());
        } else if since.elapsed() > slowest {
            tracing::error!(
                idem.consumer = %shared.consumer.name, in_flight = shared.flight.messages(), since = ?since.elapsed(),
                "nothing was settled for longer than any unit may take; a handler blocks its thread, or waits are held"
            );
            since = Instant::now();
        }
    }
}
