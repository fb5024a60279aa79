//! A worker as seen from outside: by the admin endpoints, and by the summary at its end.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, SystemTime},
};

use idem_core::{
    CancellationToken,
    cleanup::CleanupState,
    consumer::Pause,
    inbox::{InboxBacklog, ReceiverView},
    relay::{RelayView, Relayed},
    source::Behind,
    standing::{self, Condition, Fact, Row},
    store::{ControlState, RunId},
    telemetry::{BROKER_CONNECTED, CONSUMER, LOG_LINES_LOST, Metric, PAUSED, PAUSED_FOR, READY},
    worker::{Incident, IncidentKind, Load, Summary, Wait, WorkerView},
};
use idem_sql::SchemaName;
use serde::Serialize;
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    flags::Flags,
    logs,
    rates::{self, Rates, Recent},
    relay::standing::Standing,
    served::Served,
};

/// Longer than any process runs.
const YEARS: Duration = Duration::from_secs(1_000_000_000);

/// The requests that a service over HTTP has served so far.
type Look = Box<dyn Fn() -> Served + Send + Sync>;

/// The source's share now, such as partitions.
type Partitions = Box<dyn Fn() -> Option<Vec<Behind>> + Send + Sync>;

/// The messages that wait in the inbox.
type Backlog = Box<dyn Fn() -> Option<InboxBacklog> + Send + Sync>;

/// The identity of the process, beside its consumer.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    /// Host and number.
    pub(crate) process: String,
    /// Where its messages come from, by the broker's flags: a kind and a name.
    pub(crate) place: Vec<(&'static str, String)>,
    /// The schema of idem's tables, where it is not the usual one.
    pub(crate) schema: Option<String>,
    /// Keys are shown by their stand-ins.
    pub(crate) keys_are_hidden: bool,
}

impl Identity {
    /// This process, with these flags.
    pub(crate) fn new(
        program: &'static str,
        version: &'static str,
        place: Vec<(&'static str, String)>,
        flags: &Flags,
    ) -> Self {
        let schema = Some(flags.schema.to_string()).filter(|schema| schema != SchemaName::DEFAULT);
        Self { program, version, process: process(), place, schema, keys_are_hidden: flags.key_secret_file.is_some() }
    }
}

/// The state of one worker, from before it is built until after it has ended.
pub(crate) struct Status {
    consumer: OnceLock<String>,
    /// Cancelled when the worker shall stop.
    pub(crate) stop: CancellationToken,
    pub(crate) began: Instant,
    identity: OnceLock<Identity>,
    rates: Rates,
    worker: OnceLock<(WorkerView, Partitions)>,
    /// A receiver without a worker.
    receiver: OnceLock<(ReceiverView, Partitions)>,
    /// The inbox of a worker behind one.
    inbox: OnceLock<Backlog>,
    /// A relay without a worker.
    relay: OnceLock<RelayView>,
    /// The requests served, in a service over HTTP.
    serves: OnceLock<Look>,
    /// A task beside the worker that died.
    dead: OnceLock<&'static str>,
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("consumer", &self.consumer()).finish_non_exhaustive()
    }
}

/// The JSON of `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    /// Whether the worker has joined, or a relay alone can read its outbox, and was not asked to stop.
    pub(crate) ready: bool,
    pub(crate) consumer: String,
    pub(crate) partitions: Option<Vec<String>>,
    /// Whether it can be used for receiving, and for how many seconds it cannot.
    pub(crate) broker: &'static str,
    pub(crate) broker_down_for: Option<u64>,
    pub(crate) database: &'static str,
    /// Why intake waits, and who says so.
    pub(crate) pause: Option<String>,
    /// For how many seconds it does.
    pub(crate) paused_for: Option<u64>,
    pub(crate) breaker: &'static str,
    /// Every condition that an operator may look at, worst first; in the words of the page and of the command.
    pub(crate) conditions: Vec<Shown>,
    /// Where events are relayed to; not there where none are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) relay: Vec<Standing>,
}

/// One condition of the consumer.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    state: &'static str,
    level: &'static str,
    what: String,
    #[serde(rename = "for")]
    time: Option<u64>,
    more: String,
    fix: Option<String>,
}

