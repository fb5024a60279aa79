//! The state of a consumer: what its worker and its tables know, as [`Fact`]s, and the [`rows`] that page and command show of them.

mod rows;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use self::rows::{Level, Row, command_word, rows};
use crate::names::RunId;

/// A worker reports its state at least this often.
pub const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A worker that has reported nothing for so long, and no end, is gone: killed, aborted, or cut off from the database.
pub const GONE_AFTER: Duration = Duration::from_secs(30);

/// Dead letters are counted up to here.
pub const COUNTED_MAX: u64 = 10_000;

/// How far back the starts of a crash loop lie, how long each of its runs lasts at most, and how many they are at least.
const LOOP_WITHIN: Duration = Duration::from_secs(30 * 60);
const LOOP_RUN: Duration = Duration::from_secs(5 * 60);
const LOOP_RUNS: usize = 3;

/// A condition of a consumer that an operator may have to look at, worst first.
///
/// A further one is a variant here, a fact where it is known, and its arm in `rows.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Condition {
    /// A task of the worker died; the subject is its name.
    TaskDied,
    /// Its workers begin and end again and again.
    CrashLoop,
    /// A worker halted it.
    Halted,
    /// Lanes cannot reach the database.
    DatabaseDown,
    /// The broker cannot be used.
    BrokerDown,
    /// Most of the last messages became dead letters.
    BreakerOpen,
    /// An operator paused it.
    Paused,
    /// The database answers, and cannot serve statements of messages.
    DatabaseRefuses,
    /// Messages that nothing can keep.
    Unkeepable,
    /// The dead letters have used up their room.
    DeadLettersFull,
    /// Messages wait for a key that another transaction holds.
    KeyHeld,
    /// A transaction of a handler is open for long.
    OpenTransaction,
    /// Events failed; the subject is their destination.
    EventsFailed,
    /// No event is sent; the subject is their destination.
    EventsBlocked,
    /// Dead letters that are not handled.
    DeadLetters,
    /// Replays that no worker takes.
    ReplaysWait,
    /// Slots of the inbox that no worker holds, while messages wait in it.
    InboxUnheld,
    /// The oldest message of the inbox waits for long.
    InboxBehind,
    /// The topic or queue for dead letters confirms nothing.
    Unpublished,
    /// Cleanup fails.
    CleanupFails,
    /// An operator paused a destination; the subject is its name.
    EventsPaused,
    /// How a run ended that was not asked to. It is a fact of the run alone, of which several make a crash loop.
    Failed,
}

impl Condition {
    /// Whether it keeps messages from being taken in, so that it is the state of the consumer in one word.
    #[must_use]
    pub const fn stops(self) -> bool {
        matches!(
            self,
            Self::TaskDied
                | Self::CrashLoop
                | Self::Halted
                | Self::DatabaseDown
                | Self::BrokerDown
                | Self::BreakerOpen
                | Self::Paused
        )
    }
}

/// One condition, as a worker or a table knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fact {
    /// Which condition.
    pub condition: Condition,
    /// Of how many messages, lanes, dead letters or runs; 0 where it has no number.
    #[serde(default)]
    pub count: u64,
    /// Which one, where a consumer may have several at a time.
    #[serde(default)]
    pub subject: String,
    /// The reason, in words.
    #[serde(default)]
    pub detail: String,
    /// Since when.
    #[serde(default, with = "seconds")]
    pub since: Option<SystemTime>,
    /// When it happened last.
    #[serde(default, with = "seconds")]
    pub latest: Option<SystemTime>,
}

impl Fact {
    /// The condition, without more.
    #[must_use]
    pub fn of(condition: Condition) -> Self {
        Self { condition, count: 0, subject: String::new(), detail: String::new(), since: None, latest: None }
    }

    /// Of so many.
    #[must_use]
    pub fn count(mut self, count: impl TryInto<u64>) -> Self {
        self.count = count.try_into().unwrap_or(u64::MAX);
        self
    }

    /// About this one.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// With this reason.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Since this time.
    #[must_use]
    pub fn since(mut self, since: Option<SystemTime>) -> Self {
        self.since = since;
        self
    }

    /// Last at this time.
    #[must_use]
    pub fn latest(mut self, latest: Option<SystemTime>) -> Self {
        self.latest = latest;
        self
    }

    /// For so long until now, to the second: the same fact, reported again, is the same.
    #[must_use]
    pub fn lasting(self, time: Duration, now: SystemTime) -> Self {
        let began =
            now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(time) + Duration::from_millis(500);
        self.since(UNIX_EPOCH.checked_add(Duration::from_secs(began.as_secs())))
    }
}

