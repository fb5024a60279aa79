//! The state that a relay's tasks share, and its view for others.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{
    error::StoreError,
    names::ConsumerName,
    outbox::rows::{DestinationId, Outbox, OutboxBacklog},
    relay::{ends::UNCOUNTED_MAX, unconfirmed::InVain},
    standing::{Condition, Fact},
    telemetry::handles::{RelayMetrics, SentMetrics},
};

/// The text of an error and its causes, for the log.
pub(super) type Describe = fn(&(dyn Error + 'static)) -> String;

/// The state that a relay and its views share.
pub(super) struct State {
    pub(super) outbox: Arc<dyn Outbox>,
    pub(super) describe: Describe,
    /// Whether the last look at the outbox could read it. Before the first one it is not known to be there at all.
    pub(super) is_readable: AtomicBool,
    /// The consumer whose events a worker waits for before it is idle; all consumers if `None`.
    pub(super) consumer: Option<ConsumerName>,
    /// In the order of the routes.
    pub(super) lines: Vec<Arc<Line>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// The state of one destination.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) destination: Box<str>,
    /// The id, known once the destination is declared.
    pub(super) id: OnceLock<DestinationId>,
    pub(super) metrics: RelayMetrics,
    /// Its metrics by the messaging conventions, once its publisher was asked what it takes.
    pub(super) sent: OnceLock<SentMetrics>,
    published: AtomicU64,
    failed: AtomicU64,
    /// Rises with each settled event, whatever its outcome.
    settled: AtomicU64,
    look: Mutex<Look>,
}

#[derive(Debug)]
struct Look {
    standing: RelayStanding,
    trouble: Option<(Instant, String)>,
    /// The time at which the last trouble ended.
    mended_at: Option<Instant>,
    in_vain: Option<InVain>,
    backlog: Option<OutboxBacklog>,
}

/// A relay's relation to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayStanding {
    /// The destination is not declared yet, and has no events.
    Undeclared,
    /// Another relay has it, and this one waits to take over.
    Standby,
    /// An operator has paused it.
    Paused,
    /// This relay has it.
    Relaying,
}

impl RelayStanding {
    /// The word for this standing.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Undeclared => "undeclared",
            Self::Standby => "standby",
            Self::Paused => "paused",
            Self::Relaying => "relaying",
        }
    }
}

/// A destination as its relay knows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Relayed {
    /// The destination's name.
    pub destination: String,
    /// The relay's relation to it.
    pub standing: RelayStanding,
    /// Events that the destination has confirmed to this relay.
    pub published: u64,
    /// Events that this relay has left to a person.
    pub failed: u64,
    /// Why no event goes there now, or why none of its last tries was confirmed, and since how long; `None` while all is well. One
    /// endpoint of many that fails is no trouble of the destination as long as others confirm.
    pub trouble: Option<(String, Duration)>,
    /// The waiting events of all consumers by the last count; `None` before the first count.
    pub backlog: Option<OutboxBacklog>,
}

impl Line {
    fn new(destination: &str) -> Self {
        Self {
            destination: destination.into(),
            id: OnceLock::new(),
            metrics: RelayMetrics::of(destination),
            sent: OnceLock::new(),
            published: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            look: Mutex::new(Look {
                standing: RelayStanding::Undeclared,
                trouble: None,
                mended_at: None,
                in_vain: None,
                backlog: None,
            }),
        }
    }

    fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stands(&self, standing: RelayStanding) {
        self.look().standing = standing;
    }