impl Status {
    pub(crate) fn new(consumer: Option<&str>, stop: CancellationToken) -> Self {
        Self {
            consumer: consumer.map(|name| name.to_owned().into()).unwrap_or_default(),
            stop,
            began: Instant::now(),
            identity: OnceLock::new(),
            rates: Rates::new(),
            worker: OnceLock::new(),
            receiver: OnceLock::new(),
            inbox: OnceLock::new(),
            relay: OnceLock::new(),
            serves: OnceLock::new(),
            dead: OnceLock::new(),
        }
    }

    /// The consumer's name; empty before it is known.
    pub(crate) fn consumer(&self) -> &str {
        self.consumer.get().map_or("", String::as_str)
    }

    /// The consumer's name is known now.
    #[cfg(feature = "http")]
    pub(crate) fn of_consumer(&self, name: &str) {
        let _ = self.consumer.set(name.to_owned());
    }

    /// The worker is built.
    pub(crate) fn built(&self, view: WorkerView, partitions: impl Fn() -> Option<Vec<Behind>> + Send + Sync + 'static) {
        // There is one worker, so this is the first call.
        let _ = self.worker.set((view, Box::new(partitions)));
    }

    /// The worker is behind an inbox.
    pub(crate) fn behind(&self, backlog: impl Fn() -> Option<InboxBacklog> + Send + Sync + 'static) {
        // As above.
        let _ = self.inbox.set(Box::new(backlog));
    }

    /// There is a receiver, and no worker.
    pub(crate) fn receives(
        &self,
        view: ReceiverView,
        partitions: impl Fn() -> Option<Vec<Behind>> + Send + Sync + 'static,
    ) {
        // As above.
        let _ = self.receiver.set((view, Box::new(partitions)));
    }

    /// The receiver of a process without a worker.
    pub(crate) fn receiver(&self) -> Option<&ReceiverView> {
        self.receiver.get().map(|(view, _)| view)
    }

    /// The messages that wait in the inbox; `None` without an inbox, or before they are counted.
    pub(crate) fn inbox(&self) -> Option<InboxBacklog> {
        self.receiver().and_then(ReceiverView::backlog).or_else(|| self.inbox.get()?())
    }

    /// Sets its identity, once.
    pub(crate) fn identify(&self, identity: Identity) {
        // As above.
        let _ = self.identity.set(identity);
    }

    /// Its identity; `None` before it is set.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// A command line of `idem` for this worker's database.
    pub(crate) fn command(&self, command: &str) -> String {
        match self.identity().and_then(|identity| identity.schema.as_ref()) {
            Some(schema) => format!("idem --schema {schema} {command}"),
            None => format!("idem {command}"),
        }
    }