/// The facts of an inbox: slots that no worker holds, and when the oldest message was received, where one waits.
#[must_use]
pub fn inbox_facts(free_slots: u64, oldest: Option<SystemTime>) -> Vec<Fact> {
    if oldest.is_none() {
        return Vec::new();
    }
    let unheld = (free_slots > 0).then(|| Fact::of(Condition::InboxUnheld).count(free_slots).since(oldest));
    unheld.into_iter().chain([Fact::of(Condition::InboxBehind).since(oldest)]).collect()
}

/// The facts of a run as the store keeps them.
#[must_use]
pub fn to_json(facts: &[Fact]) -> String {
    serde_json::to_string(facts).unwrap_or_else(|_| "[]".to_owned())
}

/// The same, read: those that this build does not know are left out.
#[must_use]
pub fn from_json(text: &str) -> Vec<Fact> {
    let all: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    all.into_iter().filter_map(|fact| serde_json::from_value(fact).ok()).collect()
}

/// Instants as whole seconds since the Unix epoch.
mod seconds {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[allow(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(at: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        at.map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        let seconds = Option::<u64>::deserialize(deserializer)?;
        Ok(seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))))
    }
}

/// One run of a worker, as the tables have it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// Its number.
    pub run: RunId,
    /// Host and number of its process.
    pub process: String,
    /// When it began.
    pub started_at: SystemTime,
    /// When it last reported.
    pub seen_at: SystemTime,
    /// When it ended; `None` while it runs, and where it could not say so any more.
    pub ended_at: Option<SystemTime>,
    /// The facts that it last reported.
    pub facts: Vec<Fact>,
}

impl Run {
    /// A run that has just reported for the first time.
    #[must_use]
    pub fn new(run: RunId, process: String, started_at: SystemTime) -> Self {
        Self { run, process, started_at, seen_at: started_at, ended_at: None, facts: Vec::new() }
    }

    /// Its last report.
    #[must_use]
    pub fn report(mut self, seen_at: SystemTime, ended_at: Option<SystemTime>, facts: Vec<Fact>) -> Self {
        (self.seen_at, self.ended_at, self.facts) = (seen_at, ended_at, facts);
        self
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_alive(&self, now: SystemTime) -> bool {
        self.ended_at.is_none() && is_within(self.seen_at, now, GONE_AFTER)
    }

    /// How it ended, where it was not asked to.
    fn failure(&self, now: SystemTime) -> Option<String> {
        if self.ended_at.is_some() {
            let failed = self.facts.iter().find(|fact| fact.condition == Condition::Failed)?;
            return Some(failed.detail.clone());
        }
        (!self.is_alive(now)).then(|| "it was killed or aborted: it reported no end".to_owned())
    }
}

fn is_within(at: SystemTime, now: SystemTime, time: Duration) -> bool {
    now.duration_since(at).unwrap_or_default() <= time
}

/// What the tables know of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tables {
    /// The database's clock.
    pub now: SystemTime,
    /// The facts that are in the tables themselves.
    pub facts: Vec<Fact>,
    /// Its last runs, the newest first.
    pub runs: Vec<Run>,
}

impl Tables {
    /// These, read now.
    #[must_use]
    pub fn new(now: SystemTime, facts: Vec<Fact>, runs: Vec<Run>) -> Self {
        Self { now, facts, runs }
    }

    /// Whether a worker of it runs.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.runs.iter().any(|run| run.is_alive(self.now))
    }

    /// All that is known: the tables' own facts, those of each run that is alive, and whether its runs end again and again. A worker
    /// that asks for its own consumer leaves its `own` run out, whose facts it knows better.
    #[must_use]
    pub fn all(&self, own: Option<RunId>) -> Vec<Fact> {
        let alive = self.runs.iter().filter(|run| run.is_alive(self.now) && Some(run.run) != own);
        let mut all = self.facts.clone();
        all.extend(alive.flat_map(|run| run.facts.iter().cloned()));
        all.extend(self.crash_loop());
        all
    }

    /// How many runs within half an hour ended unasked, within five minutes of their start.
    #[must_use]
    pub fn failed_runs(&self) -> usize {
        self.failed().len()
    }

    fn failed(&self) -> Vec<(&Run, String)> {
        let short = |run: &&Run| {
            is_within(run.started_at, self.now, LOOP_WITHIN)
                && is_within(run.started_at, run.ended_at.unwrap_or(run.seen_at), LOOP_RUN)
        };
        self.runs.iter().filter(short).filter_map(|run| Some((run, run.failure(self.now)?))).collect()
    }

    fn crash_loop(&self) -> Option<Fact> {
        let failed = self.failed();
        let ((last, why), (first, _)) = (failed.first()?, failed.last()?);
        let fact = Fact::of(Condition::CrashLoop).count(failed.len()).since(Some(first.started_at));
        let fact = fact.latest(Some(last.ended_at.unwrap_or(last.seen_at)));
        (failed.len() >= LOOP_RUNS).then(|| fact.detail(format!("run {} ({}): {why}", last.run, last.process)))
    }
}

#[cfg(test)]
mod tests;
