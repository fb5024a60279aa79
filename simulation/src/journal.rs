//! The events of a life, as they happen: a hash to compare two runs, a trace for a person, and the breaches of promises.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A promise that a life can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A message is acknowledged only once its effect is committed, and as a dead letter only once that is whole.
    SettledTooEarly,
    /// Every message comes to an effect or to a dead letter.
    Lost,
    /// An effect happens once while its record is kept.
    SecondEffect,
    /// Nothing is dead-lettered that did not earn it.
    Unearned,
    /// A dead letter is published where there is a publisher, and nothing is that has no row.
    NotPublished,
    /// No dead letter of what is running and then commits.
    DeadWhileRunning,
    /// No handler runs oftener than its attempts.
    RanTooOften,
    /// Records and effects are committed together.
    RecordWithoutEffect,
    /// The handlers' sums equal their effects: no addition is lost or made twice.
    WrongSum,
    /// Effects of one ordering key are in the order of publishing.
    OutOfOrder,
    /// Calls to other services carry one key a message, through all retries.
    OtherDerivedKey,
    /// Nothing is handled while the consumer is paused or halted.
    RanWhilePaused,
    /// A good message is handled soon, where nothing is in its way.
    Late,
    /// No task is busy without time passing.
    Spins,
    /// Once faults end, everything comes to rest in time.
    NotAtRest,
    /// No worker ends by itself, nor stays when it is stopped.
    WorkerEnded,
    /// No panic but the handlers' own.
    Panicked,
    /// Every event of an effect arrives.
    EventLost,
    /// No event arrives without an effect.
    EventOfNothing,
    /// An event has one id, through all retries, and arrives as it was published.
    OtherEventId,
    /// First copies of events of one ordering key are in the order of their effects.
    EventsOutOfOrder,
    /// No event comes twice where nothing was lost and no process died.
    NeedlessCopy,
    /// Every answer to a key is that of the run that counts.
    OtherAnswer,
    /// Only the holder of a partition works on it, and commits its position: until it has given it back in good order.
    OtherHolder,
    /// Of the two rows that a handler writes in one transaction, both are there or none.
    HalfAnEffect,
    /// No handler runs for a message whose tenant, key or hash was not found.
    Unidentified,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 26] = [
        Self::SettledTooEarly,
        Self::Lost,
        Self::SecondEffect,
        Self::Unearned,
        Self::NotPublished,
        Self::DeadWhileRunning,
        Self::RanTooOften,
        Self::RecordWithoutEffect,
        Self::WrongSum,
        Self::OutOfOrder,
        Self::OtherDerivedKey,
        Self::RanWhilePaused,
        Self::Late,
        Self::Spins,
        Self::NotAtRest,
        Self::WorkerEnded,
        Self::Panicked,
        Self::EventLost,
        Self::EventOfNothing,
        Self::OtherEventId,
        Self::EventsOutOfOrder,
        Self::NeedlessCopy,
        Self::OtherAnswer,
        Self::OtherHolder,
        Self::HalfAnEffect,
        Self::Unidentified,
    ];
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub struct Breach {
    /// Which.
    pub rule: Rule,
    /// When, in the life's own time.
    pub at: Duration,
    /// The observation.
    pub text: String,
}

/// Something that happened. Messages are numbered in the order of publishing, contents as in the scenario.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Happened {
    /// A message was published.
    Published { message: usize, content: usize },
    /// A process was handed a message.
    Delivered { process: usize, message: usize, attempt: u32 },
    /// A process settled a message.
    Settled { process: usize, message: usize, how: &'static str, answer: &'static str },
    /// A handler began.
    Began { process: usize, run: usize, content: usize },
    /// A handler returned.
    Returned { run: usize, how: &'static str },
    /// A process began.
    Started { process: usize },
    /// A process died.
    Died { process: usize, polls: u64 },
    /// A process ended in good order, or by itself.
    Ended { process: usize, how: String },
    /// Anything else.
    Noted(String),
    /// A group stored a position.
    Passed { process: usize, partition: i32, to: i64 },
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published { message, content } => write!(f, "published m{message}, content c{content}"),
            Self::Delivered { process, message, attempt } => {
                write!(f, "process {process}: m{message} is delivered, for the {attempt}. time as the broker says")
            }
            Self::Settled { process, message, how, answer } => {
                write!(f, "process {process}: m{message} is settled: {how}; the broker answers {answer}")
            }
            Self::Passed { process, partition, to } => {
                write!(f, "process {process} commits the position {to} of partition {partition}")
            }
            Self::Began { process, run, content } => {
                write!(f, "process {process}: handler run {run} begins, content c{content}")
            }
            Self::Returned { run, how } => write!(f, "handler run {run} {how}"),
            Self::Started { process } => write!(f, "process {process} starts"),
            Self::Died { process, polls } => write!(f, "process {process} dies after {polls} polls"),
            Self::Ended { process, how } => write!(f, "process {process} ends: {how}"),
            Self::Noted(text) => f.write_str(text),
        }
    }
}

/// The most polls without time passing: above this a task spins.
const POLLS_AT_ONCE_MAX: u64 = 50_000;

/// The journal of one life.
#[derive(Debug)]
pub(crate) struct Journal {
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    hash: Mixer,
    polls: u64,
    polled_at: Duration,
    polls_at_once: u64,
    trace: Option<Vec<String>>,
    breaches: Vec<Breach>,
}

impl Journal {
    /// An empty one. With `trace` it also keeps a line of each event.
    #[must_use]
    pub(crate) fn new(trace: bool) -> Self {
        let inner = Inner {
            hash: Mixer(0),
            polls: 0,
            polled_at: Duration::ZERO,
            polls_at_once: 0,
            trace: trace.then(Vec::new),
            breaches: Vec::new(),
        };
        Self { begun: Instant::now(), inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life's own time.
    #[must_use]
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Something happened.
    pub(crate) fn note(&self, happened: &Happened) {
        let now = self.now();
        let mut inner = self.inner();
        now.as_nanos().hash(&mut inner.hash);
        happened.hash(&mut inner.hash);
        if let Some(trace) = &mut inner.trace {
            trace.push(format!("{:>10.3} s  {happened}", now.as_secs_f64()));
        }
    }

    /// A task of a process was polled. Answers whether it spins.
    pub(crate) fn polled(&self, process: usize, task: u64) -> bool {
        let now = self.now();
        let mut inner = self.inner();
        (now.as_nanos(), process, task).hash(&mut inner.hash);
        inner.polls += 1;
        if now != inner.polled_at {
            (inner.polled_at, inner.polls_at_once) = (now, 0);
        }
        inner.polls_at_once += 1;
        inner.polls_at_once > POLLS_AT_ONCE_MAX
    }

    /// A promise was broken.
    pub(crate) fn breach(&self, rule: Rule, text: impl Into<String>) {
        let (at, text) = (self.now(), text.into());
        let mut inner = self.inner();
        if let Some(trace) = &mut inner.trace {
            trace.push(format!("{:>10.3} s  BROKEN, {rule:?}: {text}", at.as_secs_f64()));
        }
        inner.breaches.push(Breach { rule, at, text });
    }

    /// Ends it: hash, polls, trace and breaches.
    #[must_use]
    pub(crate) fn end(&self) -> (u64, u64, Vec<String>, Vec<Breach>) {
        let mut inner = self.inner();
        let trace = inner.trace.take().unwrap_or_default();
        (inner.hash.finish(), inner.polls, trace, std::mem::take(&mut inner.breaches))
    }
}

/// A hash that is the same on every run and machine, which the standard library's need not be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mixer(pub u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