    /// The number of this run in the database.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.worker.get().and_then(|(view, _)| view.run())
    }

    /// Notes the counts every few seconds, for as long as the process lives.
    pub(crate) async fn count(self: Arc<Self>) {
        loop {
            tokio::time::sleep(rates::EVERY).await;
            self.rates.note(Instant::now(), self.summary());
        }
    }

    /// The counts of the last minute.
    pub(crate) fn last_minute(&self, now: Instant) -> Recent {
        self.rates.recent(now)
    }

    /// Why intake waits, or a service begins no operation, and for how long already.
    pub(crate) fn pause(&self) -> Option<(Pause, Option<Duration>)> {
        match self.worker.get() {
            Some((view, _)) => Some((view.pause()?, view.paused_for())),
            None => self.served()?.pause.map(|(pause, time)| (pause, Some(time))),
        }
    }

    /// The conditions of the consumer, worst first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        // Without a worker all times come from this process, so that any instant may stand for now.
        let now = self.worker.get().map_or(SystemTime::UNIX_EPOCH + YEARS, |(view, _)| view.now());
        let mut facts = match self.worker.get() {
            Some((view, _)) => view.all_facts(),
            None => self.relay_view().map(|relay| relay.facts(now)).unwrap_or_default(),
        };
        let receiver = self.receiver().filter(|view| view.has_joined());
        if let Some(time) = receiver.and_then(ReceiverView::unreachable_for) {
            facts.push(Fact::of(Condition::BrokerDown).lasting(time, now));
        }
        if let (None, Some((pause, time))) = (self.worker.get(), self.pause()) {
            let fact = match pause {
                Pause::Control(ControlState::Halted, why) => Fact::of(Condition::Halted).detail(why),
                Pause::Control(ControlState::Paused | ControlState::Running, why) => {
                    Fact::of(Condition::Paused).detail(why)
                }
                Pause::StoreDown(lanes) => Fact::of(Condition::DatabaseDown).count(lanes),
                Pause::Breaker => Fact::of(Condition::BreakerOpen),
            };
            facts.push(fact.lasting(time.unwrap_or_default(), now));
        }
        if !facts.iter().any(|fact| fact.condition == Condition::TaskDied) {
            facts.extend(self.dead().map(|task| Fact::of(Condition::TaskDied).subject(task)));
        }
        standing::rows(self.consumer(), facts, now)
    }

    /// The parts that this worker has now, each with how far it is behind; nothing where the broker hands out none.
    pub(crate) fn lag(&self) -> Option<Vec<Behind>> {
        let receiver = self.receiver.get().filter(|(view, _)| view.has_joined()).map(|(_, partitions)| partitions);
        let worker = self.worker.get().filter(|(view, _)| view.has_joined()).map(|(_, partitions)| partitions);
        receiver.or(worker).and_then(|partitions| partitions())
    }

    /// How far the consumer is behind in its queue, where the broker hands out no parts; nothing before it answered.
    pub(crate) fn queue(&self) -> Option<Behind> {
        let receiver = self.receiver().filter(|view| view.has_joined()).map(ReceiverView::behind);
        let worker = || Some(&self.worker.get()?.0).filter(|view| view.has_joined()).map(WorkerView::behind);
        let behind = receiver.or_else(worker)?;
        if self.lag().is_some() { None } else { behind.into_iter().next() }
    }

    /// There is a relay, and no worker.
    pub(crate) fn relaying(&self, view: RelayView) {
        // As above.
        let _ = self.relay.set(view);
    }

    /// Requests are served from now on.
    #[cfg(feature = "http")]
    pub(crate) fn serves(&self, look: impl Fn() -> Served + Send + Sync + 'static) {
        // As above.
        let _ = self.serves.set(Box::new(look));
    }

    /// The requests served; `None` for a worker, or before the service runs.
    pub(crate) fn served(&self) -> Option<Served> {
        self.serves.get().map(|look| look())
    }

    /// Runs a task beside the worker. One that panics is reported by [`dead`](Self::dead) from then on.
    pub(crate) fn supervise(
        self: &Arc<Self>,
        task: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        struct Supervised(Arc<Status>, &'static str);
        impl Drop for Supervised {
            fn drop(&mut self) {
                if thread::panicking() {
                    tracing::error!(task = self.1, "a task beside the worker died, which is a bug in idem");
                    // The first is the one that is reported.
                    let _ = self.0.dead.set(self.1);
                }
            }
        }
        let supervised = Supervised(Arc::clone(self), task);
        tokio::spawn(async move {
            let _supervised = supervised;
            future.await;
        })
    }

    /// A task that died, of the worker or beside it.
    pub(crate) fn dead(&self) -> Option<&'static str> {
        self.worker.get().and_then(|(view, _)| view.dead_task()).or_else(|| self.dead.get().copied())
    }

    /// Cleanup's counts; nothing where it is off.
    pub(crate) fn cleanup(&self) -> Option<CleanupState> {
        self.worker.get().and_then(|(view, _)| view.cleanup())
    }

    /// The counts so far; nothing where there is no worker yet.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = self.worker.get().map_or_else(Summary::default, |(view, _)| view.summary());
        summary.published = self.relay_view().map_or(0, RelayView::published);
        summary.ran_for = self.began.elapsed();
        summary
    }

    /// The messages in hand; nothing where there is no worker yet.
    pub(crate) fn load(&self) -> Option<Load> {
        self.worker.get().map(|(view, _)| view.load())
    }

    /// Where events are relayed to; nothing where none are.
    pub(crate) fn relayed(&self) -> Vec<Relayed> {
        self.relay_view().map(RelayView::destinations).unwrap_or_default()
    }

    fn relay_view(&self) -> Option<&RelayView> {
        self.worker.get().and_then(|(view, _)| view.relay()).or_else(|| self.relay.get())
    }

    /// The causes for which messages in hand wait.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.worker.get().map(|(view, _)| view.waits()).unwrap_or_default()
    }

    /// The last incidents of one kind, the newest first.
    pub(crate) fn recent(&self, kind: IncidentKind) -> Vec<Incident> {
        self.worker.get().map(|(view, _)| view.recent(kind)).unwrap_or_default()
    }

    /// Sets the gauges to the present values.
    pub(crate) fn measure(&self) {
        if let Some((view, _)) = self.worker.get() {
            view.measure();
        }
        metrics::counter!(LOG_LINES_LOST.name, CONSUMER => self.consumer().to_owned()).absolute(logs::lost());
        if let Some(receiver) = self.receiver() {
            let (is_ready, is) = (receiver.has_joined(), |yes| f64::from(u8::from(yes)));
            let gauge =
                |of: &Metric, yes| metrics::gauge!(of.name, CONSUMER => self.consumer().to_owned()).set(is(yes));
            gauge(&READY, is_ready && !self.stop.is_cancelled());
            gauge(&BROKER_CONNECTED, is_ready && receiver.unreachable_for().is_none());
        }
        // A worker sets these gauges itself.
        if self.serves.get().is_some() {
            let (pause, is) = (self.pause(), |yes| f64::from(u8::from(yes)));
            let gauge =
                |of: &Metric, value| metrics::gauge!(of.name, CONSUMER => self.consumer().to_owned()).set(value);
            gauge(&READY, is(!self.stop.is_cancelled()));
            gauge(&PAUSED, is(pause.is_some()));
            gauge(&PAUSED_FOR, pause.and_then(|(_, time)| time).unwrap_or_default().as_secs_f64());
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let worker = self.worker.get();
        let has_joined =
            worker.is_some_and(|(view, _)| view.has_joined()) || self.receiver().is_some_and(ReceiverView::has_joined);
        let cannot_write = self.receiver().is_some_and(|receiver| !receiver.can_write());
        let (pause, paused_for) = self.pause().map_or((None, None), |(pause, time)| (Some(pause), time));
        // Where a relay is all there is, whether it can read its outbox.
        let alone = self.relay.get().filter(|_| self.serves.get().is_none()).map(RelayView::reads_outbox);
        let unreachable_for =
            worker.and_then(|(view, _)| view.broker_unreachable_for()).or_else(|| self.receiver()?.unreachable_for());
        let rows = self.rows();
        let has = |condition| rows.iter().any(|row| row.condition == condition);
        Readiness {
            broker: match unreachable_for {
                _ if !has_joined => "unknown",
                Some(_) => "down",
                None => "up",
            },
            broker_down_for: unreachable_for.map(|time| time.as_secs()),
            ready: (has_joined || self.serves.get().is_some() || alone == Some(true)) && !self.stop.is_cancelled(),
            consumer: self.consumer().to_owned(),
            partitions: self.lag().map(|parts| parts.into_iter().map(|part| part.part).collect()),
            database: match alone {
                Some(false) => "down",
                Some(true) => "up",
                None if !has_joined => "unknown",
                None if cannot_write || has(Condition::DatabaseDown) => "down",
                None => "up",
            },
            breaker: if has(Condition::BreakerOpen) { "open" } else { "closed" },
            conditions: rows
                .into_iter()
                .map(|row| Shown {
                    state: row.state,
                    level: row.level.as_str(),
                    what: row.what,
                    time: row.time.map(|time| time.as_secs()),
                    more: row.more,
                    fix: row.fix.map(|fix| self.command(&fix)),
                })
                .collect(),
            pause: pause.map(|pause| pause.to_string()),
            paused_for: paused_for.map(|time| time.as_secs()),
            relay: self.relayed().into_iter().map(Standing::from).collect(),
        }
    }
}

/// The name of this process for people.
pub(crate) fn process() -> String {
    format!("{}:{}", idem_sql::host_name(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn j11_a_task_that_panics_is_told_and_one_that_ends_is_not() {
        let status = Arc::new(Status::new(Some("ledger"), CancellationToken::new()));
        status.supervise("done", async {});
        status.supervise("broken", async {
            tokio::task::yield_now().await;
            std::panic::resume_unwind(Box::new("as asked for"));
        });
        let told = tokio::time::timeout(Duration::from_secs(60), async {
            while status.dead().is_none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        told.await.expect("it is told");
        assert_eq!(status.dead(), Some("broken"));
    }
}