    /// Notes the numbers of events that were just settled: confirmed, failed, and in all.
    pub(super) fn settled(&self, published: u64, failed: u64, all: u64) {
        self.published.fetch_add(published, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
        self.settled.fetch_add(all, Ordering::Relaxed);
        self.metrics.published.increment(published);
    }

    /// Notes why no event goes there. Returns since how long, and whether the reason is a new one.
    pub(super) fn in_trouble(&self, why: &str) -> (Duration, bool) {
        let mut look = self.look();
        let (since, before) = look.trouble.get_or_insert_with(|| (Instant::now(), String::new()));
        let is_new = before != why;
        if is_new {
            why.clone_into(before);
        }
        (since.elapsed(), is_new)
    }

    /// Notes that events go there again. Returns how long none did, if that was so.
    pub(super) fn out_of_trouble(&self) -> Option<Duration> {
        let mut look = self.look();
        let (since, _) = look.trouble.take()?;
        look.mended_at = Some(Instant::now());
        Some(since.elapsed())
    }

    /// Notes that an event was confirmed.
    pub(super) fn confirmed(&self) {
        self.look().in_vain = None;
    }

    /// Notes tries that were not confirmed, and are repeated. It is no outage: events that are tried again later hold nobody up.
    pub(super) fn in_vain(&self, tries: u64, error: &str) {
        let mut look = self.look();
        look.in_vain = Some(InVain::add(look.in_vain.take(), tries, error));
    }

    /// Whether events wait for the end of an outage.
    fn is_recovering(&self) -> bool {
        let look = self.look();
        look.trouble.is_some() || look.mended_at.is_some_and(|at| at.elapsed() <= UNCOUNTED_MAX)
    }

    #[allow(clippy::cast_precision_loss, reason = "gauges are floating")]
    pub(super) fn measured(&self, backlog: &OutboxBacklog) {
        self.metrics.pending.set(backlog.pending as f64);
        self.metrics.waiting.set((backlog.waiting + backlog.behind) as f64);
        self.metrics.failed.set(backlog.failed as f64);
        self.metrics.oldest.set(backlog.oldest.unwrap_or_default().as_secs_f64());
        let mut look = self.look();
        // In an outage each event is tried again every few seconds, and none of them may go for long.
        let outage = look.trouble.as_ref().map(|(since, _)| since.elapsed()).filter(|_| waits(backlog));
        self.metrics.due.set(backlog.due.max(outage).unwrap_or_default().as_secs_f64());
        look.backlog = Some(backlog.clone());
    }

    fn relayed(&self) -> Relayed {
        let look = self.look();
        Relayed {
            destination: self.destination.to_string(),
            standing: look.standing,
            published: self.published.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            trouble: look.trouble.as_ref().map(|(since, why)| (why.clone(), since.elapsed())).or_else(|| {
                // What waits for a person by now is told as that.
                let waits = look.backlog.as_ref().is_none_or(waits);
                look.in_vain.as_ref().filter(|_| waits)?.trouble()
            }),
            backlog: look.backlog.clone(),
        }
    }
}

/// Whether events wait for their first or next try.
fn waits(backlog: &OutboxBacklog) -> bool {
    backlog.pending + backlog.waiting > 0
}

impl State {
    pub(super) fn new<'n>(
        outbox: Arc<dyn Outbox>,
        consumer: Option<ConsumerName>,
        describe: Describe,
        destinations: impl Iterator<Item = &'n str>,
    ) -> Self {
        let lines = destinations.map(|name| Arc::new(Line::new(name))).collect();
        Self { outbox, describe, is_readable: AtomicBool::new(false), consumer, lines }
    }

    /// The state of this destination, if it has a route.
    pub(super) fn line(&self, destination: &str) -> Option<&Arc<Line>> {
        self.lines.iter().find(|line| &*line.destination == destination)
    }

    /// Whether an event waits on one of the relay's routes that may go now, or could but for an outage of its destination. A
    /// worker's relay counts the events of the worker's consumer alone.
    pub(super) async fn has_pending(&self) -> Result<bool, StoreError> {
        let backlog = self.outbox.backlog(self.consumer.as_ref()).await?;
        let is_pending =
            |one: &OutboxBacklog, line: &Line| one.pending > 0 || (one.waiting > 0 && line.is_recovering());
        Ok(backlog.iter().any(|one| self.line(&one.destination).is_some_and(|line| is_pending(one, line))))
    }
}

/// A view of a relay, which outlives its run. Clones see the same.
#[derive(Debug, Clone)]
pub struct RelayView(pub(super) Arc<State>);

impl RelayView {
    /// How many events their destinations have confirmed so far.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.0.lines.iter().map(|line| line.published.load(Ordering::Relaxed)).sum()
    }

    /// The destinations, in the order of their routes.
    #[must_use]
    pub fn destinations(&self) -> Vec<Relayed> {
        self.0.lines.iter().map(|line| line.relayed()).collect()
    }

    /// The conditions of its destinations, at this time.
    #[must_use]
    pub fn facts(&self, now: SystemTime) -> Vec<Fact> {
        let of_destination = |relayed: Relayed| {
            let of = |condition| Fact::of(condition).subject(&relayed.destination);
            let failed = relayed.backlog.as_ref().map_or(0, |backlog| backlog.failed);
            let failed = (failed > 0).then(|| of(Condition::EventsFailed).count(failed));
            let blocked = match &relayed.trouble {
                Some((why, time)) => Some(of(Condition::EventsBlocked).detail(why).lasting(*time, now)),
                None => (relayed.standing == RelayStanding::Paused).then(|| of(Condition::EventsPaused)),
            };
            [failed, blocked]
        };
        self.destinations().into_iter().flat_map(of_destination).flatten().collect()
    }

    /// Whether the relay could read its outbox when it last counted events, some seconds ago. It cannot before it has run, or
    /// while the database is away or refuses.
    #[must_use]
    pub fn reads_outbox(&self) -> bool {
        self.0.is_readable.load(Ordering::Relaxed)
    }

    /// Whether no event that may go now waits on a route of this relay; a worker's relay counts the events of the worker's consumer
    /// alone. Events that are tried again later, wait behind such an event, or have failed do not count, unless their destination is
    /// failing or was a moment ago. Asks the database; `false` if it does not answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_idle(&self) -> bool {
        self.0.has_pending().await.is_ok_and(|has_pending| !has_pending)
    }

    /// A number that rises with each settled event, whatever its outcome. If it has changed, the relay was not idle meanwhile.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.0.lines.iter().map(|line| line.settled.load(Ordering::Relaxed)).sum()
    }
}
